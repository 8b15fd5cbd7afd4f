//! From what a user writes to the files of a model.

use std::path::Path;

use dflash_core::load::ModelSource;
use dflash_core::{Error, Result};

/// Finds a model by its reference: `demo`, `demo:d1`, `demo:d2` (embedded), or a folder.
///
/// A folder of one of those names is reached as `./demo`.
///
/// # Errors
/// [`Error::NotFound`] names where it was looked for; [`Error::Unavailable`] if the program was built without the demonstration models.
pub fn resolve(reference: &str) -> Result<ModelSource> {
    if reference == "demo" || reference.starts_with("demo:") {
        return embedded(reference);
    }
    let path = Path::new(reference);
    let missing = |reason: String| Error::NotFound {
        path: path.into(),
        reason,
    };
    match std::fs::metadata(path) {
        Ok(meta) if meta.is_dir() => Ok(ModelSource::Folder(path.into())),
        Ok(_) => Err(missing(
            "it is a file, expected a folder with config.json and safetensors files".into(),
        )),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Err(missing(nowhere(path))),
        Err(error) => Err(missing(error.to_string())),
    }
}

/// Where a folder was looked for.
fn nowhere(path: &Path) -> String {
    match std::env::current_dir() {
        Ok(here) if path.is_relative() => {
            format!("there is no folder `{}`", here.join(path).display())
        }
        _ => "there is no such folder".into(),
    }
}

#[cfg(feature = "demo")]
fn embedded(name: &str) -> Result<ModelSource> {
    let missing = || Error::NotFound {
        path: name.into(),
        reason: "the embedded models are `demo`, `demo:d1` and `demo:d2`".into(),
    };
    crate::demo::find(name)
        .map(ModelSource::Embedded)
        .ok_or_else(missing)
}

#[cfg(not(feature = "demo"))]
fn embedded(name: &str) -> Result<ModelSource> {
    Err(Error::Unavailable {
        what: format!("the embedded model `{name}`"),
        reason: "this program was built without it".into(),
        hint: Some("build with the feature `demo`, or give a folder".into()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_leads_nowhere_says_where_it_was_looked_for() {
        let error = resolve("org/no-such-model").expect_err("no such folder");
        assert!(
            error.is_usage() && error.to_string().contains("org/no-such-model`"),
            "{error}"
        );
        let here = std::env::current_dir().expect("a working directory");
        assert!(
            error.to_string().contains(&here.display().to_string()),
            "{error}"
        );
        let error = resolve("demo:d9").expect_err("no such draft");
        assert!(error.is_usage(), "{error}");
    }

    #[test]
    fn a_file_is_no_folder() {
        let error = resolve("Cargo.toml").expect_err("a file");
        assert!(error.to_string().contains("it is a file"), "{error}");
    }
}
