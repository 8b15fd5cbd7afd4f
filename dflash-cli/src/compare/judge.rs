//! Whether two texts may part where they do.

use dflash_core::backend::Exactness;
use dflash_core::spec::{Occurred, RowRule};

use super::difference::Difference;
use crate::Request;

/// The first token in which two texts differ.
#[derive(Debug, Clone, PartialEq)]
pub struct Parting {
    /// Number of the token, from 0.
    pub at: usize,
    /// What was expected; `None` after the end of that text.
    pub expected: Option<u32>,
    /// What came.
    pub found: Option<u32>,
    /// Whether exactness and number formats allow it.
    pub allowed: bool,
    /// Why, or why not.
    pub reason: String,
}

impl Parting {
    fn first(expected: &[u32], found: &[u32]) -> Option<Self> {
        let longest = expected.len().max(found.len());
        let at = (0..longest).find(|i| expected.get(*i) != found.get(*i))?;
        Some(Self {
            at,
            expected: expected.get(at).copied(),
            found: found.get(at).copied(),
            allowed: false,
            reason: String::new(),
        })
    }
}

/// With the draft against without: equal at the exact level, else up to a counted near-tie.
pub(super) fn within(
    exactness: Exactness,
    plain: &[u32],
    drafted: &[u32],
    near: &[bool],
) -> Option<Parting> {
    let mut parting = Parting::first(plain, drafted)?;
    parting.allowed = exactness == Exactness::TieTolerant && near.get(parting.at) == Some(&true);
    parting.reason = match (exactness, parting.allowed) {
        (Exactness::Exact, _) => "at the exact level the draft must not change a token".into(),
        (Exactness::TieTolerant, true) => "a near-tie was counted there".into(),
        (Exactness::TieTolerant, false) => "no near-tie was counted there".into(),
    };
    Some(parting)
}

/// One backend against the baseline: they may part where their logits for the same tokens agree within the tolerance and the
/// choice was closer than the logits are apart. `rounding`: how far both may move their logits with the number of rows.
pub(super) fn across(
    request: &Request,
    baseline: (&[u32], &[Vec<f32>]),
    other: (&[u32], &[Vec<f32>]),
    tolerance: f32,
    rounding: f32,
) -> Option<Parting> {
    let ((expected, base), (found, own)) = (baseline, other);
    let mut parting = Parting::first(expected, found)?;
    let (Some(base), Some(own)) = (base.get(parting.at), own.get(parting.at)) else {
        parting.reason = "one text ends where the other goes on".into();
        return Some(parting);
    };
    let mut occurred = Occurred::default();
    let before = request.prompt.iter().chain(&expected[..parting.at]);
    before.for_each(|id| occurred.insert(*id));
    let rule = RowRule {
        sampling: request.sampling,
        position: request.prompt.len() + parting.at,
        occurred: &occurred,
    };
    let apart = Difference::of(base, own);
    let Ok(choice) = rule.draw(0, base, &[]) else {
        parting.reason = "the baseline's logits are not finite".into();
        return Some(parting);
    };
    // Two scores can move towards each other, each by as much as the logits are apart.
    let close = rule.score_rounding(2.0 * apart.absolute + rounding);
    parting.allowed = apart.relative <= tolerance && choice.margin <= close;
    parting.reason = format!(
        "the choice had a margin of {:.1e}; logits there are {:.1e} apart, {:.1e} of the largest",
        choice.margin, apart.absolute, apart.relative
    );
    Some(parting)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exact_texts_are_equal_and_others_part_at_near_ties() {
        let (plain, drafted) = ([1, 2, 3], [1, 9, 3]);
        let near = [false, true, true];
        assert_eq!(within(Exactness::Exact, &plain, &plain, &near), None);
        let parting = within(Exactness::Exact, &plain, &drafted, &near).expect("they part");
        assert_eq!((parting.at, parting.allowed), (1, false));
        assert_eq!((parting.expected, parting.found), (Some(2), Some(9)));
        let allowed = |near: &[bool]| {
            within(Exactness::TieTolerant, &plain, &drafted, near).map(|p| p.allowed)
        };
        assert_eq!(allowed(&near), Some(true));
        assert_eq!(allowed(&[false; 3]), Some(false));
    }

    #[test]
    fn backends_part_where_the_choice_was_closer_than_their_logits() {
        let request = Request {
            prompt: vec![0],
            ..Request::default()
        };
        let judge = |base: [f32; 3], own: [f32; 3], rounding| {
            let (base, own) = ([vec![], base.to_vec()], [vec![], own.to_vec()]);
            let parting = across(&request, (&[5, 0], &base), (&[5, 1], &own), 1e-2, rounding);
            parting.map(|p| (p.at, p.allowed))
        };
        assert_eq!(
            judge([4.0, 3.999, 0.0], [3.999, 4.0, 0.0], 0.0),
            Some((1, true))
        );
        // Logits that agree do not explain another token, unless rows round that much.
        assert_eq!(
            judge([4.0, 3.9, 0.0], [4.0, 3.9, 0.0], 0.0),
            Some((1, false))
        );
        assert_eq!(
            judge([4.0, 3.9, 0.0], [4.0, 3.9, 0.0], 0.2),
            Some((1, true))
        );
        // Logits beyond the tolerance explain nothing.
        assert_eq!(
            judge([4.0, 3.5, 0.0], [3.0, 4.0, 0.0], 0.0),
            Some((1, false))
        );
        let shorter = across(
            &request,
            (&[5], &[vec![0.0]]),
            (&[5, 1], &[vec![0.0]]),
            1e-2,
            0.0,
        );
        assert_eq!(shorter.map(|p| p.allowed), Some(false));
    }
}
