//! Building blocks of backends that compute on the processor, in float32 host memory.

mod kv;
mod rope;
mod rope_cache;

pub use kv::HostKv;
pub use rope::HostRope;
pub use rope_cache::RopeCache;
