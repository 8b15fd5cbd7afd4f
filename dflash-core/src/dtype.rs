//! The number formats of checkpoints and activations.

use std::fmt;

/// A floating-point format that tensors of a checkpoint or activations can have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum DType {
    /// IEEE single precision.
    F32,
    /// bfloat16: the range of f32, 8 bits of precision.
    Bf16,
    /// IEEE half precision: 11 bits of precision, overflows above 65 504.
    F16,
}

impl DType {
    /// Bytes per number.
    pub const fn size(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::Bf16 | Self::F16 => 2,
        }
    }

    /// The name used by options and reports: `f32`, `bf16`, `f16`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::Bf16 => "bf16",
            Self::F16 => "f16",
        }
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
