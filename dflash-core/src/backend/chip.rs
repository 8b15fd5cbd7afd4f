//! What computes, as far as number formats depend on it.

use std::fmt;

/// A processor or a graphics processor.
///
/// A value made from the name that a device gives itself, so that what depends on it can be decided, and tested, on any machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Chip {
    /// The processor, whose kernels compute in float32.
    Processor,
    /// A graphics processor of Apple's.
    Apple {
        /// The number in the architecture's name: 13 for M1, 14 for M2, and so on.
        generation: u32,
    },
    /// Any other graphics processor.
    Gpu,
}

/// The first generation whose arithmetic has bfloat16: M3.
const NATIVE_BF16: u32 = 15;
/// The newest generation that is known: M5.
const NEWEST: u32 = 17;

impl Chip {
    /// From the architecture's name that Metal gives (`applegpu_g13s`). A name that is not understood, and a
    /// generation newer than the known ones, count as the newest known one.
    pub fn from_architecture(name: &str) -> Self {
        let digits: String = name
            .strip_prefix("applegpu_g")
            .unwrap_or_default()
            .chars()
            .take_while(char::is_ascii_digit)
            .collect();
        let generation = digits.parse().map_or(NEWEST, |g: u32| g.min(NEWEST));
        Self::Apple { generation }
    }

    /// Whether bfloat16 is a format of its arithmetic, not of its memory only.
    pub const fn has_bf16(self) -> bool {
        match self {
            Self::Processor => false,
            Self::Apple { generation } => generation >= NATIVE_BF16,
            Self::Gpu => true,
        }
    }
}

impl fmt::Display for Chip {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Processor => f.write_str("the processor"),
            Self::Apple { generation } if *generation >= 13 => write!(f, "M{}", generation - 12),
            Self::Apple { generation } => write!(f, "an Apple GPU of generation {generation}"),
            Self::Gpu => f.write_str("the GPU"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn architectures_name_generations() {
        for (name, generation, shown, bf16) in [
            ("applegpu_g13g", 13, "M1", false),
            ("applegpu_g13s", 13, "M1", false),
            ("applegpu_g13d", 13, "M1", false),
            ("applegpu_g14g", 14, "M2", false),
            ("applegpu_g14d", 14, "M2", false),
            ("applegpu_g15g", 15, "M3", true),
            ("applegpu_g15d", 15, "M3", true),
            ("applegpu_g16s", 16, "M4", true),
            ("applegpu_g16p", 16, "M4", true),
            ("applegpu_g17g", 17, "M5", true),
            // Newer than the known ones, or not understood.
            ("applegpu_g18g", 17, "M5", true),
            ("applegpu_g99999999999x", 17, "M5", true),
            ("applegpu_g", 17, "M5", true),
            ("applegpu_gx", 17, "M5", true),
            ("unknown", 17, "M5", true),
            ("", 17, "M5", true),
            // Older than any Mac's.
            ("applegpu_g12p", 12, "an Apple GPU of generation 12", false),
        ] {
            let chip = Chip::from_architecture(name);
            assert_eq!(chip, Chip::Apple { generation }, "{name}");
            assert_eq!((chip.to_string().as_str(), chip.has_bf16()), (shown, bf16));
        }
        assert!(!Chip::Processor.has_bf16() && Chip::Gpu.has_bf16());
    }
}
