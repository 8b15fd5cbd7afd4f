//! How the planned tensors lie in a file: raw names in bf16, or converted names with packed matrices.

use crate::checkpoint::SmallFloat;
use crate::testing::plan::{Around, Plan, Planned};

/// Weights that share a scale.
pub(super) const GROUP: usize = 64;

/// What the bytes of a tensor are.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Kind {
    /// bf16 numbers.
    Numbers(Around),
    /// Random codes, packed into 32-bit words: the bits of this mask.
    Codes(u64),
    /// Bytes up to three below this one.
    Scales(u8),
}

/// What the codes of packed matrices stand for.
#[derive(Debug, Clone, Copy)]
pub(super) enum Codes {
    /// Steps of so many bits.
    Affine(u8),
    SmallFloat(SmallFloat),
}

/// A tensor of a file.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Stored {
    pub(super) name: String,
    pub(super) shape: Vec<usize>,
    pub(super) kind: Kind,
}

impl Stored {
    fn numbers(name: String, shape: Vec<usize>, fill: Around) -> Self {
        let kind = Kind::Numbers(fill);
        Self { name, shape, kind }
    }

    /// Bytes of one element.
    pub(super) const fn width(&self) -> usize {
        match self.kind {
            Kind::Numbers(_) => 2,
            Kind::Codes(_) => 4,
            Kind::Scales(_) => 1,
        }
    }

    pub(super) fn bytes(&self) -> usize {
        self.shape.iter().product::<usize>() * self.width()
    }
}

/// Tensors as planned.
pub(super) fn plain(plan: Plan) -> Vec<Stored> {
    let stored = |t: Planned| Stored::numbers(t.name, t.shape, t.fill);
    plan.tensors.into_iter().map(stored).collect()
}

/// The part of a name behind the expert's number, and whether it is the first expert's.
fn expert(name: &str) -> Option<(String, bool, &str)> {
    let (module, rest) = name.split_once(".experts.")?;
    let (number, part) = rest.split_once('.')?;
    Some((module.to_owned(), number == "0", part))
}

/// How many experts a plan has per layer.
fn experts(plan: &Plan) -> usize {
    let gates = plan.tensors.iter().filter_map(|t| expert(&t.name));
    let mut gates = gates
        .filter(|(_, _, part)| *part == "gate_proj.weight")
        .map(|g| g.0);
    let first = gates.next();
    first.map_or(0, |first| 1 + gates.filter(|g| *g == first).count())
}

/// Raw files: hybrids have a nest of their own and, where sparse, all experts of a layer in two tensors.
pub(super) fn raw(plan: Plan, hybrid: bool) -> Vec<Stored> {
    let count = experts(&plan);
    let mut stored = Vec::new();
    for t in plan.tensors {
        let name = |name: &str| match name.strip_prefix("model.") {
            Some(rest) if hybrid => format!("model.language_model.{rest}"),
            _ => name.to_owned(),
        };
        match expert(&t.name) {
            Some((module, first, part)) if hybrid => {
                let (fused, rows) = match part {
                    "up_proj.weight" => ("gate_up_proj", 2 * t.shape[0]),
                    "down_proj.weight" => ("down_proj", t.shape[0]),
                    _ => continue,
                };
                if first {
                    let name = name(&format!("{module}.experts.{fused}"));
                    stored.push(Stored::numbers(name, vec![count, rows, t.shape[1]], t.fill));
                }
            }
            _ => stored.push(Stored::numbers(name(&t.name), t.shape, t.fill)),
        }
    }
    stored
}

fn converted(name: &str, hybrid: bool) -> String {
    if hybrid {
        format!("language_model.{name}")
    } else {
        name.to_owned()
    }
}

/// Modules that keep 8 bits: the routers.
pub(super) fn packed_modules(plan: &Plan, hybrid: bool) -> Vec<String> {
    let router = |name: &str| is_router(name).then(|| name.trim_end_matches(".weight").to_owned());
    let names = plan.tensors.iter().filter_map(|t| router(&t.name));
    names.map(|name| converted(&name, hybrid)).collect()
}

fn is_router(name: &str) -> bool {
    name.ends_with("mlp.gate.weight") || name.ends_with("mlp.shared_expert_gate.weight")
}

/// Converted files: packed matrices, a layer's experts in three tensors, norms with the one added.
pub(super) fn packed(plan: Plan, hybrid: bool, codes: Codes) -> Vec<Stored> {
    let count = experts(&plan);
    let mut stored = Vec::new();
    for t in plan.tensors {
        let mut name = converted(&t.name, hybrid);
        let mut shape = t.shape;
        if let Some((module, first, part)) = expert(&name) {
            if !first {
                continue;
            }
            name = format!("{module}.switch_mlp.{part}");
            shape.insert(0, count);
        }
        let Around(middle, spread) = t.fill;
        if name.ends_with("conv1d.weight") {
            shape.swap(1, 2);
            stored.push(Stored::numbers(name, shape, t.fill));
        } else if name.contains("norm") {
            // A hybrid's raw norms are offsets from one.
            let middle = if middle == 0.0 { 1.0 } else { middle };
            stored.push(Stored::numbers(name, shape, Around(middle, spread)));
        } else if shape.len() < 2 || shape[shape.len() - 1] % GROUP != 0 {
            stored.push(Stored::numbers(name, shape, t.fill));
        } else {
            let module = name.trim_end_matches(".weight");
            match codes {
                Codes::SmallFloat(format) if !is_router(&name) => {
                    small_floats(&mut stored, module, &shape, (format, spread));
                }
                Codes::Affine(bits) if !is_router(&name) => {
                    matrix(&mut stored, module, &shape, (bits, spread));
                }
                _ => matrix(&mut stored, module, &shape, (8, spread)),
            }
        }
    }
    stored
}

/// Codes, scales and biases whose numbers lie about within the spread.
fn matrix(stored: &mut Vec<Stored>, module: &str, shape: &[usize], (bits, spread): (u8, f32)) {
    let last = shape.len() - 1;
    let with = |columns: usize| [&shape[..last], &[columns]].concat();
    let scale = 2.0 * spread / f32::from(u8::MAX >> (8 - bits));
    stored.push(Stored {
        name: format!("{module}.weight"),
        shape: with(shape[last] * usize::from(bits) / 32),
        kind: Kind::Codes(u64::MAX),
    });
    let groups = with(shape[last] / GROUP);
    let scales = Around(scale, 0.2 * scale);
    stored.push(Stored::numbers(
        format!("{module}.scales"),
        groups.clone(),
        scales,
    ));
    let biases = Around(-spread, 0.2 * spread);
    stored.push(Stored::numbers(format!("{module}.biases"), groups, biases));
}

/// Codes and scales whose numbers lie within the spread.
fn small_floats(
    stored: &mut Vec<Stored>,
    module: &str,
    shape: &[usize],
    (format, spread): (SmallFloat, f32),
) {
    let last = shape.len() - 1;
    let with = |columns: usize| [&shape[..last], &[columns]].concat();
    // Without the highest bit of the exponent eight bits hold numbers below 2, all of them finite.
    let (mask, largest) = match format {
        SmallFloat::Mxfp4 | SmallFloat::Nvfp4 => (u64::MAX, 6.0),
        SmallFloat::Mxfp8 => (0xbfbf_bfbf_bfbf_bfbf, 2.0),
    };
    stored.push(Stored {
        name: format!("{module}.weight"),
        shape: with(shape[last] * format.bits() / 32),
        kind: Kind::Codes(mask),
    });
    let top = format.scale_at_most(2.0 * spread / largest).unwrap_or(0);
    stored.push(Stored {
        name: format!("{module}.scales"),
        shape: with(shape[last] / format.group()),
        kind: Kind::Scales(top),
    });
}
