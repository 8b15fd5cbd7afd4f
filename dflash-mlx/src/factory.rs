//! MLX as a choice at load time.

use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use dflash_core::backend::factory::{BackendFactory, DeviceClass, DeviceInfo, Support};
use dflash_core::backend::{Chip, Implementation, Op};
use dflash_core::draft::DraftModule;
use dflash_core::load::{
    DraftPlan, LoadRequest, Loaded, ModelFiles, ModelSource, Role, activations, load_with,
};
use dflash_core::metal::tried;
use dflash_core::models::ModelInfo;
use dflash_core::{DType, Error, Result};
use mlx_rs::{Device, DeviceType};

use crate::array::at;
use crate::backend::Mlx;
use crate::kernels::device::architecture;
use crate::limits;
use crate::weight::Place;

/// Loads models on MLX.
#[derive(Debug, Clone, Copy, Default)]
pub struct MlxFactory;

/// MLX's factory.
pub fn factory() -> Box<dyn BackendFactory> {
    Box::new(MlxFactory)
}

/// Loads target and draft on MLX.
///
/// # Errors
/// As [`BackendFactory::load`].
pub fn load(request: &LoadRequest) -> Result<Loaded> {
    MlxFactory.load(request)
}

impl BackendFactory for MlxFactory {
    fn name(&self) -> &'static str {
        "mlx"
    }

    fn devices(&self) -> Vec<DeviceInfo> {
        let info = |class, name: &str| DeviceInfo {
            class,
            name: name.into(),
        };
        let (gpu, cpu) = (
            info(DeviceClass::Gpu, "metal"),
            info(DeviceClass::Cpu, "cpu"),
        );
        match gpu_state() {
            Ok(()) => vec![gpu, cpu],
            // A Mac whose GPU cannot be used has better processor kernels than MLX's.
            Err(_) if cfg!(target_os = "macos") => Vec::new(),
            Err(_) => vec![cpu],
        }
    }

    fn unusable(&self) -> Option<String> {
        let state = gpu_state().as_ref();
        state.err().filter(|_| cfg!(target_os = "macos")).cloned()
    }

    fn supports(&self, _: &ModelInfo) -> Support {
        Support::Native
    }

    fn operations(&self) -> Vec<(Op, Implementation)> {
        Op::ALL
            .into_iter()
            .map(|op| (op, Mlx::serves(op)))
            .collect()
    }

    fn load(&self, request: &LoadRequest) -> Result<Loaded> {
        let gpu = gpu_state().is_ok();
        let wanted = request.device.unwrap_or(if gpu {
            DeviceClass::Gpu
        } else {
            DeviceClass::Cpu
        });
        if wanted == DeviceClass::Gpu && !gpu {
            return Err(Error::Unavailable {
                what: "device `gpu`".into(),
                reason: "MLX has no Metal device here".into(),
                hint: Some("leave `--device` out to use the processor".into()),
            });
        }
        let mut request = request.clone();
        if request.threads == Some(0) {
            return Err(Error::request(
                "threads",
                "0 is out of range, expected at least 1",
            ));
        }
        if let Some(threads) = request.threads {
            request.notes.push(format!(
                "threads: {threads} is not used by MLX, which has its own"
            ));
        }
        let (place, chip) = match wanted {
            DeviceClass::Gpu => (
                Place::Metal,
                Chip::from_architecture(&architecture(DeviceType::Gpu).unwrap_or_default()),
            ),
            DeviceClass::Cpu => (Place::Processor, Chip::Processor),
        };
        let dtype = request
            .dtype
            .unwrap_or_else(|| activations(chip, Role::Target).0);
        let plan = DraftPlan::for_request(chip, request.dtype, &request)?;
        let all = |_: &str| true;
        request
            .notes
            .extend(widened(&request.target, "target", dtype, all)?);
        if let (Some(draft), Some(plan)) = (&request.draft, &plan) {
            let kept = |name: &str| {
                let module = DraftModule::of(name);
                plan.quantize.is_none() || !module.is_some_and(DraftModule::is_quantized)
            };
            let note = widened(draft, "draft", plan.dtype, kept)?;
            request.notes.extend(note);
        }
        let mut chosen = chosen();
        admit(*chosen, wanted)?;
        Device::set_default(&match wanted {
            DeviceClass::Gpu => Device::gpu(),
            DeviceClass::Cpu => Device::cpu(),
        });
        let mut backend = Mlx::new(place, dtype);
        if wanted == DeviceClass::Gpu {
            request.notes.extend(limits::set_for_gpu());
            let (kept, notes) = tried(request.kernels, |switches| backend.with_kernels(switches));
            request.notes.extend(request.kernels.note());
            request.notes.extend(notes);
            backend = backend.with_kernels(kept);
        }
        let drafting = plan.map(|plan| (backend.with_dtype(plan.dtype), plan));
        let planned = drafting.as_ref().map(|(b, plan)| (b, plan.clone()));
        let loaded = load_with(&backend, planned, 1, &request);
        match loaded {
            Ok(_) => *chosen = Some(wanted),
            // What a failed load left behind for reuse is of no use to anybody.
            Err(_) => at("clear_cache", mlx_rs::memory::clear_cache())?,
        }
        loaded
    }
}

/// The device of the models that were loaded so far. MLX has one default device in a process, on which all of them compute.
fn chosen() -> MutexGuard<'static, Option<DeviceClass>> {
    static CHOSEN: Mutex<Option<DeviceClass>> = Mutex::new(None);
    CHOSEN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Refuses a second device in one process.
fn admit(chosen: Option<DeviceClass>, wanted: DeviceClass) -> Result<()> {
    match chosen {
        Some(other) if other != wanted => Err(Error::Unavailable {
            what: match wanted {
                DeviceClass::Gpu => "device `gpu`".into(),
                DeviceClass::Cpu => "device `cpu`".into(),
            },
            reason: "models of this process were loaded with MLX on another device, and MLX computes on one per process".into(),
            hint: Some("use another process, or another backend".into()),
        }),
        _ => Ok(()),
    }
}

/// A note if those of a model's plain matrices that `concerns` names do not have the format of the activations.
fn widened(
    source: &ModelSource,
    model: &str,
    activations: DType,
    concerns: impl Fn(&str) -> bool,
) -> Result<Option<String>> {
    let files = ModelFiles::open(source)?;
    let other = |dtype: DType| dtype != activations && dtype != DType::F32;
    let bytes: usize = files
        .checkpoint
        .tensors()
        .filter(|t| t.shape.len() > 1 && t.dtype.float().is_some_and(other) && concerns(t.name))
        .map(|t| t.bytes)
        .sum();
    Ok((bytes > 0).then(|| {
        format!("{model}: {bytes} bytes of matrices are widened to f32 in memory, because activations are {activations}")
    }))
}

/// Whether MLX computes on a GPU here, or why not: asked of its default device before anything chose another.
fn gpu_state() -> &'static Result<(), String> {
    static KNOWN: OnceLock<Result<(), String>> = OnceLock::new();
    KNOWN.get_or_init(|| {
        let default = Device::try_default().and_then(|d| d.get_type());
        match default {
            Ok(DeviceType::Gpu) if cfg!(target_os = "macos") => computes(),
            Ok(_) => Err("MLX finds no Metal device".into()),
            Err(error) => Err(error.to_string()),
        }
    })
}

/// Whether the default device computes at all: without Metal's compiled kernels beside the program
/// the first operation fails.
fn computes() -> Result<(), String> {
    let one = mlx_rs::Array::from_f32(1.0);
    let two = one.add(&one).and_then(|two| two.eval());
    two.map_err(|e| format!("{e}; is `mlx.metallib` beside the program?"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_computes_on_one_device() {
        use DeviceClass::{Cpu, Gpu};
        for (chosen, wanted) in [(None, Cpu), (None, Gpu), (Some(Cpu), Cpu), (Some(Gpu), Gpu)] {
            admit(chosen, wanted).expect("the first, or the same one");
        }
        let error = admit(Some(Gpu), Cpu).expect_err("a second device");
        assert!(error.to_string().contains("one per process"), "{error}");
        assert!(error.hint().is_some());
    }
}
