//! Which tokens top-k, top-p and min-p leave, and how close that was.

use super::sampler::Sampling;

/// What the filters leave of a row.
#[derive(Debug)]
pub(super) struct Filtered {
    /// Tokens with their `logit / T`, best first.
    pub(super) kept: Vec<(u32, f32)>,
    /// The least difference of two scores that, made up for, would keep other tokens; infinite if none would.
    pub(super) edge: f32,
}

/// Applies top-k, then top-p on what is left, then min-p.
pub(super) fn filter(logits: &[f32], s: &Sampling) -> Filtered {
    // Adding 0 turns -0 into +0: the order below would tell them apart although they are equal.
    let mut kept: Vec<(u32, f32)> = (0u32..)
        .zip(logits.iter().map(|l| l / s.temperature + 0.0))
        .collect();
    let mut edge = f32::INFINITY;
    let order = |a: &(u32, f32), b: &(u32, f32)| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0));
    if s.top_k > 0 && s.top_k < kept.len() {
        kept.select_nth_unstable_by(s.top_k - 1, order);
        let dropped = largest(&kept[s.top_k..]);
        edge = edge.min(kept[s.top_k - 1].1 - dropped);
        kept.truncate(s.top_k);
    }
    let best = largest(&kept);
    if s.min_p > 0.0 && s.top_p >= 1.0 {
        edge = edge.min(keep_probable(&mut kept, best, s.min_p));
    }
    kept.sort_unstable_by(order);
    if s.top_p < 1.0 {
        edge = edge.min(keep_mass(&mut kept, best, s.top_p));
        if s.min_p > 0.0 {
            edge = edge.min(keep_probable(&mut kept, best, s.min_p));
        }
    }
    Filtered { kept, edge }
}

fn largest(scores: &[(u32, f32)]) -> f32 {
    scores.iter().fold(f32::NEG_INFINITY, |m, k| m.max(k.1))
}

/// Keeps tokens at least `min_p` times as probable as the best. Returns the smallest distance of a score from that border.
fn keep_probable(kept: &mut Vec<(u32, f32)>, best: f32, min_p: f32) -> f32 {
    let border = best + min_p.ln();
    // The best token itself cannot fall.
    let edge = kept
        .iter()
        .filter(|k| k.1 < best)
        .fold(f32::INFINITY, |m, k| m.min((k.1 - border).abs()));
    kept.retain(|k| (k.1 - best).exp() >= min_p);
    edge
}

/// Keeps the sorted tokens with less mass before them than `top_p`. Returns the smallest change of a score difference that
/// would cut elsewhere: scores that move by d at most move the odds of any set of tokens by a factor of e^2d at most.
fn keep_mass(kept: &mut Vec<(u32, f32)>, best: f32, top_p: f32) -> f32 {
    let weights: Vec<f32> = kept.iter().map(|k| (k.1 - best).exp()).collect();
    let total = weights.iter().map(|w| f64::from(*w)).sum::<f64>();
    let limit = f64::from(top_p) * total;
    let log_odds = |mass: f64| (mass / (total - mass)).ln();
    let distance = |mass: f64| {
        #[expect(clippy::cast_possible_truncation, reason = "rounded once, here")]
        let distance = (log_odds(mass) - log_odds(limit)).abs() as f32;
        // No mass or all of it, up to rounding, stays so.
        if distance.is_nan() {
            f32::INFINITY
        } else {
            distance
        }
    };
    let mut edge = f32::INFINITY;
    let mut mass = 0.0;
    let mut last = 0.0;
    let mut cut = kept.len();
    for (i, weight) in weights.iter().enumerate() {
        if mass >= limit {
            cut = i;
            edge = edge.min(distance(mass));
            break;
        }
        last = mass;
        mass += f64::from(*weight);
    }
    let cut = cut.max(1);
    edge = edge.min(distance(last));
    if let Some(dropped) = kept.get(cut) {
        edge = edge.min(kept[cut - 1].1 - dropped.1);
    }
    kept.truncate(cut);
    edge
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filters_keep_what_their_definitions_say() {
        let logits = [0.5f32, 0.25, 0.15, 0.1].map(f32::ln);
        let ids = |s: Sampling| {
            filter(
                &logits,
                &Sampling {
                    temperature: 1.0,
                    ..s
                },
            )
            .kept
            .iter()
            .map(|k| k.0)
            .collect::<Vec<_>>()
        };
        assert_eq!(
            ids(Sampling {
                top_k: 2,
                ..Default::default()
            }),
            [0, 1]
        );
        assert_eq!(
            ids(Sampling {
                top_p: 0.7,
                ..Default::default()
            }),
            [0, 1]
        );
        assert_eq!(
            ids(Sampling {
                top_p: 0.76,
                ..Default::default()
            }),
            [0, 1, 2]
        );
        assert_eq!(
            ids(Sampling {
                top_p: 0.0001,
                ..Default::default()
            }),
            [0]
        );
        assert_eq!(
            ids(Sampling {
                min_p: 0.29,
                ..Default::default()
            }),
            [0, 1, 2]
        );
        assert_eq!(
            ids(Sampling {
                top_p: 0.9,
                min_p: 0.4,
                ..Default::default()
            }),
            [0, 1]
        );
        // After top-k 2 the two left are 2/3 and 1/3.
        assert_eq!(
            ids(Sampling {
                top_k: 2,
                top_p: 0.6,
                ..Default::default()
            }),
            [0]
        );
    }

    #[test]
    fn zeros_of_either_sign_rank_by_id() {
        let ids = |logits: &[f32], s: Sampling| {
            let s = Sampling {
                temperature: 0.5,
                ..s
            };
            filter(logits, &s)
                .kept
                .iter()
                .map(|k| k.0)
                .collect::<Vec<_>>()
        };
        let one = Sampling {
            top_k: 1,
            ..Default::default()
        };
        let half = Sampling {
            top_p: 0.5,
            ..Default::default()
        };
        for (logits, first) in [([-0.0, 0.0, -9.0], 0), ([-9.0, -0.0, 0.0], 1)] {
            assert_eq!(ids(&logits, one), [first], "{logits:?}");
            assert_eq!(ids(&logits, half)[0], first, "{logits:?}");
        }
    }

    #[test]
    fn the_edge_is_what_separates_kept_from_dropped() {
        let logits = [0.5f32, 0.25, 0.15, 0.1].map(f32::ln);
        let edge = |s: Sampling| {
            filter(
                &logits,
                &Sampling {
                    temperature: 1.0,
                    ..s
                },
            )
            .edge
        };
        let near = |found: f32, expected: f32| assert!((found - expected).abs() < 1e-5, "{found}");
        let none = Sampling::default();
        assert_eq!(edge(none), f32::INFINITY);
        near(edge(Sampling { top_k: 2, ..none }), (0.25f32 / 0.15).ln());
        near(
            edge(Sampling {
                min_p: 0.29,
                ..none
            }),
            (0.3f32 / 0.29).ln(),
        );
        // Three are kept for 0.76: 0.75 before the third, odds of 3 against 0.76 / 0.24.
        near(
            edge(Sampling {
                top_p: 0.76,
                ..none
            }),
            (0.76f32 / 0.24 / 3.0).ln(),
        );
        // One is kept for 0.49: 0.5 before the second.
        near(
            edge(Sampling {
                top_p: 0.49,
                ..none
            }),
            (0.51f32 / 0.49).ln(),
        );
        assert_eq!(edge(Sampling { top_k: 4, ..none }), f32::INFINITY);
    }
}
