//! Mixture of experts.

use super::layers::silu;
use super::tensor::RefTensor;
use super::weight::RefWeight;
use crate::backend::MoeParams;
use crate::checkpoint::Experts;
use crate::{Error, Result};

/// The matrices of a layer's experts.
#[derive(Debug, Clone)]
pub struct RefExperts {
    /// Gate, up and down of each expert.
    experts: Vec<[RefWeight; 3]>,
}

impl RefExperts {
    pub(super) fn load(source: &Experts) -> Result<Self> {
        let Experts { gate, up, down } = source;
        if gate.is_empty() || gate.len() != up.len() || gate.len() != down.len() {
            let found = format!(
                "{} gates, {} ups, {} downs",
                gate.len(),
                up.len(),
                down.len()
            );
            return Err(Error::shape(
                "experts",
                "as many of each matrix, at least one",
                found,
            ));
        }
        let experts: Vec<_> = (gate.iter().zip(up).zip(down))
            .map(|((gate, up), down)| {
                Ok([
                    RefWeight::load(gate)?,
                    RefWeight::load(up)?,
                    RefWeight::load(down)?,
                ])
            })
            .collect::<Result<_>>()?;
        let sizes = |[gate, up, down]: &[RefWeight; 3]| {
            [
                gate.outputs(),
                gate.inputs(),
                up.outputs(),
                up.inputs(),
                down.outputs(),
                down.inputs(),
            ]
        };
        let [width, inputs, ..] = sizes(&experts[0]);
        let expected = [width, inputs, width, inputs, experts[0][2].outputs(), width];
        match experts.iter().map(sizes).find(|found| *found != expected) {
            None => Ok(Self { experts }),
            Some(found) => Err(Error::shape(
                "experts: sizes of gate, up and down",
                format!("{expected:?}"),
                format!("{found:?}"),
            )),
        }
    }

    pub(super) fn run(
        &self,
        x: &RefTensor,
        logits: &RefTensor,
        params: &MoeParams,
    ) -> Result<RefTensor> {
        let &[1, rows, width] = x.shape() else {
            return Err(x.misfit("moe", "[1, rows, in]"));
        };
        let count = self.experts.len();
        logits.expect("moe: router logits", &[1, rows, count])?;
        if params.top_k == 0 || params.top_k > count {
            return Err(Error::shape(
                "moe: experts per row",
                format!("1 to {count}"),
                params.top_k,
            ));
        }
        let [gate, _, down] = &self.experts[0];
        if gate.inputs() != width {
            return Err(x.misfit("moe", format!("[1, rows, {}]", gate.inputs())));
        }
        let outputs = down.outputs();
        let mut data = vec![0.0; rows * outputs];
        for (row, out) in data.chunks_exact_mut(outputs.max(1)).enumerate() {
            let x = &x.data()[row * width..][..width];
            for (expert, probability) in route(&logits.data()[row * count..][..count], params) {
                let [gate, up, down] = &self.experts[expert];
                let hidden: Vec<f32> = gate
                    .product(x, 1)
                    .iter()
                    .zip(up.product(x, 1))
                    .map(|(&g, u)| silu(g) * u)
                    .collect();
                out.iter_mut()
                    .zip(down.product(&hidden, 1))
                    .for_each(|(o, y)| *o += probability * y);
            }
        }
        RefTensor::new("moe", data, &[1, rows, outputs])
    }
}

/// A row's experts and their factors, best first, equals by lowest index.
fn route(logits: &[f32], params: &MoeParams) -> Vec<(usize, f32)> {
    let best = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let weights: Vec<f32> = logits.iter().map(|l| (l - best).exp()).collect();
    let total: f32 = weights.iter().sum();
    let mut chosen: Vec<(usize, f32)> = weights.iter().map(|w| w / total).enumerate().collect();
    chosen.sort_by(|a, b| b.1.total_cmp(&a.1));
    chosen.truncate(params.top_k);
    if params.normalize {
        let sum: f32 = chosen.iter().map(|c| c.1).sum();
        chosen.iter_mut().for_each(|c| c.1 /= sum);
    }
    chosen
}

#[cfg(test)]
mod tests {
    use super::super::weight::tests::{matrix, tensor};
    use super::*;

    /// Expert e of width 1: gate 1, up e, down 1, so its output is `silu(x) * e * x`.
    fn experts(count: u8) -> Experts {
        let list =
            |number: &dyn Fn(u8) -> f32| (0..count).map(|e| matrix(1, 1, &[number(e)])).collect();
        Experts {
            gate: list(&|_| 1.0),
            up: list(&f32::from),
            down: list(&|_| 1.0),
        }
    }

    #[test]
    fn routing_by_hand() {
        let experts = RefExperts::load(&experts(4)).expect("fit");
        let quarter = 0.25f32.ln();
        let logits = tensor(
            &[
                0.5f32.ln(),
                f32::NEG_INFINITY,
                quarter,
                quarter,
                0.0,
                0.0,
                0.0,
                0.0,
            ],
            &[1, 2, 4],
        );
        let run = |top_k, normalize| {
            experts.run(
                &tensor(&[1.0, 2.0], &[1, 2, 1]),
                &logits,
                &MoeParams { top_k, normalize },
            )
        };
        let close = |found: RefTensor, expected: [f32; 2]| {
            let fits = found
                .data()
                .iter()
                .zip([silu(1.0), 2.0 * silu(2.0)])
                .zip(expected);
            assert!(
                fits.clone()
                    .all(|((f, unit), e)| (f - unit * e).abs() < 1e-6),
                "{found:?} {expected:?}"
            );
        };
        // Equal probabilities: experts 2, then 3 in the first row; 0, then 1 in the second.
        close(run(2, false).expect("fits"), [0.25 * 2.0, 0.25]);
        close(run(2, true).expect("fits"), [2.0 / 3.0, 0.5]);
        close(run(4, false).expect("fits"), [0.25 * 2.0 + 0.25 * 3.0, 1.5]);
        assert!(run(0, true).is_err() && run(5, true).is_err());
        assert_eq!(
            route(
                &[1.0, 3.0, 3.0, 2.0],
                &MoeParams {
                    top_k: 3,
                    normalize: false
                }
            )
            .iter()
            .map(|c| c.0)
            .collect::<Vec<_>>(),
            [1, 2, 3]
        );
    }

    #[test]
    fn experts_that_do_not_fit_are_refused() {
        let good = experts(2);
        let none = Experts {
            gate: Vec::new(),
            up: Vec::new(),
            down: Vec::new(),
        };
        let fewer = Experts {
            up: good.up[..1].to_vec(),
            ..good.clone()
        };
        let wider = Experts {
            down: vec![matrix(1, 1, &[0.0]), matrix(1, 2, &[0.0; 2])],
            ..good.clone()
        };
        for wrong in [none, fewer, wider] {
            assert!(
                matches!(RefExperts::load(&wrong), Err(Error::Shape { .. })),
                "{wrong:?}"
            );
        }
    }
}
