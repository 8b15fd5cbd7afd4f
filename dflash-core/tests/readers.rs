//! The readers on real and on hostile model folders.

mod readers {
    mod checkpoint;
    mod draft_config;
    mod golden;
    mod hostile;
    mod support;
    mod target_config;
}
