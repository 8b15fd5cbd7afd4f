//! One module per command.

pub(crate) mod generate;
pub(crate) mod inspect;
mod words;
