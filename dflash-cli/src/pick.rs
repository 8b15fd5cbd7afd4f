//! The built-in backends, and how one is picked for a model.

use dflash_core::backend::factory::{BackendFactory, DeviceClass, Support};
use dflash_core::models::ModelInfo;
use dflash_core::{Error, Result};

use crate::load::BackendChoice;

/// Backends that a build can bring, with the feature that does.
pub const BUILD_FEATURES: [(&str, &str); 2] = [("mlx", MLX_FEATURE), ("candle", "candle")];

/// What brings GPUs.
const GPU_BUILDS: &str =
    "Apple's GPUs come with a build on macOS, NVIDIA's with the feature `candle-cuda`";

const MLX_FEATURE: &str = if cfg!(target_os = "macos") {
    "mlx"
} else {
    "mlx-host"
};

/// The built-in backends, the preferred one first.
pub fn factories() -> Vec<Box<dyn BackendFactory>> {
    vec![
        #[cfg(all(feature = "mlx", target_os = "macos"))]
        dflash_mlx::factory(),
        #[cfg(feature = "candle")]
        dflash_candle::factory(),
        // Elsewhere MLX computes on the processor, where candle's kernels are faster.
        #[cfg(all(feature = "mlx-host", not(target_os = "macos")))]
        dflash_mlx::factory(),
        dflash_core::backend::reference::factory(),
    ]
}

/// Picks a backend for a model, and says why that one.
///
/// # Errors
/// [`Error::Unavailable`] if the named backend or the device is not to be had here, or not for this model;
/// [`Error::Unsupported`] if no backend runs the model, with each one's reason.
pub fn pick<'f>(
    factories: &'f [Box<dyn BackendFactory>],
    choice: &BackendChoice,
    device: Option<DeviceClass>,
    model: &ModelInfo,
) -> Result<(&'f dyn BackendFactory, String)> {
    match choice {
        BackendChoice::Named(name) => named(factories, name, device, model),
        BackendChoice::Auto => automatic(factories, device, model),
    }
}

fn named<'f>(
    factories: &'f [Box<dyn BackendFactory>],
    name: &str,
    device: Option<DeviceClass>,
    model: &ModelInfo,
) -> Result<(&'f dyn BackendFactory, String)> {
    let Some(factory) = factories.iter().find(|f| f.name() == name) else {
        return Err(Error::Unavailable {
            what: format!("backend `{name}`"),
            reason: format!("it is not built in; available: auto, {}", names(factories)),
            hint: Some(missing_features(factories)),
        });
    };
    has_device(factory.as_ref(), device)?;
    match factory.supports(model) {
        Support::Native => Ok((factory.as_ref(), "asked for by name".into())),
        Support::Converted(how) => Ok((factory.as_ref(), format!("asked for by name; {how}"))),
        Support::Refused(reason) => {
            let others: Vec<_> = factories
                .iter()
                .filter(|f| has_device(f.as_ref(), device).is_ok())
                .filter(|f| !matches!(f.supports(model), Support::Refused(_)))
                .map(|f| f.name())
                .collect();
            let available = if others.is_empty() {
                "none".into()
            } else {
                others.join(", ")
            };
            Err(Error::Unavailable {
                what: format!("backend `{name}`"),
                reason: format!(
                    "it does not run this model ({reason}); backends that do: {available}"
                ),
                hint: Some("`--backend auto` takes the first that runs it".into()),
            })
        }
    }
}

fn automatic<'f>(
    factories: &'f [Box<dyn BackendFactory>],
    device: Option<DeviceClass>,
    model: &ModelInfo,
) -> Result<(&'f dyn BackendFactory, String)> {
    let usable: Vec<_> = factories
        .iter()
        .map(AsRef::as_ref)
        .filter(|f| has_device(*f, device).is_ok())
        .collect();
    if usable.is_empty() {
        return Err(Error::Unavailable {
            what: format!(
                "a backend for the device `{}`",
                device.map_or("any", class_name)
            ),
            reason: format!("none of those built in has it ({})", device_list(factories)),
            hint: Some(missing_features(factories)),
        });
    }
    let answers: Vec<_> = usable.into_iter().map(|f| (f, f.supports(model))).collect();
    let mut passed_over = Vec::new();
    for (factory, answer) in &answers {
        match answer {
            Support::Native => {
                return Ok((
                    *factory,
                    reason("the first that runs this model as it is", &passed_over),
                ));
            }
            Support::Converted(how) => {
                passed_over.push(format!("{} would convert it: {how}", factory.name()))
            }
            Support::Refused(why) => passed_over.push(format!("{}: {why}", factory.name())),
        }
    }
    let converted = answers.iter().find_map(|(factory, answer)| match answer {
        Support::Converted(how) => {
            Some((*factory, format!("the first that runs this model; {how}")))
        }
        _ => None,
    });
    converted.ok_or_else(|| {
        let refusals = passed_over.join("; ");
        let error = Error::unsupported(format!("this model ({refusals})"));
        error.with_hint("`dflash inspect` shows what each backend says")
    })
}

fn reason(main: &str, passed_over: &[String]) -> String {
    if passed_over.is_empty() {
        main.into()
    } else {
        format!("{main} ({})", passed_over.join("; "))
    }
}

/// Whether a backend has a device of the wanted class, or any.
fn has_device(factory: &dyn BackendFactory, wanted: Option<DeviceClass>) -> Result<()> {
    let devices = factory.devices();
    if devices.iter().any(|d| wanted.is_none_or(|w| w == d.class)) {
        return Ok(());
    }
    let names = devices
        .iter()
        .map(|d| d.name.as_str())
        .collect::<Vec<_>>()
        .join(", ");
    let what = wanted.map_or_else(
        || format!("backend `{}`", factory.name()),
        |w| format!("device `{}`", class_name(w)),
    );
    let reason = match devices.len() {
        0 => unusable(factory),
        _ => format!("the backend `{}` runs here on: {names}", factory.name()),
    };
    let hint = (wanted == Some(DeviceClass::Gpu)).then(|| GPU_BUILDS.into());
    Err(Error::Unavailable { what, reason, hint })
}

fn unusable(factory: &dyn BackendFactory) -> String {
    let why = factory.unusable().map(|why| format!(" ({why})"));
    format!(
        "the backend `{}` is built in but has no usable device here{}",
        factory.name(),
        why.unwrap_or_default()
    )
}

/// What is to be noted of backends that would have come before the picked one, had they a device.
pub(crate) fn passed_over(
    factories: &[Box<dyn BackendFactory>],
    picked: &dyn BackendFactory,
) -> Vec<String> {
    factories
        .iter()
        .map(AsRef::as_ref)
        .take_while(|f| f.name() != picked.name())
        .filter(|f| f.devices().is_empty())
        .map(|f| format!("{}; `{}` is used", unusable(f), picked.name()))
        .collect()
}

/// The name that `--device` takes.
const fn class_name(class: DeviceClass) -> &'static str {
    match class {
        DeviceClass::Cpu => "cpu",
        DeviceClass::Gpu => "gpu",
    }
}

fn names(factories: &[Box<dyn BackendFactory>]) -> String {
    factories
        .iter()
        .map(|f| f.name())
        .collect::<Vec<_>>()
        .join(", ")
}

fn device_list(factories: &[Box<dyn BackendFactory>]) -> String {
    let of = |f: &dyn BackendFactory| {
        f.devices()
            .iter()
            .map(|d| d.name.clone())
            .collect::<Vec<_>>()
            .join(" and ")
    };
    factories
        .iter()
        .map(|f| format!("{}: {}", f.name(), of(f.as_ref())))
        .collect::<Vec<_>>()
        .join(", ")
}

/// Says which features bring the backends that this build lacks.
fn missing_features(factories: &[Box<dyn BackendFactory>]) -> String {
    let absent = BUILD_FEATURES
        .iter()
        .filter(|(name, _)| !factories.iter().any(|f| f.name() == *name));
    let lines: Vec<_> = absent
        .map(|(name, feature)| format!("the feature `{feature}` brings the backend `{name}`"))
        .collect();
    match lines.is_empty() {
        true => format!("this build has every backend of this version; {GPU_BUILDS}"),
        false => lines.join("; "),
    }
}
