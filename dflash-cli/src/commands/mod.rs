//! One module per command.

pub(crate) mod compare;
pub(crate) mod generate;
pub(crate) mod inspect;
mod words;
