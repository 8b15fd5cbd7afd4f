//! A toy tokenizer: an id is some bytes.

use std::collections::BTreeMap;

use crate::spec::{TextDecoder, TextStream};

/// Turns ids into the bytes that stand for them; characters may be split between ids.
#[derive(Debug, Clone, Default)]
pub struct Letters {
    bytes: BTreeMap<u32, Vec<u8>>,
}

impl Letters {
    /// The bytes of ids 0, 1, 2, …
    pub fn new(pieces: &[&[u8]]) -> Self {
        Self {
            bytes: (0..).zip(pieces.iter().map(|p| p.to_vec())).collect(),
        }
    }
}

impl TextDecoder for Letters {
    fn stream(&self, _show_special: bool) -> Box<dyn TextStream> {
        Box::new(LetterStream {
            letters: self.clone(),
            held: Vec::new(),
        })
    }
}

struct LetterStream {
    letters: Letters,
    /// The start of a character.
    held: Vec<u8>,
}

impl TextStream for LetterStream {
    fn push(&mut self, id: u32) -> String {
        if let Some(bytes) = self.letters.bytes.get(&id) {
            self.held.extend_from_slice(bytes);
        }
        let complete = match std::str::from_utf8(&self.held) {
            Ok(text) => text.len(),
            Err(error) => error.valid_up_to(),
        };
        let rest = self.held.split_off(complete);
        let text = std::mem::replace(&mut self.held, rest);
        String::from_utf8(text).unwrap_or_default()
    }

    fn finish(&mut self) -> String {
        String::from_utf8_lossy(&std::mem::take(&mut self.held)).into_owned()
    }
}
