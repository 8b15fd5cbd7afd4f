//! The readers on real and on hostile model folders.

mod readers {
    mod golden;
}
