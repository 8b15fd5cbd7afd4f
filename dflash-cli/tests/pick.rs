//! Which backend runs a model, and why.

use dflash::{
    BackendChoice, BackendFactory, DeviceClass, DeviceInfo, Error, LoadOptions, LoadRequest,
    Loaded, ModelSource, Result, Support, demo, factories, load_among, model_info, pick,
};
use dflash_core::load::ModelFiles;
use dflash_core::models::ModelInfo;

fn info() -> ModelInfo {
    let files =
        ModelFiles::open(&ModelSource::Embedded(&demo::TARGET)).expect("the demonstration model");
    let config = files.target_config().expect("its config");
    model_info(&files, config)
}

/// A backend that is only asked.
#[derive(Debug)]
struct Asked {
    name: &'static str,
    devices: &'static [DeviceClass],
    answer: Support,
}

impl BackendFactory for Asked {
    fn name(&self) -> &'static str {
        self.name
    }

    fn devices(&self) -> Vec<DeviceInfo> {
        self.devices
            .iter()
            .map(|class| DeviceInfo {
                class: *class,
                name: format!("{class:?}"),
            })
            .collect()
    }

    fn unusable(&self) -> Option<String> {
        self.devices.is_empty().then(|| "no such chip".to_owned())
    }

    fn supports(&self, model: &ModelInfo) -> Support {
        assert_eq!(
            (model.formats.as_slice(), model.tensors),
            ([("BF16".to_owned(), 108)].as_slice(), 108)
        );
        self.answer.clone()
    }

    fn load(&self, _request: &LoadRequest) -> Result<Loaded> {
        Err(Error::unsupported("loading"))
    }
}

const CPU: &[DeviceClass] = &[DeviceClass::Cpu];
const GPU: &[DeviceClass] = &[DeviceClass::Gpu];

fn asked(
    name: &'static str,
    devices: &'static [DeviceClass],
    answer: Support,
) -> Box<dyn BackendFactory> {
    Box::new(Asked {
        name,
        devices,
        answer,
    })
}

fn refused() -> Support {
    Support::Refused("no such format".into())
}

fn converted() -> Support {
    Support::Converted("widened to f32".into())
}

#[test]
fn the_first_that_runs_it_natively() {
    let list = [
        asked("a", CPU, refused()),
        asked("b", CPU, converted()),
        asked("c", CPU, Support::Native),
        asked("d", CPU, Support::Native),
    ];
    let (factory, reason) =
        pick(&list, &BackendChoice::Auto, None, &info()).expect("one that runs it");
    assert_eq!(factory.name(), "c");
    assert!(
        reason.contains("a: no such format")
            && reason.contains("b would convert it: widened to f32"),
        "{reason}"
    );
}

#[test]
fn else_the_first_that_converts_it() {
    let list = [
        asked("a", CPU, refused()),
        asked("b", CPU, converted()),
        asked("c", CPU, converted()),
    ];
    let (factory, reason) =
        pick(&list, &BackendChoice::Auto, None, &info()).expect("one that runs it");
    assert_eq!(factory.name(), "b");
    assert!(reason.contains("widened to f32"), "{reason}");
}

#[test]
fn none_that_runs_it_names_every_reason() {
    let list = [
        asked("a", CPU, refused()),
        asked("b", GPU, Support::Refused("too large".into())),
    ];
    let error = pick(&list, &BackendChoice::Auto, None, &info()).expect_err("nobody runs it");
    assert!(
        !error.is_usage()
            && error
                .to_string()
                .contains("a: no such format; b: too large"),
        "{error}"
    );
}

#[test]
fn the_device_decides_who_is_asked() {
    let list = [
        asked("a", CPU, Support::Native),
        asked("b", &[], Support::Native),
        asked("c", GPU, Support::Native),
    ];
    let on = |device| {
        pick(&list, &BackendChoice::Auto, device, &info()).map(|(factory, _)| factory.name())
    };
    assert_eq!(on(Some(DeviceClass::Gpu)).ok(), Some("c"));
    assert_eq!(on(Some(DeviceClass::Cpu)).ok(), Some("a"));
    let error = pick(
        &list[..2],
        &BackendChoice::Auto,
        Some(DeviceClass::Gpu),
        &info(),
    )
    .expect_err("no GPU");
    assert!(
        error.is_usage() && error.to_string().contains("`gpu`"),
        "{error}"
    );
}

#[test]
fn a_named_one_is_taken_or_refused_but_never_replaced() {
    let list = [
        asked("a", CPU, Support::Native),
        asked("b", &[], Support::Native),
        asked("c", CPU, refused()),
        asked("d", CPU, converted()),
    ];
    let named = |name: &str| {
        pick(&list, &BackendChoice::Named(name.into()), None, &info())
            .map(|(factory, reason)| (factory.name(), reason))
    };
    assert_eq!(named("a").expect("it runs it").0, "a");
    assert!(
        named("d").is_ok_and(|(name, reason)| name == "d" && reason.contains("widened to f32"))
    );
    let error = named("b").expect_err("no device");
    assert!(
        error.is_usage()
            && error
                .to_string()
                .contains("no usable device here (no such chip)"),
        "{error}"
    );
    let error = named("c").expect_err("it refuses");
    assert!(error.is_usage(), "{error}");
    assert!(
        error.to_string().contains("no such format")
            && error.to_string().contains("backends that do: a, d"),
        "{error}"
    );
    let error = named("e").expect_err("not built in");
    assert!(
        error.is_usage() && error.to_string().contains("a, b, c, d") && error.hint().is_some(),
        "{error}"
    );
}

/// A backend that loads with the reference, and is asked before it.
#[test]
fn one_that_is_not_usable_is_passed_over_with_a_note() {
    let mut list = vec![asked("a", &[], Support::Native)];
    list.extend(factories());
    let next = list[1].name();
    let mut options = LoadOptions::new(ModelSource::Embedded(&demo::TARGET));
    let loaded = load_among(&list, &options).expect("the next one runs it");
    let report = loaded.engine.report();
    assert_eq!(report.backend, next);
    let noted = |n: &String| n.contains("`a`") && n.contains("no such chip") && n.contains(next);
    assert!(report.notes.iter().any(noted), "{:?}", report.notes);
    options.backend = BackendChoice::Named("a".into());
    let error = load_among(&list, &options).expect_err("it was named");
    assert!(error.is_usage(), "{error}");
}

#[test]
fn the_reference_backend_is_always_built_in() {
    let list = factories();
    assert_eq!(list.last().map(|f| f.name()), Some("reference"));
    let first = if cfg!(all(feature = "mlx", target_os = "macos")) {
        "mlx"
    } else if cfg!(feature = "candle") {
        "candle"
    } else {
        "reference"
    };
    assert_eq!(list[0].name(), first);
    let reference = &list[list.len() - 1];
    assert_eq!(
        reference.operations().len(),
        dflash_core::backend::Op::ALL.len()
    );
}
