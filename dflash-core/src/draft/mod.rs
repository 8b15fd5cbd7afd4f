//! Draft models: DFlash (arXiv 2602.06036, section 3) and DFlash 2, which adds a convolution around each sub-layer and a candidate selector.

mod block;
mod conv;
mod layer;
mod modules;
mod packing;
mod pairing;
mod selector;
mod state;

pub use block::{BlockTrace, Draft, DraftOptions};
pub use modules::DraftModule;
pub use packing::Packed;
pub use pairing::{Pair, check_pair};
pub use state::DraftState;
