//! The Metal kernels' bodies, compiled as C++ and compared with the reference backend.

mod metal {
    mod affine;
    mod attention;
    mod delta;
    mod host;
}
