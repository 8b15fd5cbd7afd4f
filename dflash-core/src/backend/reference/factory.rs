//! The naive backend as a choice at load time.

use super::Reference;
use crate::backend::factory::{BackendFactory, DeviceClass, DeviceInfo, Support};
use crate::backend::{Backend, Implementation, Op};
use crate::load::{LoadRequest, Loaded, load_on};
use crate::models::ModelInfo;
use crate::{DType, Error, Result};

/// Loads models on [`Reference`].
#[derive(Debug, Clone, Copy, Default)]
pub struct ReferenceFactory;

/// The naive backend's factory.
pub fn factory() -> Box<dyn BackendFactory> {
    Box::new(ReferenceFactory)
}

impl BackendFactory for ReferenceFactory {
    fn name(&self) -> &'static str {
        "reference"
    }

    fn devices(&self) -> Vec<DeviceInfo> {
        vec![DeviceInfo {
            class: DeviceClass::Cpu,
            name: "cpu".into(),
        }]
    }

    fn supports(&self, _model: &ModelInfo) -> Support {
        Support::Native
    }

    fn operations(&self) -> Vec<(Op, Implementation)> {
        let backend = Reference::new();
        Op::ALL
            .into_iter()
            .map(|op| (op, backend.implementation(op)))
            .collect()
    }

    fn load(&self, request: &LoadRequest) -> Result<Loaded> {
        if request.device == Some(DeviceClass::Gpu) {
            return Err(Error::Unavailable {
                what: "device `gpu`".into(),
                reason: "the reference backend runs on the processor only".into(),
                hint: Some("leave `--device` out, or use another backend".into()),
            });
        }
        if let Some(dtype) = request.dtype.filter(|d| *d != DType::F32) {
            let reason =
                format!("activations in {dtype} are not computed on the processor, expected f32");
            return Err(Error::request("dtype", reason)
                .with_hint("use `--dtype f32` or `auto`; weights stay in their file's format"));
        }
        if let Some(threads) = request.threads.filter(|t| *t != 1) {
            tracing::info!(threads, "the reference backend uses one thread");
        }
        load_on(&Reference::new(), 1, request)
    }
}
