//! Candle as a choice at load time.

use dflash_core::backend::factory::{BackendFactory, DeviceClass, DeviceInfo, Support};
use dflash_core::load::{LoadRequest, Loaded, load_on};
use dflash_core::models::ModelInfo;
use dflash_core::{DType, Error, Result};

use crate::cpu::CandleCpu;

/// Loads models on Candle.
#[derive(Debug, Clone, Copy, Default)]
pub struct CandleFactory;

/// Candle's factory.
pub fn factory() -> Box<dyn BackendFactory> {
    Box::new(CandleFactory)
}

/// Loads target and draft on Candle.
///
/// # Errors
/// As [`BackendFactory::load`].
pub fn load(request: &LoadRequest) -> Result<Loaded> {
    CandleFactory.load(request)
}

impl BackendFactory for CandleFactory {
    fn name(&self) -> &'static str {
        "candle"
    }

    fn devices(&self) -> Vec<DeviceInfo> {
        vec![DeviceInfo {
            class: DeviceClass::Cpu,
            name: "cpu".into(),
        }]
    }

    fn supports(&self, model: &ModelInfo) -> Support {
        match &model.config.quantization {
            Some(_) => {
                Support::Refused("quantized checkpoints are not computed by this backend".into())
            }
            None => Support::Native,
        }
    }

    fn load(&self, request: &LoadRequest) -> Result<Loaded> {
        if request.device == Some(DeviceClass::Gpu) {
            return Err(Error::Unavailable {
                what: "device `gpu`".into(),
                reason: "this build of the candle backend has no GPU device".into(),
                hint: Some("leave `--device` out, or build with a GPU feature".into()),
            });
        }
        if let Some(dtype) = request.dtype.filter(|d| *d != DType::F32) {
            let reason =
                format!("activations in {dtype} are not computed on the processor, expected f32");
            return Err(Error::request("dtype", reason)
                .with_hint("use `--dtype f32` or `auto`; weights stay in their file's format"));
        }
        let cores = || std::thread::available_parallelism().map_or(1, usize::from);
        let threads = request.threads.unwrap_or_else(cores);
        if threads == 0 {
            return Err(Error::request(
                "threads",
                "0 is out of range, expected at least 1",
            ));
        }
        load_on(&CandleCpu::new(threads), threads, request)
    }
}
