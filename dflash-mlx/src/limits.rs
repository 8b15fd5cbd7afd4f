//! Limits of MLX's allocator on a GPU, set once in a process from what the device says about itself.

use std::sync::OnceLock;

use mlx_rs::DeviceType;
use mlx_rs::memory::{set_cache_limit, set_wired_limit};

use crate::kernels::device::figure;

/// Bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Limits {
    /// Memory that stays resident, so that weights are not paged out between rounds.
    wired: usize,
    /// Freed memory that is kept for reuse.
    cache: usize,
}

impl Limits {
    /// From the largest working set that the device recommends: all of it may stay resident; an eighth of it serves the
    /// activations of a prompt chunk many times over.
    const fn of(working_set: usize) -> Self {
        Self {
            wired: working_set,
            cache: working_set / 8,
        }
    }
}

/// Sets the limits; a note if they could not be set.
pub(crate) fn set_for_gpu() -> Option<String> {
    static DONE: OnceLock<Option<String>> = OnceLock::new();
    DONE.get_or_init(|| {
        let Some(size) = figure(DeviceType::Gpu, c"max_recommended_working_set_size") else {
            return Some("memory limits are MLX's own: the device names no working set".into());
        };
        let limits = Limits::of(size);
        let wired = set_wired_limit(limits.wired).err();
        let cache = set_cache_limit(limits.cache).err();
        let reason = wired.or(cache)?;
        Some(format!(
            "memory limits are MLX's own, as they could not be set ({reason}); macOS 15 has them"
        ))
    })
    .clone()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_follow_the_device() {
        let limits = Limits::of(48 << 30);
        assert_eq!((limits.wired, limits.cache), (48 << 30, 6 << 30));
    }

    #[test]
    fn a_processor_names_no_working_set() {
        assert_eq!(
            figure(DeviceType::Cpu, c"max_recommended_working_set_size"),
            None
        );
    }
}
