//! Candle as a choice at load time.

use std::sync::OnceLock;

use candle_core::Device;
use dflash_core::backend::factory::{BackendFactory, DeviceClass, DeviceInfo, Support};
use dflash_core::backend::{Backend, Chip, Implementation, Op};
use dflash_core::config::DraftQuant;
use dflash_core::load::{DraftPlan, LoadRequest, Loaded, ModelFiles, load_on, load_with};
use dflash_core::models::ModelInfo;
use dflash_core::{DType, Error, Result};

use crate::cpu::CandleCpu;
use crate::device::CandleDevice;
use crate::format;

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

/// Why there is no GPU.
#[derive(Debug, Clone, PartialEq, Eq)]
enum NoGpu {
    /// This build has code for none.
    NotBuilt,
    /// It could not be started: device and reason.
    Failed(String),
}

/// Where a model is loaded.
#[derive(Debug, PartialEq, Eq)]
enum Place<D> {
    Cpu,
    Gpu(D),
}

impl BackendFactory for CandleFactory {
    fn name(&self) -> &'static str {
        "candle"
    }

    fn devices(&self) -> Vec<DeviceInfo> {
        let info = |class, name: &str| DeviceInfo {
            class,
            name: name.into(),
        };
        let gpu = known_gpu()
            .as_ref()
            .ok()
            .map(|name| info(DeviceClass::Gpu, name));
        gpu.into_iter()
            .chain([info(DeviceClass::Cpu, "cpu")])
            .collect()
    }

    fn supports(&self, _: &ModelInfo) -> Support {
        Support::Native
    }

    fn operations(&self) -> Vec<(Op, Implementation)> {
        let cpu = CandleCpu::new(1);
        let serves = |op| match known_gpu() {
            Ok(_) => CandleDevice::serves(op),
            Err(_) => cpu.implementation(op),
        };
        Op::ALL.into_iter().map(|op| (op, serves(op))).collect()
    }

    fn load(&self, request: &LoadRequest) -> Result<Loaded> {
        let (place, note) = choose(request.device, open_gpu, || packed(request))?;
        let mut request = request.clone();
        request.notes.extend(note);
        match place {
            Place::Cpu => load_cpu(&request),
            Place::Gpu(device) => load_gpu(device, request),
        }
    }
}

fn load_cpu(request: &LoadRequest) -> Result<Loaded> {
    if let Some(dtype) = request.dtype.filter(|d| *d != DType::F32) {
        let reason =
            format!("activations in {dtype} are not computed on the processor, expected f32");
        return Err(Error::request("dtype", reason)
            .with_hint("use `--dtype f32` or `auto`; weights stay in their file's format"));
    }
    let cores = || std::thread::available_parallelism().map_or(1, usize::from);
    let threads = request.threads.unwrap_or_else(cores);
    check_threads(threads)?;
    load_on(&CandleCpu::new(threads), threads, request)
}

fn load_gpu(device: Device, mut request: LoadRequest) -> Result<Loaded> {
    let plan = DraftPlan::for_request(chip(&device), request.dtype, &request)?;
    let dtype = format::choose(&mut request, plan.as_ref())?;
    if let Some(threads) = request.threads {
        check_threads(threads)?;
        request
            .notes
            .push(format!("threads: {threads} is not used on a GPU"));
    }
    let backend = CandleDevice::new(device, dtype);
    let drafting = plan.map(|plan| (backend.with_dtype(plan.dtype), plan));
    let planned = drafting.as_ref().map(|(b, plan)| (b, plan.clone()));
    load_with(&backend, planned, 1, &request)
}

/// What a GPU computes with.
fn chip(device: &Device) -> Chip {
    #[cfg(all(feature = "metal", target_os = "macos"))]
    if let Ok(metal) = device.as_metal_device() {
        return Chip::from_architecture(&metal.metal_device().architecture_name());
    }
    // The processor stands in for a GPU in tests.
    debug_assert!(!device.is_metal());
    Chip::Gpu
}

fn check_threads(threads: usize) -> Result<()> {
    if threads == 0 {
        let reason = "0 is out of range, expected at least 1";
        return Err(Error::request("threads", reason));
    }
    Ok(())
}

/// Whether a model of the request is quantized, in its file or at load.
fn packed(request: &LoadRequest) -> Result<bool> {
    let target = ModelFiles::open(&request.target)?.target_config()?;
    let draft = match &request.draft {
        Some(source) => ModelFiles::open(source)?.draft_config()?.quantization,
        None => None,
    };
    let at_load = matches!(request.draft_quant, DraftQuant::Packed(_));
    Ok(target.quantization.is_some() || draft.is_some() || at_load)
}

/// The processor if it is asked for, the GPU if it is asked for, else the GPU where it starts and
/// computes the files as they are. A note if a GPU is not used though nobody asked for the processor.
fn choose<D>(
    wanted: Option<DeviceClass>,
    open: impl FnOnce() -> Result<D, NoGpu>,
    packed: impl FnOnce() -> Result<bool>,
) -> Result<(Place<D>, Option<String>)> {
    if wanted == Some(DeviceClass::Cpu) {
        return Ok((Place::Cpu, None));
    }
    match (open(), wanted) {
        (Ok(_), None) if packed()? => Ok((
            Place::Cpu,
            Some("packed weights are not computed on the GPU; the processor is used".into()),
        )),
        (Ok(gpu), _) => Ok((Place::Gpu(gpu), None)),
        (Err(NoGpu::NotBuilt), None) => Ok((Place::Cpu, None)),
        (Err(NoGpu::Failed(reason)), None) => Ok((
            Place::Cpu,
            Some(format!(
                "the GPU cannot be used ({reason}); the processor is used"
            )),
        )),
        (Err(why), Some(_)) => Err(unavailable(why)),
    }
}

fn unavailable(why: NoGpu) -> Error {
    let (reason, hint) = match why {
        NoGpu::NotBuilt => (
            "this build of the candle backend has no GPU device".into(),
            "Apple's GPUs come with a build on macOS, NVIDIA's with the feature `candle-cuda`; leave `--device` out to use the processor",
        ),
        NoGpu::Failed(reason) => (reason, "leave `--device` out to use the processor"),
    };
    Error::Unavailable {
        what: "device `gpu`".into(),
        reason,
        hint: Some(hint.into()),
    }
}

/// The name of the GPU that starts here, asked once per process.
fn known_gpu() -> &'static Result<&'static str, NoGpu> {
    static KNOWN: OnceLock<Result<&'static str, NoGpu>> = OnceLock::new();
    KNOWN.get_or_init(|| open_gpu().map(|device| if device.is_metal() { "metal" } else { "cuda" }))
}

/// The first GPU of the libraries that this build has.
fn open_gpu() -> Result<Device, NoGpu> {
    type Open = fn() -> candle_core::Result<Device>;
    let built: [(bool, &str, Open); 2] = [
        (
            cfg!(all(feature = "metal", target_os = "macos")),
            "metal",
            || Device::new_metal(0),
        ),
        (cfg!(feature = "cuda"), "cuda", || Device::new_cuda(0)),
    ];
    let mut reasons = Vec::new();
    for (_, name, open) in built.iter().filter(|(built, ..)| *built) {
        match started(*open) {
            Ok(device) => return Ok(device),
            Err(reason) => reasons.push(format!("{name}: {reason}")),
        }
    }
    Err(if reasons.is_empty() {
        NoGpu::NotBuilt
    } else {
        NoGpu::Failed(reasons.join("; "))
    })
}

/// Starts a device. Candle panics instead of failing on a Mac without a GPU and on a machine without NVIDIA's driver.
fn started<D>(
    open: impl FnOnce() -> candle_core::Result<D> + std::panic::UnwindSafe,
) -> Result<D, String> {
    match std::panic::catch_unwind(open) {
        Ok(opened) => opened.map_err(|e| e.to_string()),
        Err(panic) => {
            let text = panic
                .downcast_ref::<String>()
                .map(String::as_str)
                .or_else(|| panic.downcast_ref::<&str>().copied());
            Err(text.unwrap_or("no device was found").into())
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use dflash_core::backend::Exactness;
    use dflash_core::load::ModelSource;
    use dflash_core::testing::golden;

    use super::*;

    #[test]
    fn a_gpu_that_starts_is_preferred() {
        let opened = || Ok::<_, NoGpu>("gpu");
        for wanted in [None, Some(DeviceClass::Gpu)] {
            assert_eq!(
                choose(wanted, opened, || Ok(false)).expect("there is one"),
                (Place::Gpu("gpu"), None)
            );
        }
        let untouched = || -> Result<&str, NoGpu> { panic!("the GPU was not asked for") };
        assert_eq!(
            choose(Some(DeviceClass::Cpu), untouched, || Ok(true)).expect("always"),
            (Place::Cpu, None)
        );
    }

    #[test]
    fn packed_files_are_for_the_processor() {
        let opened = || Ok::<_, NoGpu>("gpu");
        let (place, note) = choose(None, opened, || Ok(true)).expect("the processor is there");
        assert_eq!(place, Place::Cpu);
        assert!(note.is_some_and(|n| n.contains("packed")));
        let asked = choose(Some(DeviceClass::Gpu), opened, || Ok(true)).expect("as asked");
        assert_eq!(asked, (Place::Gpu("gpu"), None));
        let target = LoadRequest::new(recorded("mlx-4bit"));
        assert!(packed(&target).expect("a target"));
        assert!(!packed(&pair()).expect("a pair"));
        let quantized = LoadRequest {
            draft_quant: "w4:gs32".parse().expect("a spec"),
            ..pair()
        };
        assert!(packed(&quantized).expect("a pair"));
        let refused = load_gpu(Device::Cpu, target).map(|l| l.engine.report().dtype);
        let error = refused.expect_err("the GPU does not compute it");
        assert!(matches!(error, Error::Unsupported { .. }), "{error}");
        assert!(error.hint().is_some_and(|h| h.contains("--device cpu")));
    }

    #[test]
    fn a_gpu_that_does_not_start_is_noted_or_an_error() {
        let failed = || Err::<(), _>(NoGpu::Failed("metal: no device".into()));
        let (place, note) = choose(None, failed, || Ok(false)).expect("the processor is there");
        assert_eq!(place, Place::Cpu);
        assert!(note.is_some_and(|n| n.contains("metal: no device")));
        let error =
            choose(Some(DeviceClass::Gpu), failed, || Ok(false)).expect_err("it was asked for");
        assert!(error.to_string().contains("metal: no device"), "{error}");
        assert!(error.is_usage());
    }

    #[test]
    fn a_build_without_gpus_says_which_feature_brings_them() {
        let none = || Err::<(), _>(NoGpu::NotBuilt);
        assert_eq!(
            choose(None, none, || Ok(true)).expect("the processor is there"),
            (Place::Cpu, None)
        );
        let error =
            choose(Some(DeviceClass::Gpu), none, || Ok(true)).expect_err("it was asked for");
        let hint = error.hint().expect("how to get it");
        assert!(hint.contains("macOS") && hint.contains("candle-cuda"));
    }

    #[test]
    fn a_panic_while_starting_is_a_reason() {
        let failed = |open: fn() -> candle_core::Result<()>| started(open).expect_err("fails");
        assert_eq!(failed(|| panic!("no driver")), "no driver");
        assert!(failed(|| candle_core::bail!("refused")).contains("refused"));
    }

    /// A model of a recorded folder.
    fn recorded(name: &str) -> ModelSource {
        let golden = concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../dflash-core/tests/golden/qwen3"
        );
        ModelSource::Folder(Path::new(golden).join(name))
    }

    /// A request for a recorded pair, whose files are bf16.
    fn pair() -> LoadRequest {
        LoadRequest {
            draft: Some(recorded("d1")),
            ..LoadRequest::new(recorded("target"))
        }
    }

    #[test]
    fn activations_have_the_format_of_the_file() {
        let request = LoadRequest {
            threads: Some(3),
            ..pair()
        };
        let mut loaded = load_gpu(Device::Cpu, request).expect("the pair loads");
        let report = loaded.engine.report();
        assert_eq!(report.dtype, DType::Bf16);
        assert_eq!(report.exactness, Exactness::TieTolerant);
        let ignored = |n: &String| n.contains("threads: 3 is not used");
        assert_eq!(report.notes.iter().filter(|n| ignored(n)).count(), 1);
        let request = golden::request(&[3, 1, 4, 1, 5], 24);
        let report = golden::generate(&mut loaded, &request).expect("it runs");
        assert_eq!(report.tokens.len(), 24);
        assert!(report.draft_active && report.drafted > 0, "{report:?}");
    }

    #[test]
    fn an_asked_format_is_used_with_a_note_or_refused() {
        let with = |dtype, threads| LoadRequest {
            dtype: Some(dtype),
            threads,
            ..pair()
        };
        let loaded = load_gpu(Device::Cpu, with(DType::F32, None)).expect("the pair loads");
        let report = loaded.engine.report();
        assert_eq!(report.dtype, DType::F32);
        let widened = |n: &&String| n.contains("widened to f32");
        assert_eq!(report.notes.iter().filter(widened).count(), 2, "{report:?}");
        for request in [with(DType::F16, None), with(DType::F32, Some(0))] {
            let refused = load_gpu(Device::Cpu, request).map(|l| l.engine.report().dtype);
            assert!(matches!(refused, Err(Error::Request { .. })), "{refused:?}");
        }
    }

    #[test]
    fn the_processor_is_always_there() {
        let devices = CandleFactory.devices();
        assert_eq!(devices.last().expect("one").class, DeviceClass::Cpu);
        assert_eq!(CandleFactory.operations().len(), Op::ALL.len());
    }
}
