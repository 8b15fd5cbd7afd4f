//! The acceptance rule, and the clip that precedes every commit.

/// How much of a block stands after the target has looked at it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Acceptance {
    /// Drafts equal to the target's own choice, counted from the first.
    pub accepted: usize,
    /// Tokens that the round adds: the accepted drafts and the target's next token.
    pub produced: usize,
}

/// Keeps drafts while each equals the choice of the row before it.
///
/// `drafted[i]` was proposed for the position that `chosen[i]` chose. The first row that disagrees,
/// or the last row, supplies one more token, so the round's tokens are `chosen[..produced]`.
/// `chosen` may end at the first disagreement, and holds at most one row more than `drafted`.
pub fn accept(drafted: &[u32], chosen: impl IntoIterator<Item = u32>) -> Acceptance {
    let accepted = drafted
        .iter()
        .zip(chosen)
        .take_while(|(d, c)| **d == *c)
        .count();
    Acceptance {
        accepted,
        produced: accepted + 1,
    }
}

/// Shortens a round's tokens to end with the first end-of-text id. True if there was one.
pub fn clip_at_end(tokens: &mut Vec<u32>, ends: &[u32]) -> bool {
    match tokens.iter().position(|t| ends.contains(t)) {
        Some(last) => {
            tokens.truncate(last + 1);
            true
        }
        None => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_the_agreeing_prefix_and_one_more() {
        let cases: [(&[u32], &[u32], usize); 6] = [
            (&[], &[9], 0),
            (&[1, 2, 3], &[1, 2, 3, 4], 3),
            (&[1, 2, 3], &[1, 2, 9], 2),
            (&[1, 2, 3], &[9], 0),
            (&[1, 2, 3], &[9, 2, 3, 4], 0),
            (&[1, 2, 3], &[1, 9, 3, 4], 1),
        ];
        for (drafted, chosen, accepted) in cases {
            let found = accept(drafted, chosen.iter().copied());
            assert_eq!(
                found,
                Acceptance {
                    accepted,
                    produced: accepted + 1
                },
                "{drafted:?} {chosen:?}"
            );
        }
    }

    #[test]
    fn nothing_stays_after_an_end() {
        let mut tokens = vec![5, 2, 7, 3];
        assert!(clip_at_end(&mut tokens, &[3, 2]));
        assert_eq!(tokens, [5, 2]);
        assert!(!clip_at_end(&mut tokens, &[9]));
        assert_eq!(tokens, [5, 2]);
    }
}
