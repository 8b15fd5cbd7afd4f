//! The readers on real and on hostile model folders.

mod readers {
    mod checkpoint_claims;
    mod checkpoint_files;
    mod checkpoint_weights;
    mod draft_config;
    mod draft_kinds;
    mod draft_layers;
    mod draft_rope;
    mod golden;
    mod hostile;
    mod quantizer;
    mod support;
    mod target_config;
}
