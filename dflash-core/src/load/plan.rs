//! Which number formats a target and a draft compute in: one answer per chip, role and request.

use super::LoadRequest;
use super::files::ModelFiles;
use crate::backend::Chip;
use crate::config::{ActivationWidth, DraftQuant, QuantMode, QuantSpec};
use crate::{DType, Error, Result};

/// Whose activations.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// A target whose file is bf16.
    Target,
    /// A draft whose matrices are floats.
    Draft,
    /// A draft whose matrices are quantized, in its file or at load, with the `a` of its spec.
    QuantizedDraft(Option<ActivationWidth>),
}

/// The format of activations on a chip, and why that one.
///
/// | | processor | Apple M1, M2 | Apple M3 and later, other GPUs |
/// |---|---|---|---|
/// | target, bf16 file | f32 | bf16 | bf16 |
/// | draft, floats | f32 | bf16 | bf16 |
/// | draft, wN or wNa16 | f32 | f32 | bf16 |
/// | draft, wNa32 | f32 | f32 | f32 |
///
/// There is no f16: a draft's residual stream passes what it can hold.
pub fn activations(chip: Chip, role: Role) -> (DType, String) {
    match (chip, role) {
        (Chip::Processor, _) => (DType::F32, "the processor computes in f32".into()),
        (_, Role::QuantizedDraft(Some(ActivationWidth::A32))) => {
            (DType::F32, "a32 was asked for".into())
        }
        (chip, Role::QuantizedDraft(_)) if !chip.has_bf16() => (
            DType::F32,
            format!("{chip} has no bf16 arithmetic, and a quantized draft overflows in f16"),
        ),
        (chip, Role::Target | Role::Draft | Role::QuantizedDraft(_)) => {
            (DType::Bf16, format!("bf16 is what {chip} computes fastest"))
        }
    }
}

/// How a draft is loaded: its format, its quantization, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DraftPlan {
    /// How its projections are quantized at load, if they are.
    pub quantize: Option<QuantSpec>,
    /// How they are quantized in memory, in the file already or at load.
    pub weights: Option<QuantSpec>,
    /// The format of its activations.
    pub dtype: DType,
    /// Why that format.
    pub reason: String,
    /// What differs from what was asked for.
    pub notes: Vec<String>,
}

impl DraftPlan {
    /// Decides for a request on a chip; `None` if it has no draft. `asked` is the format that the request names, if the
    /// backend has nothing to say about it.
    ///
    /// # Errors
    /// The draft's config cannot be read; or as [`DraftPlan::decide`].
    pub fn for_request(
        chip: Chip,
        asked: Option<DType>,
        request: &LoadRequest,
    ) -> Result<Option<Self>> {
        let Some(draft) = &request.draft else {
            return Ok(None);
        };
        let config = ModelFiles::open(draft)?.draft_config()?;
        let stored = config.quantization.as_ref().map(|q| q.global);
        Self::decide(chip, asked, request.draft_quant, stored).map(Some)
    }

    /// Decides on a chip. `asked` is the format that the request names, `stored` how the file is quantized.
    ///
    /// # Errors
    /// [`Error::Request`]: f16 is asked for, or a file that is quantized already is to be quantized.
    pub fn decide(
        chip: Chip,
        asked: Option<DType>,
        quant: DraftQuant,
        stored: Option<QuantSpec>,
    ) -> Result<Self> {
        if asked == Some(DType::F16) {
            let reason = "drafts overflow in f16, expected bf16 or f32";
            return Err(Error::request("dtype", reason)
                .with_hint("use `--dtype auto`, or load the target without a draft"));
        }
        let mut notes = Vec::new();
        let (quantize, width) = match (quant, stored) {
            (DraftQuant::Packed(spec), None) => (Some(spec.weights()), spec.activations),
            (DraftQuant::Packed(_), Some(stored)) => {
                let reason = format!(
                    "the draft's file is quantized already ({} bits in groups of {})",
                    stored.bits, stored.group
                );
                return Err(Error::request("draft-quant", reason)
                    .with_hint("use `--draft-quant none`, or the draft's unquantized files"));
            }
            (DraftQuant::Auto, None) => {
                notes.push("draft-quant: nothing is measured for this machine and pair, so `auto` keeps the draft as stored".into());
                (None, None)
            }
            (DraftQuant::Auto | DraftQuant::AsStored, _) => (None, None),
        };
        let weights = quantize.or(stored);
        let role = match weights {
            None => Role::Draft,
            Some(_) => Role::QuantizedDraft(width),
        };
        let (dtype, reason) = match (asked, role) {
            (Some(asked), Role::Target | Role::Draft) => {
                (asked, format!("{asked} is the format that was asked for"))
            }
            (Some(DType::F32), Role::QuantizedDraft(None)) => {
                (DType::F32, "f32 is the format that was asked for".into())
            }
            _ => activations(chip, role),
        };
        // On the processor f32 needs no note, unless somebody has asked for something else.
        let half = width == Some(ActivationWidth::A16) || asked == Some(DType::Bf16);
        let usual = chip == Chip::Processor || asked == Some(DType::F32);
        let wide = width == Some(ActivationWidth::A32) || role == Role::Draft;
        if dtype == DType::F32 && !wide && (half || !usual) {
            notes.push(format!("draft: activations are f32: {reason}"));
        }
        Ok(Self {
            quantize,
            weights,
            dtype,
            reason,
            notes,
        })
    }

    /// Weights and activations as a spec (`w4a32:gs64`), with the name of another mode than affine in place of the bits; `None` if the weights are floats.
    pub fn spec(&self) -> Option<String> {
        let width = 8 * self.dtype.size();
        self.weights.map(|w| match w.mode {
            QuantMode::Affine => format!("w{}a{width}:gs{}", w.bits, w.group),
            other => format!("{}a{width}:gs{}", other.name(), w.group),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ActivationWidth::{A16, A32};
    use DType::{Bf16, F16, F32};

    const ALL: [(&str, bool); 7] = [
        ("applegpu_g13g", false),
        ("applegpu_g13s", false),
        ("applegpu_g14d", false),
        ("applegpu_g15s", true),
        ("applegpu_g16p", true),
        ("applegpu_g17g", true),
        ("applegpu_g23z", true),
    ];

    fn chips() -> Vec<(Chip, bool)> {
        let apple = ALL.map(|(name, bf16)| (Chip::from_architecture(name), bf16));
        apple.into_iter().chain([(Chip::Gpu, true)]).collect()
    }

    /// Every row of the table on every chip. Field case 1: f16 is nowhere.
    #[test]
    fn the_table_row_by_row() {
        for (chip, bf16) in chips() {
            let native = if bf16 { Bf16 } else { F32 };
            for (role, expected) in [
                (Role::Target, Bf16),
                (Role::Draft, Bf16),
                (Role::QuantizedDraft(None), native),
                (Role::QuantizedDraft(Some(A16)), native),
                (Role::QuantizedDraft(Some(A32)), F32),
            ] {
                let (dtype, reason) = activations(chip, role);
                assert_eq!(dtype, expected, "{chip}, {role:?}: {reason}");
                assert!(!reason.is_empty());
                assert_eq!(activations(Chip::Processor, role).0, F32, "{role:?}");
            }
        }
    }

    /// Field case 1: whatever the chip, the spec, the file and the asked format are, a draft is never f16.
    #[test]
    fn f16_is_unreachable_for_a_draft() {
        let stored = QuantSpec {
            mode: QuantMode::Affine,
            bits: 4,
            group: 64,
        };
        let specs = ["none", "auto", "w2", "w4", "w8", "w4a16", "w4a32:gs32"];
        let all = chips().into_iter().map(|(chip, _)| chip);
        for chip in all.chain([Chip::Processor]) {
            for spec in specs {
                let quant: DraftQuant = spec.parse().expect("a spec");
                for stored in [None, Some(stored)] {
                    for asked in [None, Some(F32), Some(Bf16)] {
                        match DraftPlan::decide(chip, asked, quant, stored) {
                            Ok(plan) => assert_ne!(plan.dtype, F16, "{chip} {spec}"),
                            Err(e) => assert!(e.is_usage() && stored.is_some(), "{e}"),
                        }
                    }
                    let error = DraftPlan::decide(chip, Some(F16), quant, stored)
                        .expect_err("f16 was asked for");
                    assert!(error.to_string().contains("overflow") && error.hint().is_some());
                }
            }
        }
    }

    fn plan(chip: &str, asked: Option<DType>, spec: &str) -> DraftPlan {
        let chip = match chip {
            "cpu" => Chip::Processor,
            name => Chip::from_architecture(name),
        };
        DraftPlan::decide(chip, asked, spec.parse().expect("a spec"), None).expect("a plan")
    }

    /// What is used, shown as a spec, and whether a note says that it is not what one would expect.
    #[test]
    fn what_is_used_is_shown() {
        let (m1, m3) = ("applegpu_g13s", "applegpu_g15s");
        for (chip, asked, spec, used, dtype, noted) in [
            (m1, None, "none", None, Bf16, false),
            (m1, Some(F32), "none", None, F32, false),
            (m1, None, "w4", Some("w4a32:gs64"), F32, true),
            (m1, None, "w8a16:gs32", Some("w8a32:gs32"), F32, true),
            (m1, None, "w4a32", Some("w4a32:gs64"), F32, false),
            (m1, Some(F32), "w4", Some("w4a32:gs64"), F32, false),
            (m1, Some(Bf16), "w4", Some("w4a32:gs64"), F32, true),
            (m3, None, "w8", Some("w8a16:gs64"), Bf16, false),
            (m3, None, "w8a32:gs128", Some("w8a32:gs128"), F32, false),
            (m3, Some(F32), "w8", Some("w8a32:gs64"), F32, false),
            (m3, Some(F32), "w8a16", Some("w8a16:gs64"), Bf16, false),
            (m3, None, "auto", None, Bf16, true),
            ("cpu", None, "none", None, F32, false),
            ("cpu", None, "w2", Some("w2a32:gs64"), F32, false),
            ("cpu", None, "w2a32", Some("w2a32:gs64"), F32, false),
            ("cpu", None, "w2a16", Some("w2a32:gs64"), F32, true),
            ("cpu", Some(F32), "w2a16", Some("w2a32:gs64"), F32, true),
        ] {
            let plan = plan(chip, asked, spec);
            let place = format!("{chip} {asked:?} {spec}: {plan:?}");
            assert_eq!(plan.spec().as_deref(), used, "{place}");
            assert_eq!(plan.dtype, dtype, "{place}");
            assert_eq!(!plan.notes.is_empty(), noted, "{place}");
            assert!(!plan.reason.is_empty(), "{place}");
        }
    }

    /// Field case 1: the table's row for quantized drafts is that of drafts with quantized files, too.
    #[test]
    fn a_quantized_file_is_left_alone_or_refused() {
        let stored = QuantSpec {
            mode: QuantMode::Affine,
            bits: 4,
            group: 32,
        };
        let m2 = Chip::from_architecture("applegpu_g14g");
        for quant in [DraftQuant::AsStored, DraftQuant::Auto] {
            let plan = DraftPlan::decide(m2, None, quant, Some(stored)).expect("left alone");
            assert_eq!((plan.quantize, plan.dtype), (None, F32));
            assert_eq!(plan.spec().as_deref(), Some("w4a32:gs32"));
            assert_eq!(plan.notes.len(), 1, "{:?}", plan.notes);
        }
        let spec = "w8".parse().expect("a spec");
        let error = DraftPlan::decide(m2, None, spec, Some(stored)).expect_err("refused");
        assert!(error.is_usage() && error.hint().is_some());
        assert!(error.to_string().contains("4 bits in groups of 32"));
    }
}
