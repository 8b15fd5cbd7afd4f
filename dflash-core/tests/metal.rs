//! The Metal kernels' bodies, compiled as C++ and compared with the reference backend.

mod metal {
    mod delta;
    mod host;
}
