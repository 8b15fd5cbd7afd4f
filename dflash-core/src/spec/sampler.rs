//! How a row of logits becomes a token: the drawing rule, and its host implementation.
//!
//! Every token is drawn with the Gumbel-max form of sampling. The choice at position `t` is the
//! id with the largest `logit / T + gumbel(seed, t, id)`, where `gumbel` is a pure function of
//! its arguments. A choice therefore depends on the prefix, the seed and the position only, so a
//! seeded text is the same with and without a draft. Temperature 0 is the case without noise.
//!
//! Order of the filters: repetition penalty, temperature, top-k, top-p on the distribution
//! renormalised after top-k (a token stays while the mass before it is below p; at least one
//! stays), min-p (`p >= min_p * p_max`). Equal scores: the lowest id.

use super::filter::filter;
use crate::{Error, Result};

/// The sampling options of a request.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sampling {
    /// Divides the logits; 0 chooses the largest logit.
    pub temperature: f32,
    /// Only the `top_k` largest logits stay; 0 keeps all.
    pub top_k: usize,
    /// Only the smallest set of tokens with this mass stays; 1 keeps all.
    pub top_p: f32,
    /// Only tokens at least this fraction as probable as the best stay; 0 keeps all.
    pub min_p: f32,
    /// Divides positive and multiplies negative logits of tokens that occurred; 1 does nothing.
    pub repetition_penalty: f32,
    /// Key of the noise.
    pub seed: u64,
}

impl Default for Sampling {
    fn default() -> Self {
        Self {
            temperature: 0.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            repetition_penalty: 1.0,
            seed: 0,
        }
    }
}

impl Sampling {
    /// Checks every option's range.
    ///
    /// # Errors
    /// [`Error::Request`] names the option, its value and the range.
    pub fn check(&self) -> Result<()> {
        let ranges: [(&'static str, f32, bool, &str); 4] = [
            (
                "temperature",
                self.temperature,
                self.temperature >= 0.0,
                "0 or more",
            ),
            (
                "top-p",
                self.top_p,
                self.top_p > 0.0 && self.top_p <= 1.0,
                "above 0, at most 1",
            ),
            (
                "min-p",
                self.min_p,
                (0.0..=1.0).contains(&self.min_p),
                "between 0 and 1",
            ),
            (
                "repetition-penalty",
                self.repetition_penalty,
                self.repetition_penalty > 0.0,
                "above 0",
            ),
        ];
        for (option, value, fits, range) in ranges {
            if !(fits && value.is_finite()) {
                return Err(Error::request(
                    option,
                    format!("{value} is out of range, expected {range}"),
                ));
            }
        }
        Ok(())
    }

    /// True when the largest logit wins, without noise.
    pub fn is_greedy(&self) -> bool {
        self.temperature == 0.0
    }
}

/// Which tokens occurred so far, for the repetition penalty.
#[derive(Debug, Clone, Default)]
pub struct Occurred {
    bits: Vec<u64>,
}

impl Occurred {
    /// Marks a token.
    pub fn insert(&mut self, id: u32) {
        let word = id as usize / 64;
        if word >= self.bits.len() {
            self.bits.resize(word + 1, 0);
        }
        self.bits[word] |= 1 << (id % 64);
    }

    /// Whether the token was marked.
    pub fn contains(&self, id: u32) -> bool {
        self.bits
            .get(id as usize / 64)
            .is_some_and(|w| w >> (id % 64) & 1 == 1)
    }

    /// The marked tokens, ascending.
    pub fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        (0u32..).zip(&self.bits).flat_map(|(word, &bits)| {
            (0..64)
                .filter(move |b| bits >> b & 1 == 1)
                .map(move |b| word * 64 + b)
        })
    }
}

/// The rule by which the rows of one block are drawn.
#[derive(Debug, Clone, Copy)]
pub struct RowRule<'a> {
    /// The request's options.
    pub sampling: Sampling,
    /// Position in the sequence of the token that row 0 chooses; row i chooses `position + i`.
    pub position: usize,
    /// Tokens up to and including the anchor. Row i sees drafts 1 to i as well.
    pub occurred: &'a Occurred,
}

/// What a row chose.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Choice {
    /// The token.
    pub id: u32,
    /// How far scores (`logit / T + noise`) are from another choice: best minus second-best, or, where that is less, what
    /// separates the tokens that a filter kept from those that it dropped. Infinite if nothing else could be chosen.
    pub margin: f32,
}

/// A row that holds a number which is not finite; nothing is drawn from it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NotFinite;

impl RowRule<'_> {
    /// Draws the token of row `row` from its raw logits. `before` holds the block's drafts that row sees (drafts 1 to `row`).
    ///
    /// # Errors
    /// [`NotFinite`] if any logit is NaN or infinite.
    pub fn draw(&self, row: usize, logits: &[f32], before: &[u32]) -> Result<Choice, NotFinite> {
        if !logits.iter().all(|l| l.is_finite()) {
            return Err(NotFinite);
        }
        let penalised = self.penalised(logits, before);
        let logits = penalised.as_deref().unwrap_or(logits);
        let s = &self.sampling;
        if s.is_greedy() {
            return Ok(best_two((0u32..).zip(logits.iter().copied())));
        }
        let noise = Noise {
            seed: s.seed,
            position: self.position + row,
        };
        if s.top_k == 0 && s.top_p >= 1.0 && s.min_p == 0.0 {
            return Ok(noise.draw_all(logits, s.temperature));
        }
        let filtered = filter(logits, s);
        let choice = best_two(
            filtered
                .kept
                .into_iter()
                .map(|(id, score)| (id, score + noise.gumbel(id))),
        );
        Ok(Choice {
            margin: choice.margin.min(filtered.edge),
            ..choice
        })
    }

    /// How far scores may be apart, by rounding alone, whose raw logits are at most `rounding` apart.
    pub fn score_rounding(&self, rounding: f32) -> f32 {
        let s = &self.sampling;
        let penalty = s.repetition_penalty.max(1.0 / s.repetition_penalty);
        let temperature = if s.is_greedy() { 1.0 } else { s.temperature };
        rounding * penalty / temperature
    }

    /// The logits with the repetition penalty applied, or `None` when there is none.
    fn penalised(&self, logits: &[f32], before: &[u32]) -> Option<Vec<f32>> {
        let penalty = self.sampling.repetition_penalty;
        if penalty == 1.0 {
            return None;
        }
        let mut logits = logits.to_vec();
        let fresh = before
            .iter()
            .enumerate()
            .filter(|(i, id)| !self.occurred.contains(**id) && !before[..*i].contains(id));
        for id in self.occurred.iter().chain(fresh.map(|(_, id)| *id)) {
            if let Some(logit) = logits.get_mut(id as usize) {
                *logit = if *logit > 0.0 {
                    *logit / penalty
                } else {
                    *logit * penalty
                };
            }
        }
        Some(logits)
    }
}

/// The noise of one position.
#[derive(Debug, Clone, Copy)]
pub struct Noise {
    /// Key of the generator.
    pub seed: u64,
    /// Position in the sequence of the token being drawn.
    pub position: usize,
}

/// No noise is larger than this: `-ln(-ln(1 - 2^-25))` rounded up.
const LARGEST_NOISE: f32 = 17.4;

impl Noise {
    /// The Gumbel noise of a token: `-ln(-ln((u + 1/2) / 2^24))`, u the top 24 bits of Philox4x32-10.
    ///
    /// The logarithms are taken in f64 and rounded once, since `u + 1/2` needs 25 bits.
    pub fn gumbel(self, id: u32) -> f32 {
        let position = self.position as u64;
        #[expect(
            clippy::cast_possible_truncation,
            reason = "the halves of the counter and the key"
        )]
        let word = philox(
            [position as u32, (position >> 32) as u32, id, 0],
            [self.seed as u32, (self.seed >> 32) as u32],
        )[0];
        let uniform = (f64::from(word >> 8) + 0.5) / f64::from(1u32 << 24);
        #[expect(clippy::cast_possible_truncation, reason = "rounded once, here")]
        let noise = -(-uniform.ln()).ln() as f32;
        noise
    }

    /// Draws from all ids; one is hashed only if the largest noise could still lift it to second place.
    pub fn draw_all(self, logits: &[f32], temperature: f32) -> Choice {
        let start = best_two((0u32..).zip(logits.iter().copied())).id;
        let mut two = BestTwo::default();
        two.offer(
            start,
            logits[start as usize] / temperature + self.gumbel(start),
        );
        for (id, &logit) in (0u32..).zip(logits) {
            let score = logit / temperature;
            if id != start && score + LARGEST_NOISE >= two.second {
                two.offer(id, score + self.gumbel(id));
            }
        }
        two.choice()
    }
}

/// The largest and second-largest score; equal scores go to the lowest id, in any order of offers.
#[derive(Debug)]
struct BestTwo {
    id: u32,
    best: f32,
    second: f32,
}

impl Default for BestTwo {
    fn default() -> Self {
        Self {
            id: u32::MAX,
            best: f32::NEG_INFINITY,
            second: f32::NEG_INFINITY,
        }
    }
}

impl BestTwo {
    fn offer(&mut self, id: u32, score: f32) {
        if score > self.best || (score == self.best && id < self.id) {
            self.second = self.best;
            (self.id, self.best) = (id, score);
        } else if score > self.second {
            self.second = score;
        }
    }

    fn choice(&self) -> Choice {
        Choice {
            id: self.id,
            margin: self.best - self.second,
        }
    }
}

fn best_two(scores: impl Iterator<Item = (u32, f32)>) -> Choice {
    let mut two = BestTwo::default();
    for (id, score) in scores {
        two.offer(id, score);
    }
    two.choice()
}

/// Philox4x32 with ten rounds (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011).
fn philox(mut counter: [u32; 4], mut key: [u32; 2]) -> [u32; 4] {
    const MULTIPLIERS: [u64; 2] = [0xD251_1F53, 0xCD9E_8D57];
    const WEYL: [u32; 2] = [0x9E37_79B9, 0xBB67_AE85];
    for _ in 0..10 {
        let products = [
            MULTIPLIERS[0] * u64::from(counter[0]),
            MULTIPLIERS[1] * u64::from(counter[2]),
        ];
        #[expect(
            clippy::cast_possible_truncation,
            reason = "the halves of a 64-bit product"
        )]
        let halves = products.map(|p| ((p >> 32) as u32, p as u32));
        counter = [
            halves[1].0 ^ counter[1] ^ key[0],
            halves[1].1,
            halves[0].0 ^ counter[3] ^ key[1],
            halves[0].1,
        ];
        key = [key[0].wrapping_add(WEYL[0]), key[1].wrapping_add(WEYL[1])];
    }
    counter
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The known-answer vectors of the Random123 library.
    #[test]
    fn philox_known_answers() {
        assert_eq!(
            philox([0; 4], [0; 2]),
            [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]
        );
        assert_eq!(
            philox([u32::MAX; 4], [u32::MAX; 2]),
            [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]
        );
    }

    fn rule(sampling: Sampling, occurred: &Occurred) -> RowRule<'_> {
        RowRule {
            sampling,
            position: 7,
            occurred,
        }
    }

    #[test]
    fn greedy_takes_the_lowest_of_equals() {
        let none = Occurred::default();
        let choice = rule(Sampling::default(), &none).draw(0, &[1.0, 3.0, 3.0, 2.0], &[]);
        assert_eq!(choice, Ok(Choice { id: 1, margin: 0.0 }));
    }

    #[test]
    fn non_finite_rows_choose_nothing() {
        let none = Occurred::default();
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            assert_eq!(
                rule(Sampling::default(), &none).draw(0, &[1.0, bad], &[]),
                Err(NotFinite)
            );
        }
    }

    #[test]
    fn pruned_draw_equals_a_full_one() {
        let logits: Vec<f32> = (0..5000)
            .map(|i| ((i * 7919) % 1013) as f32 / 40.0)
            .collect();
        for position in 0..50 {
            let noise = Noise { seed: 3, position };
            let full = best_two(
                (0u32..)
                    .zip(&logits)
                    .map(|(id, l)| (id, l / 1.5 + noise.gumbel(id))),
            );
            assert_eq!(noise.draw_all(&logits, 1.5), full);
        }
    }

    #[test]
    fn a_row_is_penalised_for_the_drafts_it_sees() {
        let occurred = Occurred::default();
        let sampling = Sampling {
            repetition_penalty: 2.0,
            ..Default::default()
        };
        let rule = rule(sampling, &occurred);
        let logits = [3.0, 2.0, -1.0];
        assert_eq!(rule.draw(0, &logits, &[]).map(|c| c.id), Ok(0));
        assert_eq!(rule.draw(1, &logits, &[0]).map(|c| c.id), Ok(1));
        assert_eq!(
            rule.penalised(&logits, &[0, 2, 0]),
            Some(vec![1.5, 2.0, -2.0])
        );
    }

    #[test]
    fn ranges_are_checked() {
        let bad = [
            Sampling {
                temperature: -0.1,
                ..Default::default()
            },
            Sampling {
                temperature: f32::NAN,
                ..Default::default()
            },
            Sampling {
                top_p: 0.0,
                ..Default::default()
            },
            Sampling {
                top_p: 1.1,
                ..Default::default()
            },
            Sampling {
                min_p: 2.0,
                ..Default::default()
            },
            Sampling {
                repetition_penalty: 0.0,
                ..Default::default()
            },
        ];
        for sampling in bad {
            assert!(sampling.check().is_err(), "{sampling:?}");
        }
        assert!(Sampling::default().check().is_ok());
    }
}
