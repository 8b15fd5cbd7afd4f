//! The format of activations on a GPU.

use dflash_core::load::{LoadRequest, ModelFiles, ModelSource};
use dflash_core::{DType, Error, Result};

/// Chooses the format for a request, and notes what that means for its files.
///
/// # Errors
/// A file cannot be read, or float16 is asked for with a draft.
pub(crate) fn choose(request: &mut LoadRequest) -> Result<DType> {
    let target = stored(&request.target)?;
    let draft = request.draft.as_ref().map(stored).transpose()?;
    let (dtype, notes) = decide(request.dtype, target, draft)?;
    request.notes.extend(notes);
    Ok(dtype)
}

/// The format of most of a model's bytes.
fn stored(source: &ModelSource) -> Result<DType> {
    let files = ModelFiles::open(source)?;
    let bytes_in = |dtype: DType| -> usize {
        let tensors = files.checkpoint.tensors();
        tensors
            .filter(|t| t.dtype.float() == Some(dtype))
            .map(|t| t.bytes)
            .sum()
    };
    Ok([DType::F32, DType::Bf16, DType::F16]
        .into_iter()
        .max_by_key(|d| bytes_in(*d))
        .unwrap_or(DType::F32))
}

/// The request's format, else the target file's; float16 only if it is asked for, and never with a draft.
fn decide(
    asked: Option<DType>,
    target: DType,
    draft: Option<DType>,
) -> Result<(DType, Vec<String>)> {
    let mut notes = Vec::new();
    let dtype = match (asked, target) {
        (Some(DType::F16), _) if draft.is_some() => {
            let reason = "drafts overflow in f16, expected bf16 or f32";
            return Err(Error::request("dtype", reason)
                .with_hint("use `--dtype auto`, or load the target without a draft"));
        }
        (Some(dtype), _) => dtype,
        (None, DType::F16) => {
            notes
                .push("activations are f32: the files are f16, which overflows above 65504".into());
            DType::F32
        }
        (None, stored) => stored,
    };
    for (model, stored) in [("target", Some(target)), ("draft", draft)] {
        match stored {
            Some(DType::F32) if dtype != DType::F32 => notes.push(format!(
                "{model}: matrices are f32 in the file and stay so; activations are {dtype} between products"
            )),
            Some(stored) if stored != dtype => notes.push(format!(
                "{model}: matrices are {stored} in the file and are widened to f32 in memory, for activations in {dtype}"
            )),
            _ => {}
        }
    }
    Ok((dtype, notes))
}

#[cfg(test)]
mod tests {
    use super::*;
    use DType::{Bf16, F16, F32};

    #[test]
    fn activations_follow_the_file() {
        for stored in [Bf16, F32] {
            let found = decide(None, stored, Some(stored)).expect("a format");
            assert_eq!(found, (stored, vec![]));
        }
        let (dtype, notes) = decide(None, F16, None).expect("a format");
        assert_eq!((dtype, notes.len()), (F32, 2), "{notes:?}");
    }

    #[test]
    fn what_differs_from_a_file_is_noted() {
        let (dtype, notes) = decide(Some(F32), Bf16, Some(Bf16)).expect("a format");
        assert_eq!((dtype, notes.len()), (F32, 2));
        assert!(notes[0].contains("target") && notes[0].contains("widened"));
        let (dtype, notes) = decide(None, Bf16, Some(F32)).expect("a format");
        assert_eq!((dtype, notes.len()), (Bf16, 1));
        assert!(notes[0].contains("draft") && notes[0].contains("stay so"));
    }

    #[test]
    fn half_precision_is_for_targets_that_ask() {
        assert_eq!(
            decide(Some(F16), F16, None).expect("a format"),
            (F16, vec![])
        );
        let error = decide(Some(F16), F16, Some(Bf16)).expect_err("drafts overflow");
        assert!(error.is_usage() && error.hint().is_some());
    }
}
