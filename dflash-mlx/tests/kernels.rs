//! Kernels for Apple's GPUs where there is none: MLX's processor build refuses them, and the trial at load finds out.
#![cfg(feature = "host")]

use dflash_core::DType;
use dflash_core::metal::{Family, Switches, tried};
use dflash_mlx::{Mlx, Place};

#[test]
fn kernels_that_the_device_refuses_are_switched_off_with_a_note() {
    for dtype in [DType::F32, DType::Bf16] {
        let backend = Mlx::new(Place::Processor, dtype);
        let (kept, notes) = tried(Switches::default(), |s| backend.with_kernels(s));
        assert_eq!(kept, Switches::NONE, "{notes:#?}");
        assert_eq!(notes.len(), Family::ALL.len());
        for (family, note) in Family::ALL.into_iter().zip(&notes) {
            assert!(note.contains(&format!("`{family}` is not used")), "{note}");
        }
    }
}

#[test]
fn those_that_are_off_are_not_tried() {
    let backend = Mlx::new(Place::Processor, DType::F32);
    let some = Switches::all_but(&["attention", "gated-delta"]).expect("names");
    let (kept, notes) = tried(some, |s| backend.with_kernels(s));
    assert_eq!((kept, notes.len()), (Switches::NONE, 1));
}
