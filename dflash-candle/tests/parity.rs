//! The parity report decides which level of exactness Candle may claim.

use std::path::{Path, PathBuf};

use candle_core::Device;
use dflash_candle::{CandleCpu, CandleDevice};
use dflash_core::DType;
use dflash_core::backend::{Backend, Exactness};
use dflash_core::testing::parity::Parity;

const MODELS: [&str; 4] = ["qwen3", "llama3", "qwen3.5", "qwen3.5-moe"];

fn measure<B: Backend>(backend: &B) -> Parity {
    let folder = |name: &str| -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("../dflash-core/tests/golden")
            .join(name)
            .join("target")
    };
    let folders = MODELS.map(|name| (name, folder(name)));
    let models = folders
        .each_ref()
        .map(|(name, path)| (*name, path.as_path()));
    let parity = Parity::measure(backend, &models).expect("it runs");
    println!("{parity}");
    parity
}

#[test]
fn candle_on_the_processor_is_bit_equal() {
    for threads in [1, 3] {
        let parity = measure(&CandleCpu::new(threads));
        assert_eq!(parity.claim, Exactness::Exact);
        assert_eq!(parity.level(), Exactness::Exact, "{parity}");
    }
}

#[test]
fn candles_own_operations_claim_no_more_than_was_measured() {
    for dtype in [DType::F32, DType::Bf16] {
        let parity = measure(&CandleDevice::new(Device::Cpu, dtype));
        parity.check_claim().expect("its claim holds");
    }
}
