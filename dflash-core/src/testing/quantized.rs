//! Drafts that are quantized at load, and drafts of quantized targets.
//!
//! The text hides every error of a draft, so these checks compare draft logits, proposals and acceptance: with a draft whose
//! file holds the numbers that the codes stand for, and with recorded rounds.

use std::collections::BTreeMap;
use std::path::Path;

use safetensors::tensor::{Dtype, TensorView};
use serde_json::{Value, json};

use super::drive::finish;
use super::fakes::scramble;
use super::golden;
use super::lossless::load_pair_with;
use super::nano::{END_IDS, cases};
use super::tiny::{Tiny, draft_config, target_config};
use crate::backend::Backend;
use crate::backend::reference::Reference;
use crate::checkpoint::{Checkpoint, WeightSource, quantize};
use crate::config::{Architecture, DraftKind, DraftQuant, QuantMode, QuantSpec, TargetConfig};
use crate::draft::{DraftModule, DraftOptions};
use crate::load::{LoadRequest, Loaded, ModelSource};
use crate::spec::{DraftModel, ProposalRule, Request, TargetModel};
use crate::{DType, Error, Result};

const BLOCK: usize = 8;

/// The largest difference of logits, as a fraction of the largest, between weights as codes and as the numbers that they
/// stand for: products sum in another order.
const SAME: f32 = 1e-4;

/// The trained drafts, quantized at load by specs: recorded texts, and not many more rounds than as stored. `load` loads a
/// request on the backend. Returns what differs.
///
/// `allowed` is, per spec, how the report names it and how many rounds there may be for a recorded one.
///
/// # Errors
/// If the folder cannot be loaded or a run fails.
pub fn check_nano(
    load: &dyn Fn(&LoadRequest) -> Result<Loaded>,
    folder: &Path,
    limit: usize,
    allowed: &[(&str, Option<&str>, f32)],
) -> Result<Vec<String>> {
    let mut found = Vec::new();
    let source = |name: &str| ModelSource::Folder(folder.join(name));
    for name in ["d1", "d2"] {
        for (spec, shown, factor) in allowed {
            let place = format!("{name} as {spec}");
            let quant: DraftQuant = spec.parse()?;
            let mut loaded = load(&LoadRequest {
                draft: Some(source(name)),
                draft_quant: quant,
                ..LoadRequest::new(source("target"))
            })?;
            let draft = loaded.engine.report().draft.clone();
            let used = draft.as_ref().and_then(|d| d.quant.as_deref());
            if used != *shown {
                found.push(format!("{place}: the report says {used:?}"));
            }
            found.extend(check_bytes(&place, quant, draft.and_then(|d| d.packed)));
            let (mut rounds, mut recorded) = (0, 0);
            for (i, case) in cases(folder)?.iter().take(limit).enumerate() {
                let request = Request {
                    end_ids: END_IDS.to_vec(),
                    ..golden::request(&case.prompt_ids, 200)
                };
                let report = finish(loaded.engine.as_mut(), &request)?;
                if report.tokens != case.tokens {
                    let at = golden::first_difference(&report.tokens, &case.tokens);
                    found.push(format!("{place}, case {i}: tokens {at}"));
                }
                if report.accepted == 0 || !report.draft_active || report.non_finite_drafts > 0 {
                    found.push(format!("{place}, case {i}: {} accepted", report.accepted));
                }
                rounds += report.rounds;
                let own = case.acceptance_lengths.get(&format!("{name}/b8"));
                recorded += own.map_or(0, Vec::len);
            }
            #[expect(clippy::cast_precision_loss, reason = "small numbers")]
            let ratio = rounds as f32 / recorded as f32;
            if !(0.5..=*factor).contains(&ratio) {
                found.push(format!(
                    "{place}: {rounds} rounds, {recorded} with the draft as stored"
                ));
            }
        }
    }
    Ok(found)
}

/// The bits that a report claims are those in memory.
fn check_bytes(
    place: &str,
    quant: DraftQuant,
    packed: Option<crate::draft::Packed>,
) -> Option<String> {
    let DraftQuant::Packed(spec) = quant else {
        return packed.map(|_| format!("{place}: something was quantized"));
    };
    let Some(packed) = packed else {
        return Some(format!("{place}: nothing was quantized"));
    };
    // The files are bf16: two bytes for a number, for a scale and for a bias.
    let numbers = packed.stored_bytes / 2;
    let expected = numbers * usize::from(spec.bits) / 8 + numbers / spec.group * 4;
    (packed.bytes != expected || packed.spec != spec.weights()).then(|| {
        format!(
            "{place}: {} bytes of {numbers} numbers, expected {expected}",
            packed.bytes
        )
    })
}

/// Logits and proposals of a draft's block after a prompt.
fn outcome<B: Backend>(
    backend: &B,
    target: &Path,
    draft: &Path,
    options: DraftOptions,
    prompt: &[u32],
) -> Result<(Vec<f32>, Vec<u32>)> {
    let (target, draft) = load_pair_with(backend, target, draft, options)?;
    let rows = target.prefill(&mut target.new_state()?, prompt)?;
    let mut context = draft.new_state()?;
    draft.absorb(&mut context, rows, prompt.len())?;
    let logits = backend.read(&draft.trace(&context, 5, BLOCK)?.logits)?;
    let rule = ProposalRule {
        rows: BLOCK,
        position: prompt.len(),
        coupling: None,
    };
    let drafted = draft.propose(&mut context, 5, &rule)?;
    if backend.read(&drafted.finite)? != [1.0] {
        return Err(Error::unsupported("a proposal that is not finite"));
    }
    Ok((logits, backend.read_ids(&drafted.ids)?))
}

/// The largest difference as a fraction of the largest magnitude; infinite if a number is not finite.
fn apart(a: &[f32], b: &[f32]) -> f32 {
    let largest = b.iter().fold(0f32, |m, v| m.max(v.abs()));
    let far = |m: f32, d: f32| if d.is_nan() { f32::INFINITY } else { m.max(d) };
    let differences = a.iter().zip(b).map(|(a, b)| (a - b).abs());
    differences.fold(0f32, far) / largest
}

fn prompt() -> Vec<u32> {
    let ids = (0..20u64).map(|i| (scramble(3, i) % 59) as u32);
    ids.collect()
}

/// A tiny target and a draft whose matrices are whole groups of 32.
fn tiny(kind: DraftKind, scratch: &Path) -> Result<Tiny> {
    let config = target_config(Architecture::Qwen3, |c| c["hidden_size"] = json!(64));
    Tiny::target(config.clone(), 1)?.write(&scratch.join("target"))?;
    let draft = draft_config(kind, &config, |c| {
        c["intermediate_size"] = json!(96);
        c["head_dim"] = json!(16);
    });
    Tiny::draft(draft, 2)
}

const fn affine(bits: u8, group: usize) -> QuantSpec {
    QuantSpec {
        mode: QuantMode::Affine,
        bits,
        group,
    }
}

const fn at_load(spec: QuantSpec) -> DraftOptions {
    DraftOptions {
        window: None,
        quantize: Some(spec),
    }
}

/// The numbers that a matrix in any format stands for.
fn numbers(source: WeightSource) -> Result<Vec<f32>> {
    let b = Reference::new();
    let rows = u32::try_from(source.out()).unwrap_or(u32::MAX);
    let weight = b.weight(source)?;
    let ids = b.upload_ids(&(0..rows).collect::<Vec<_>>())?;
    b.read(&b.embedding(&weight, &ids, DType::F32)?)
}

/// A draft quantized at load computes what one does whose file holds the numbers that the codes stand for, with everything
/// but projections as it was; also where the residual stream passes 10⁵. Returns what differs.
///
/// # Errors
/// If a checkpoint cannot be made or run.
pub fn check_codes<B: Backend>(backend: &B, scratch: &Path) -> Result<Vec<String>> {
    let mut found = Vec::new();
    let (target, folder, twin) = (
        scratch.join("target"),
        scratch.join("draft"),
        scratch.join("twin"),
    );
    let mut last = f32::INFINITY;
    for kind in [DraftKind::DFlash1, DraftKind::DFlash2] {
        for (bits, large) in [(2, false), (4, false), (8, false), (4, true), (8, true)] {
            let place = format!("{kind:?}, {bits} bits, large: {large}");
            let spec = affine(bits, 32);
            let mut draft = tiny(kind, scratch)?;
            if large {
                draft.change_all("layers.0.mlp.down_proj", |v| {
                    v.iter_mut().for_each(|x| *x *= 1e7);
                });
            }
            draft.write(&folder)?;
            let file = Checkpoint::open(&folder)?;
            let mut changed = 0;
            for name in draft.names() {
                let Some(tensor) = file.tensor(&name).filter(|t| t.shape.len() == 2) else {
                    continue;
                };
                if DraftModule::of(&name).is_some_and(DraftModule::is_quantized) {
                    let codes = quantize(tensor, spec)
                        .map_err(|why| Error::unsupported(format!("{name}: {why}")))?;
                    let values = numbers(codes)?;
                    draft.change(&name, |v| v.copy_from_slice(&values))?;
                    changed += 1;
                }
            }
            draft.write(&twin)?;
            // fc, and seven matrices in each of two layers.
            if changed != 15 {
                found.push(format!("{place}: {changed} projections"));
            }
            let run = |folder: &Path, options| {
                outcome(backend, &target, folder, options, &prompt())
                    .map_err(|e| e.at(place.clone()))
            };
            let own = run(&folder, at_load(spec))?;
            let same = run(&twin, DraftOptions::default())?;
            let stored = run(&folder, DraftOptions::default())?;
            let off = apart(&own.0, &same.0);
            if off > SAME || own.1 != same.1 {
                found.push(format!("{place}: {off:.1e} from the codes' numbers"));
            }
            // Fewer bits are farther from the draft as stored: neither is it unchanged, nor were other bits used.
            let off = apart(&own.0, &stored.0);
            if !large {
                if bits == 2 {
                    last = f32::INFINITY;
                }
                if !(off > 1e-4 && off < last) {
                    found.push(format!(
                        "{place}: {off:.1e} from as stored, then {last:.1e}"
                    ));
                }
                last = off;
            }
        }
    }
    Ok(found)
}

/// Drafts stored in float32, bfloat16 and float16 that hold the same numbers are quantized alike. Returns what differs.
///
/// # Errors
/// If a checkpoint cannot be made or run.
pub fn check_formats<B: Backend>(backend: &B, scratch: &Path) -> Result<Vec<String>> {
    let mut found = Vec::new();
    let (target, folder) = (scratch.join("target"), scratch.join("draft"));
    for kind in [DraftKind::DFlash1, DraftKind::DFlash2] {
        let mut first: Option<Vec<f32>> = None;
        for dtype in [DType::F32, DType::Bf16, DType::F16] {
            let mut draft = tiny(kind, scratch)?;
            draft.round_to(DType::Bf16);
            draft.round_to(DType::F16);
            draft.stored_as(dtype).write(&folder)?;
            let spec = at_load(affine(8, 32));
            let (now, _) = outcome(backend, &target, &folder, spec, &prompt())?;
            let first = first.get_or_insert_with(|| now.clone());
            // Scales are rounded to the format of the file, which has 8 bits in bf16, and codes count up to 255 of them.
            let off = apart(&now, first);
            if off > 0.05 {
                found.push(format!("{kind:?} stored as {dtype}: {off:.1e}"));
            }
        }
    }
    Ok(found)
}

/// The drafts of a quantized target, tied or not, whose embedding and head they borrow: the same proposals as beside a target
/// whose file holds the numbers that the codes stand for. Returns what differs.
///
/// # Errors
/// If a folder cannot be loaded or written.
pub fn check_borrowed<B: Backend>(
    backend: &B,
    golden: &Path,
    scratch: &Path,
) -> Result<Vec<String>> {
    let mut found = Vec::new();
    for (family, quantized) in [
        ("qwen3", "mlx-4bit"),
        ("qwen3", "mlx-8bit"),
        ("qwen3-tied", "mlx-4bit"),
        ("llama3", "mlx-4bit"),
    ] {
        let (own, twin) = (golden.join(family).join(quantized), scratch.join("twin"));
        write_floats(&own, &twin)?;
        for draft in ["d1", "d2"] {
            let place = format!("{family}/{draft} beside {quantized}");
            let draft = golden.join(family).join(draft);
            let run = |target: &Path| {
                outcome(backend, target, &draft, DraftOptions::default(), &prompt())
                    .map_err(|e| e.at(place.clone()))
            };
            let (packed, floats) = (run(&own)?, run(&twin)?);
            let original = run(&golden.join(family).join("target"))?;
            let off = apart(&packed.0, &floats.0);
            if off > SAME || packed.1 != floats.1 {
                found.push(format!("{place}: {off:.1e}, {:?}", packed.1));
            }
            if apart(&packed.0, &original.0) < 10.0 * SAME {
                found.push(format!("{place}: the target's codes change nothing"));
            }
        }
    }
    Ok(found)
}

/// Writes a quantized target with floats in place of codes.
fn write_floats(from: &Path, to: &Path) -> Result<()> {
    let io = |path: &Path| {
        let path = path.to_owned();
        move |source| Error::Io { path, source }
    };
    std::fs::create_dir_all(to).map_err(io(to))?;
    let path = from.join("config.json");
    let json = std::fs::read(&path).map_err(io(&path))?;
    let mut config: Value =
        serde_json::from_slice(&json).map_err(|e| Error::config(&path, "", e.to_string()))?;
    if let Value::Object(keys) = &mut config {
        keys.remove("quantization");
        keys.remove("quantization_config");
    }
    std::fs::write(to.join("config.json"), config.to_string()).map_err(io(to))?;
    let spec = TargetConfig::read(from)?
        .quantization
        .ok_or_else(|| Error::config(&path, "quantization", "there is none"))?;
    let file = Checkpoint::open(from)?;
    let mut tensors: BTreeMap<String, (Vec<usize>, Vec<u8>)> = BTreeMap::new();
    for name in file.names() {
        let module = name.trim_end_matches(".weight");
        let part = |part: &str| file.tensor(&format!("{module}.{part}")).cloned();
        let Some(tensor) = file.tensor(name) else {
            continue;
        };
        if name.ends_with(".scales") || name.ends_with(".biases") {
            continue;
        }
        let (shape, values) = match (part("scales"), part("biases"), spec.for_module(module)) {
            (Some(scales), Some(biases), Some(spec)) => {
                let (out, inp) = (tensor.shape[0], scales.shape[1] * spec.group);
                let source = WeightSource::Affine {
                    codes: tensor.clone(),
                    scales,
                    biases,
                    bits: spec.bits,
                    group: spec.group,
                    out,
                    inp,
                };
                (vec![out, inp], numbers(source)?)
            }
            _ => (tensor.shape.clone(), tensor.to_f32()?),
        };
        let bytes = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        tensors.insert(name.to_owned(), (shape, bytes));
    }
    let path = to.join("model.safetensors");
    let unwritable = |e: safetensors::SafeTensorError| Error::checkpoint(&path, e.to_string());
    let views = tensors
        .iter()
        .map(|(name, (shape, bytes))| {
            Ok((name, TensorView::new(Dtype::F32, shape.clone(), bytes)?))
        })
        .collect::<Result<Vec<_>, _>>()
        .map_err(unwritable)?;
    let bytes = safetensors::serialize(views, None).map_err(unwritable)?;
    std::fs::write(&path, bytes).map_err(io(&path))
}
