//! The reference backend: a draft sees what it was trained to see.

use std::path::Path;

use dflash_core::Result;
use dflash_core::backend::reference::Reference;
use dflash_core::testing::conditioning;

fn none(check: impl FnOnce(&Reference, &Path) -> Result<Vec<String>>) {
    let scratch = tempfile::tempdir().expect("a folder");
    let found = check(&Reference::new(), scratch.path()).expect("it runs");
    assert!(found.is_empty(), "{}", found.join("\n"));
}

macro_rules! checks {
    ($($test:ident: $check:ident),* $(,)?) => {
        $(#[test] fn $test() { none(conditioning::$check); })*
    };
}

checks! {
    taps_count_layers_from_zero: check_taps,
    context_rows_follow_each_layer_s_window: check_context_rows,
    proposals_do_not_depend_on_prompt_chunks: check_prompt_chunks,
    only_distances_count: check_shift,
    masks_cell_by_cell: check_mask,
    file_formats_agree: check_file_formats,
    large_residuals_stay_finite: check_large_residual,
    scales_and_caps: check_scales,
    context_memory_is_constant: check_context_memory,
}

mod damage {
    use super::none;
    use dflash_core::testing::damage;

    #[test]
    fn a_damaged_weight_is_named() {
        none(damage::check_named);
    }

    #[test]
    fn it_fails_only_requests_that_meet_it() {
        none(damage::check_isolated);
    }

    #[test]
    fn rejected_rows_that_are_not_finite_leave_nothing() {
        none(damage::check_rejected_rows);
    }
}
