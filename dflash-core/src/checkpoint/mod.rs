//! Tensors of a model folder: found, checked, and handed out once each.
//!
//! [`Checkpoint::open`] maps the files and checks every header, so that what follows cannot run
//! out of a file's bounds. [`Claims`] then hand out tensors by the model's names,
//! finds the nest that the file keeps them in, checks their shapes, and at the end names every
//! tensor that nobody took. Values are not looked at: the files are large and stay on disk until
//! they are used.

mod bytes;
mod claims;
mod experts;
mod header;
mod index;
mod mmap;
mod names;
mod open;
mod quantize;
mod small_float;
mod tensor;
mod weight;

pub use bytes::Bytes;
pub use claims::Claims;
pub use experts::Experts;
pub use open::{Checkpoint, TensorInfo};
pub use quantize::{Unfit, quantize};
pub use small_float::{SmallFloat, e2m1, e4m3, e8m0};
pub use tensor::{StoredTensor, StoredType};
pub use weight::WeightSource;
