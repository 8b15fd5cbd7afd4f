//! Formats whose codes are floats of four or eight bits.
//!
//! The element and scale formats are those of the OCP specifications for 8-bit floats and
//! microscaling: E2M1 and E4M3 elements, E8M0 or E4M3 scales. MLX writes them without a scale of
//! the whole matrix.

use crate::config::QuantMode;

/// How small floats and their scales are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SmallFloat {
    /// E2M1 codes, a power of two for each 32.
    Mxfp4,
    /// E4M3 codes, a power of two for each 32.
    Mxfp8,
    /// E2M1 codes, an E4M3 scale for each 16.
    Nvfp4,
}

impl SmallFloat {
    /// All formats.
    pub const ALL: [Self; 3] = [Self::Mxfp4, Self::Mxfp8, Self::Nvfp4];

    /// The format of a mode; `None` for affine codes.
    pub const fn of(mode: QuantMode) -> Option<Self> {
        match mode {
            QuantMode::Affine => None,
            QuantMode::Mxfp4 => Some(Self::Mxfp4),
            QuantMode::Mxfp8 => Some(Self::Mxfp8),
            QuantMode::Nvfp4 => Some(Self::Nvfp4),
        }
    }

    /// The name in files.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Mxfp4 => QuantMode::Mxfp4.name(),
            Self::Mxfp8 => QuantMode::Mxfp8.name(),
            Self::Nvfp4 => QuantMode::Nvfp4.name(),
        }
    }

    /// Bits per code.
    pub const fn bits(self) -> usize {
        match self {
            Self::Mxfp4 | Self::Nvfp4 => 4,
            Self::Mxfp8 => 8,
        }
    }

    /// Weights per scale.
    pub const fn group(self) -> usize {
        match self {
            Self::Mxfp4 | Self::Mxfp8 => 32,
            Self::Nvfp4 => 16,
        }
    }

    /// What a code stands for, before its scale.
    pub fn number(self, code: u8) -> f32 {
        match self {
            Self::Mxfp4 | Self::Nvfp4 => e2m1(code),
            Self::Mxfp8 => e4m3(code),
        }
    }

    /// What a scale's byte stands for.
    pub fn scale(self, byte: u8) -> f32 {
        match self {
            Self::Mxfp4 | Self::Mxfp8 => e8m0(byte),
            Self::Nvfp4 => e4m3(byte),
        }
    }

    /// The byte of the largest scale that is at most `limit`, which must not be negative.
    pub fn scale_at_most(self, limit: f32) -> Option<u8> {
        let last = match self {
            Self::Mxfp4 | Self::Mxfp8 => 254,
            Self::Nvfp4 => 0x7e,
        };
        (0..=last).rfind(|byte| self.scale(*byte) <= limit)
    }
}

/// A sign above two bits of exponent and one of fraction. No infinities, every code is a number.
pub fn e2m1(code: u8) -> f32 {
    const MAGNITUDES: [f32; 8] = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];
    let magnitude = MAGNITUDES[usize::from(code & 7)];
    if code & 8 == 0 { magnitude } else { -magnitude }
}

/// A sign above four bits of exponent and three of fraction. No infinities; all ones is not a number.
pub fn e4m3(code: u8) -> f32 {
    // The same fields in f32, where the exponent counts from 127 in place of 7.
    let rebias = f32::from_bits((127 + 120) << 23);
    let magnitude = match code & 0x7f {
        0x7f => f32::NAN,
        fields => f32::from_bits(u32::from(fields) << 20) * rebias,
    };
    if code & 0x80 == 0 {
        magnitude
    } else {
        -magnitude
    }
}

/// A power of two from 2⁻¹²⁷ to 2¹²⁷; all ones is not a number.
pub fn e8m0(byte: u8) -> f32 {
    match byte {
        0 => f32::from_bits(0x0040_0000),
        255 => f32::NAN,
        exponent => f32::from_bits(u32::from(exponent) << 23),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn four_bits() {
        let numbers: Vec<f32> = (0..16).map(e2m1).collect();
        assert_eq!(
            numbers,
            [
                0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0,
                -6.0
            ]
        );
        assert!(numbers[8].is_sign_negative());
    }

    #[test]
    fn eight_bits() {
        for (code, number) in [
            (0x00, 0.0),
            (0x01, 0.001_953_125),
            (0x07, 0.013_671_875),
            (0x08, 0.015_625),
            (0x38, 1.0),
            (0x3c, 1.5),
            (0x7e, 448.0),
            (0xb8, -1.0),
            (0xfe, -448.0),
        ] {
            assert_eq!(e4m3(code), number, "{code:#x}");
        }
        assert!(e4m3(0x80).is_sign_negative());
        assert!(e4m3(0x7f).is_nan() && e4m3(0xff).is_nan());
        // Every step up is a larger number.
        assert!((0..0x7e).all(|code| e4m3(code) < e4m3(code + 1)));
    }

    #[test]
    fn powers_of_two() {
        for (byte, power) in [
            (0, -127),
            (1, -126),
            (126, -1),
            (127, 0),
            (128, 1),
            (254, 127),
        ] {
            assert_eq!(f64::from(e8m0(byte)), 2f64.powi(power), "{byte}");
        }
        assert!(e8m0(255).is_nan());
    }

    #[test]
    fn formats_are_those_of_the_modes() {
        assert_eq!(SmallFloat::of(QuantMode::Affine), None);
        for (mode, bits, group) in [
            (QuantMode::Mxfp4, 4, 32),
            (QuantMode::Mxfp8, 8, 32),
            (QuantMode::Nvfp4, 4, 16),
        ] {
            let format = SmallFloat::of(mode).expect("small floats");
            assert_eq!((format.bits(), format.group()), (bits, group));
            assert_eq!(format.name(), mode.name());
        }
        assert_eq!(
            SmallFloat::Nvfp4.number(0xb) * SmallFloat::Nvfp4.scale(0x40),
            -3.0
        );
        assert_eq!(
            SmallFloat::Mxfp8.number(0x38) * SmallFloat::Mxfp8.scale(0x80),
            2.0
        );
        assert_eq!(
            SmallFloat::Mxfp4.number(0x7) * SmallFloat::Mxfp4.scale(0x7c),
            0.75
        );
    }
}
