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
        let mut request = request.clone();
        if let Some(threads) = request.threads.filter(|t| *t != 1) {
            request.notes.push(format!(
                "{threads} threads were asked for; the reference backend uses one"
            ));
        }
        load_on(&Reference::new(), 1, &request)
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::load::ModelSource;

    #[test]
    fn unused_threads_are_noted() {
        let target = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/nano/target");
        let notes = |threads| {
            let request = LoadRequest {
                threads,
                notes: vec!["decided before loading".into()],
                ..LoadRequest::new(ModelSource::Folder(target.clone()))
            };
            let loaded = ReferenceFactory.load(&request).expect("loads");
            let report = loaded.engine.report();
            assert_eq!(report.threads, 1);
            report.notes.clone()
        };
        let (asked, quiet) = (notes(Some(3)), notes(None));
        assert_eq!(quiet[0], "decided before loading");
        assert_eq!(notes(Some(1)), quiet);
        assert_eq!(asked[0], quiet[0]);
        assert!(
            asked[1].contains("3 threads") && asked[1].contains("one"),
            "{asked:?}"
        );
        assert_eq!(asked[2..], quiet[1..]);
    }
}
