//! How much a sequence's caches take, by its length.

use dflash_core::DType;
use dflash_core::config::{DraftConfig, Mixer, TargetConfig};

use super::document::Memory;

/// Lengths that are shown, up to the longest.
const LENGTHS: [usize; 6] = [1 << 10, 1 << 12, 1 << 14, 1 << 15, 1 << 16, 1 << 17];

/// Activations and caches on the processor.
const NUMBER: usize = DType::F32.size();

/// A target's caches.
pub(super) fn of_target(config: &TargetConfig) -> Vec<Memory> {
    let row = 2 * config.attention.kv_heads * config.attention.head_dim * NUMBER;
    let recurrent = config.gated_delta.map_or(0, |g| {
        let state = g.value_heads * g.value_dim * g.key_dim;
        let window = (g.conv_kernel - 1) * g.conv_channels();
        (state + window) * NUMBER
    });
    let at = |context: usize| {
        let rows = |mixer: Mixer| match mixer {
            Mixer::Full => context,
            Mixer::Sliding { window } => context.min(window),
            Mixer::GatedDelta => 0,
        };
        let layers = config.layers.iter().map(|l| l.mixer);
        let recurrent_layers = layers.clone().filter(|m| *m == Mixer::GatedDelta).count();
        Memory {
            context,
            kv_bytes: layers.map(|m| rows(m) * row).sum(),
            recurrent_bytes: recurrent_layers * recurrent,
        }
    };
    lengths(config.max_position_embeddings)
        .into_iter()
        .map(at)
        .collect()
}

/// A draft's context, up to the longest that it was made for.
pub(super) fn of_draft(config: &DraftConfig) -> Vec<Memory> {
    let row = 2 * config.kv_heads * config.head_dim * NUMBER;
    let rows =
        |context: usize, window: Option<usize>| window.map_or(context, |w| context.min(w - 1));
    let bytes = |context| {
        config
            .layers
            .iter()
            .map(|l| rows(context, l.window) * row)
            .sum()
    };
    let longest = config
        .max_position_embeddings
        .unwrap_or(LENGTHS[LENGTHS.len() - 1]);
    lengths(longest)
        .into_iter()
        .map(|context| Memory {
            context,
            kv_bytes: bytes(context),
            recurrent_bytes: 0,
        })
        .collect()
}

fn lengths(longest: usize) -> Vec<usize> {
    LENGTHS
        .into_iter()
        .filter(|n| *n < longest)
        .chain([longest])
        .collect()
}

#[cfg(test)]
mod tests {
    use super::lengths;

    #[test]
    fn the_longest_is_always_shown() {
        assert_eq!(lengths(512), [512]);
        assert_eq!(lengths(4096), [1024, 4096]);
        assert_eq!(lengths(5000), [1024, 4096, 5000]);
    }
}
