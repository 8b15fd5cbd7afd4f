//! MLX is tie-tolerant: texts part from plain decoding's at counted near-ties only.
#![cfg(any(target_os = "macos", feature = "host"))]

use std::path::Path;

use dflash_core::DType;
use dflash_core::testing::lossless::Case;
use dflash_core::testing::record::Record;
use dflash_core::testing::ties::check_ties;
use dflash_mlx::{Mlx, Place};

#[test]
fn texts_part_at_counted_near_ties_only() {
    for name in ["qwen3", "qwen3.5"] {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("../dflash-core/tests/golden")
            .join(name);
        let record = Record::read(&folder.join("target.golden.safetensors")).expect("a record");
        for (dtype, draft) in [(DType::F32, "d1"), (DType::Bf16, "d2")] {
            let case = Case {
                target: &folder.join("target"),
                prompt: &record.ids("input_ids").expect("a prompt"),
                tokens: 60,
                block: 8,
            };
            let backend = Mlx::new(Place::Processor, dtype);
            let (found, seen) =
                check_ties(&backend, &case, &folder.join(draft), &[2, 8]).expect("it runs");
            println!("{name} {dtype}: {seen:?}");
            assert!(found.is_empty(), "{name} {dtype}: {found:#?}");
            assert!(
                seen.texts == 6 && seen.tokens > 0,
                "{name} {dtype}: {seen:?}"
            );
        }
    }
}
