//! The format of activations on a GPU.

use dflash_core::load::{DraftPlan, LoadRequest, ModelFiles, ModelSource};
use dflash_core::{DType, Result};

/// Chooses the format of a request's target, and notes what that and the draft's plan mean for its files.
///
/// # Errors
/// A file cannot be read.
pub(crate) fn choose(request: &mut LoadRequest, plan: Option<&DraftPlan>) -> Result<DType> {
    let target = stored(&request.target)?;
    let draft = match (&request.draft, plan) {
        // What is left of a quantized draft's matrices is small.
        (Some(draft), Some(plan)) if plan.weights.is_none() => Some((stored(draft)?, plan.dtype)),
        _ => None,
    };
    let (dtype, notes) = decide(request.dtype, target, draft);
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

/// The request's format, else the target file's; float16 only if it is asked for. `draft`: the formats of its file and of its
/// activations.
fn decide(
    asked: Option<DType>,
    target: DType,
    draft: Option<(DType, DType)>,
) -> (DType, Vec<String>) {
    let mut notes = Vec::new();
    let dtype = match (asked, target) {
        (Some(dtype), _) => dtype,
        (None, DType::F16) => {
            notes
                .push("activations are f32: the files are f16, which overflows above 65504".into());
            DType::F32
        }
        (None, stored) => stored,
    };
    for (model, formats) in [("target", Some((target, dtype))), ("draft", draft)] {
        match formats {
            Some((DType::F32, dtype)) if dtype != DType::F32 => notes.push(format!(
                "{model}: matrices are f32 in the file and stay so; activations are {dtype} between products"
            )),
            Some((stored, dtype)) if stored != dtype => notes.push(format!(
                "{model}: matrices are {stored} in the file and are widened to f32 in memory, for activations in {dtype}"
            )),
            _ => {}
        }
    }
    (dtype, notes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use DType::{Bf16, F16, F32};

    #[test]
    fn activations_follow_the_file() {
        for stored in [Bf16, F32] {
            let found = decide(None, stored, Some((stored, stored)));
            assert_eq!(found, (stored, vec![]));
        }
        let (dtype, notes) = decide(None, F16, None);
        assert_eq!((dtype, notes.len()), (F32, 2), "{notes:?}");
    }

    #[test]
    fn what_differs_from_a_file_is_noted() {
        let (dtype, notes) = decide(Some(F32), Bf16, Some((Bf16, F32)));
        assert_eq!((dtype, notes.len()), (F32, 2));
        assert!(notes[0].contains("target") && notes[0].contains("widened"));
        let (dtype, notes) = decide(None, Bf16, Some((F32, Bf16)));
        assert_eq!((dtype, notes.len()), (Bf16, 1));
        assert!(notes[0].contains("draft") && notes[0].contains("stay so"));
    }

    #[test]
    fn half_precision_is_for_targets_that_ask() {
        assert_eq!(decide(Some(F16), F16, None), (F16, vec![]));
        assert_eq!(decide(None, F16, None).0, F32);
    }
}
