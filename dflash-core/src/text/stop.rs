//! Stop strings over streamed text.

use crate::{Error, Result};

/// Watches streamed text for strings that end it.
///
/// The text ends at the stop string that is complete first, however the text is cut into pieces. Only what may still
/// become a stop string is held back.
#[derive(Debug, Clone, Default)]
pub struct StopStrings {
    stops: Vec<String>,
    held: String,
    hit: bool,
}

/// What a piece of text led to.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct StopOutcome {
    /// Text that can be given out: nothing from a stop string on.
    pub text: String,
    /// True once a stop string was met; later pieces give nothing.
    pub hit: bool,
}

impl StopStrings {
    /// Stops at any of `stops`.
    ///
    /// # Errors
    /// An empty stop string, which every text contains.
    pub fn new(stops: Vec<String>) -> Result<Self> {
        if stops.iter().any(String::is_empty) {
            return Err(Error::request(
                "stop",
                "a stop string is empty; expected at least one character",
            ));
        }
        Ok(Self {
            stops,
            ..Self::default()
        })
    }

    /// Takes the next piece of text and gives out what is certain.
    pub fn feed(&mut self, piece: &str) -> StopOutcome {
        if self.hit {
            return StopOutcome {
                text: String::new(),
                hit: true,
            };
        }
        self.held.push_str(piece);
        // The first to be complete; of those complete at the same place, the longest, which starts first.
        let found = self
            .stops
            .iter()
            .filter_map(|stop| self.held.find(stop).map(|at| (at + stop.len(), at)))
            .min();
        if let Some((_, at)) = found {
            self.hit = true;
            self.held.truncate(at);
            return StopOutcome {
                text: std::mem::take(&mut self.held),
                hit: true,
            };
        }
        let kept = self
            .stops
            .iter()
            .map(|stop| overlap(&self.held, stop))
            .max()
            .unwrap_or(0);
        let rest = self.held.split_off(self.held.len() - kept);
        StopOutcome {
            text: std::mem::replace(&mut self.held, rest),
            hit: false,
        }
    }

    /// The end of the text: what was held back is text after all.
    pub fn finish(&mut self) -> String {
        std::mem::take(&mut self.held)
    }

    /// True once a stop string was met.
    pub fn is_hit(&self) -> bool {
        self.hit
    }
}

/// The length of the longest end of `text` that is a beginning of `stop`, but not all of it.
pub(super) fn overlap(text: &str, stop: &str) -> usize {
    let lengths = (1..stop.len())
        .rev()
        .filter(|&len| stop.is_char_boundary(len));
    let ends = |&len: &usize| text.as_bytes().ends_with(&stop.as_bytes()[..len]);
    lengths
        .skip_while(|&len| len > text.len())
        .find(ends)
        .unwrap_or(0)
}
