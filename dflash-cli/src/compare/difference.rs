//! How far numbers are apart.

use dflash_core::DType;

/// The largest difference of two lists of numbers.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Difference {
    /// The largest absolute difference.
    pub absolute: f32,
    /// The same as a fraction of the largest magnitude in the baseline.
    pub relative: f32,
}

/// Where numbers are further apart than their format explains.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// The output of a layer.
    Layer(usize),
    /// The logits.
    Logits,
}

/// The largest relative difference that rounding in a number format explains, for sums in another order.
pub const fn tolerance(dtype: DType) -> f32 {
    match dtype {
        DType::F32 => 2e-4,
        DType::F16 => 5e-3,
        DType::Bf16 => 2e-2,
    }
}

impl Difference {
    /// Compares with the baseline's numbers. Lists of other lengths and numbers that are finite on one side only are infinitely far apart.
    pub fn of(baseline: &[f32], other: &[f32]) -> Self {
        if baseline.len() != other.len() {
            return Self {
                absolute: f32::INFINITY,
                relative: f32::INFINITY,
            };
        }
        let mut absolute = 0f32;
        let mut largest = 0f32;
        for (a, b) in baseline.iter().zip(other) {
            if a.is_finite() {
                largest = largest.max(a.abs());
            }
            if a.to_bits() != b.to_bits() && !(a.is_nan() && b.is_nan()) {
                let difference = (a - b).abs();
                absolute = absolute.max(if difference.is_nan() {
                    f32::INFINITY
                } else {
                    difference
                });
            }
        }
        let relative = if absolute == 0.0 {
            0.0
        } else {
            absolute / largest
        };
        Self { absolute, relative }
    }
}

impl Place {
    /// The first layer beyond the tolerance, else the logits if they are.
    pub fn first(layers: &[Difference], logits: Difference, tolerance: f32) -> Option<Self> {
        let beyond = |d: &Difference| d.relative > tolerance;
        let layer = layers.iter().position(beyond).map(Self::Layer);
        layer.or_else(|| beyond(&logits).then_some(Self::Logits))
    }
}

impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Layer(layer) => write!(f, "layer {layer}"),
            Self::Logits => f.write_str("logits"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_difference_counts() {
        let found = Difference::of(&[1.0, -4.0, 2.0], &[1.0, -3.0, 2.5]);
        assert_eq!((found.absolute, found.relative), (1.0, 0.25));
        assert_eq!(Difference::of(&[0.0], &[0.0]), Difference::default());
        let far = f32::INFINITY;
        for (a, b) in [(vec![1.0], vec![]), (vec![1.0], vec![f32::NAN])] {
            assert_eq!(Difference::of(&a, &b).absolute, far);
        }
        assert_eq!(Difference::of(&[f32::NAN], &[f32::NAN]).absolute, 0.0);
    }

    #[test]
    fn the_first_place_beyond_the_tolerance_is_named() {
        let off = |relative| Difference {
            absolute: 1.0,
            relative,
        };
        let layers = [off(0.1), off(0.3), off(0.2)];
        assert_eq!(Place::first(&layers, off(0.0), 0.15), Some(Place::Layer(1)));
        assert_eq!(Place::first(&layers, off(0.9), 0.5), Some(Place::Logits));
        assert_eq!(Place::first(&layers, off(0.0), 0.5), None);
    }
}
