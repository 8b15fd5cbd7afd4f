//! The demonstration model and its two drafts, inside the program.
//!
//! 3.6 million parameters in the architecture of Qwen3.5, trained on a synthetic corpus of short
//! questions. Its arithmetic is often wrong; it shows how text is produced, not what it should say.

use dflash_core::load::EmbeddedModel;

/// What a program that uses it should say.
pub const NOTE: &str = "this is a tiny demonstration model of 3.6 million parameters inside the program; its answers are often wrong";

/// Bytes at an address that suits any tensor.
#[repr(C, align(64))]
struct Aligned<T: ?Sized>(T);

macro_rules! weights {
    ($file:literal) => {{
        static WEIGHTS: &Aligned<[u8]> = &Aligned(*include_bytes!(concat!("../demo/", $file)));
        &WEIGHTS.0
    }};
}

/// The target.
pub static TARGET: EmbeddedModel = EmbeddedModel {
    name: "demo",
    config: include_bytes!("../demo/target/config.json"),
    weights: weights!("target/model.safetensors"),
    generation_config: Some(include_bytes!("../demo/target/generation_config.json")),
    tokenizer: Some(include_bytes!("../demo/target/tokenizer.json")),
    tokenizer_config: Some(include_bytes!("../demo/target/tokenizer_config.json")),
};

/// A DFlash draft for it.
pub static D1: EmbeddedModel = EmbeddedModel {
    name: "demo:d1",
    config: include_bytes!("../demo/d1/config.json"),
    weights: weights!("d1/model.safetensors"),
    generation_config: None,
    tokenizer: None,
    tokenizer_config: None,
};

/// A DFlash 2 draft for it, the better of the two.
pub static D2: EmbeddedModel = EmbeddedModel {
    name: "demo:d2",
    config: include_bytes!("../demo/d2/config.json"),
    weights: weights!("d2/model.safetensors"),
    generation_config: None,
    tokenizer: None,
    tokenizer_config: None,
};

/// The embedded model of a name: `demo`, `demo:d1` or `demo:d2`.
pub fn find(name: &str) -> Option<&'static EmbeddedModel> {
    [&TARGET, &D1, &D2]
        .into_iter()
        .find(|model| model.name == name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_are_aligned_and_complete() {
        for model in [&TARGET, &D1, &D2] {
            assert_eq!(model.weights.as_ptr().align_offset(8), 0, "{}", model.name);
            let header = u64::from_le_bytes(model.weights[..8].try_into().expect("8 bytes"));
            assert!(model.weights.len() as u64 > header + 8, "{}", model.name);
            assert_eq!(model.weights[8], b'{', "{}", model.name);
        }
    }

    #[test]
    fn names_lead_to_models() {
        assert_eq!(find("demo:d1").map(|m| m.name), Some("demo:d1"));
        assert!(find("demo:d3").is_none());
    }
}
