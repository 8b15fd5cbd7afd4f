//! Rotary position embedding: the table of periods.

use std::f64::consts::PI;

/// How rotated features depend on the position.
///
/// Feature `i` is paired with feature `i + dims/2` and turned by `position / periods()[i]`;
/// features from `dims` on pass through.
#[derive(Debug, Clone, PartialEq)]
pub struct RopeConfig {
    /// The base: the period of pair `i` is `theta^(2i/dims)`, before scaling.
    pub theta: f64,
    /// Rotated features per head, even, at most the head dimension.
    pub dims: usize,
    /// How the periods are stretched for long contexts.
    pub scaling: RopeScaling,
}

/// The ways of stretching the periods.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum RopeScaling {
    /// Not stretched.
    None,
    /// Every period times `factor`.
    Linear {
        /// At least 1.
        factor: f64,
    },
    /// Long wavelengths times `factor`, short ones kept, a ramp between (Llama 3).
    Llama3 {
        /// At least 1.
        factor: f64,
        /// Wavelengths above `original_length / low_freq_factor` are stretched.
        low_freq_factor: f64,
        /// Wavelengths below `original_length / high_freq_factor` are kept.
        high_freq_factor: f64,
        /// Positions seen in training.
        original_length: usize,
    },
    /// Interpolation by parts with a scaled attention (YaRN, arXiv 2309.00071).
    Yarn {
        /// At least 1.
        factor: f64,
        /// Pairs that turn more often than this within `original_length` are kept.
        beta_fast: f64,
        /// Pairs that turn less often than this are stretched.
        beta_slow: f64,
        /// Positions seen in training.
        original_length: usize,
        /// Whether the ends of the ramp are rounded outwards to whole pairs.
        truncate: bool,
        /// The factor on the rotated features of q and of k.
        amplitude: f64,
    },
}

impl RopeConfig {
    /// The period of each pair, `dims / 2` of them: the angle at a position is `position / period`.
    pub fn periods(&self) -> Vec<f64> {
        let dims = self.dims as f64;
        let plain = (0..self.dims / 2).map(|i| self.theta.powf(2.0 * i as f64 / dims));
        match &self.scaling {
            RopeScaling::None => plain.collect(),
            RopeScaling::Linear { factor } => plain.map(|p| p * factor).collect(),
            RopeScaling::Llama3 {
                factor,
                low_freq_factor: low,
                high_freq_factor: high,
                original_length,
            } => {
                let length = *original_length as f64;
                let stretch = |p: f64| {
                    let wavelength = 2.0 * PI * p;
                    if wavelength > length / low {
                        return p * factor;
                    }
                    if wavelength < length / high {
                        return p;
                    }
                    let smooth = (length / wavelength - low) / (high - low);
                    p / ((1.0 - smooth) / factor + smooth)
                };
                plain.map(stretch).collect()
            }
            RopeScaling::Yarn {
                factor,
                beta_fast,
                beta_slow,
                original_length,
                truncate,
                ..
            } => {
                // The pair that turns `turns` times within the original length (YaRN, section 3.2).
                let pair = |turns: f64| {
                    dims * (*original_length as f64 / (turns * 2.0 * PI)).ln()
                        / (2.0 * self.theta.ln())
                };
                let (mut low, mut high) = (pair(*beta_fast), pair(*beta_slow));
                if *truncate {
                    (low, high) = (low.floor(), high.ceil());
                }
                (low, high) = (low.max(0.0), high.min(dims - 1.0));
                if low == high {
                    high += 0.001;
                }
                let stretch = |(i, p): (usize, f64)| {
                    let keep = 1.0 - ((i as f64 - low) / (high - low)).clamp(0.0, 1.0);
                    1.0 / (keep / p + (1.0 - keep) / (p * factor))
                };
                plain.enumerate().map(stretch).collect()
            }
        }
    }

    /// The factor on the rotated features of q and of k: 1 except for YaRN.
    pub fn amplitude(&self) -> f32 {
        match self.scaling {
            RopeScaling::Yarn { amplitude, .. } => amplitude as f32,
            _ => 1.0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn assert_close(found: &[f64], expected: &[f64]) {
        assert_eq!(found.len(), expected.len());
        for (f, e) in found.iter().zip(expected) {
            assert!(
                (f - e).abs() <= 1e-12 * e,
                "{found:?} instead of {expected:?}"
            );
        }
    }

    #[test]
    fn plain_and_linear() {
        let rope = |scaling| RopeConfig {
            theta: 1e4,
            dims: 4,
            scaling,
        };
        assert_close(&rope(RopeScaling::None).periods(), &[1.0, 100.0]);
        assert_close(
            &rope(RopeScaling::Linear { factor: 4.0 }).periods(),
            &[4.0, 400.0],
        );
        assert_eq!(rope(RopeScaling::None).amplitude(), 1.0);
    }

    // The expected numbers follow the published formulas on frequencies (reciprocals of periods),
    // evaluated apart from this code.

    #[test]
    fn llama3_keeps_stretches_and_ramps() {
        let scaling = RopeScaling::Llama3 {
            factor: 8.0,
            low_freq_factor: 1.0,
            high_freq_factor: 4.0,
            original_length: 64,
        };
        let rope = RopeConfig {
            theta: 5e5,
            dims: 16,
            scaling,
        };
        let expected = [
            1.0,
            12.593981139216718,
            212.73183587779957,
            1096.9927027048293,
            5656.85424949238,
            29170.658948868437,
            150424.12372345573,
            775690.9789947431,
        ];
        assert_close(&rope.periods(), &expected);
    }

    fn yarn(theta: f64, factor: f64, original_length: usize, truncate: bool) -> Vec<f64> {
        let scaling = RopeScaling::Yarn {
            factor,
            beta_fast: 32.0,
            beta_slow: 1.0,
            original_length,
            truncate,
            amplitude: 1.5,
        };
        let rope = RopeConfig {
            theta,
            dims: 16,
            scaling,
        };
        assert_eq!(rope.amplitude(), 1.5);
        rope.periods()
    }

    #[test]
    fn yarn_with_whole_and_with_broken_ramp_ends() {
        let whole = [
            1.0,
            4.4643919908259475,
            23.999999999999996,
            252.98221281347037,
            800.0,
            2529.8221281347037,
            8000.0,
            25298.221281347032,
        ];
        assert_close(&yarn(1e4, 8.0, 64, true), &whole);
        let broken = [
            1.0,
            5.623413251903491,
            31.622776601683796,
            181.24904416176742,
            1646.3400256020784,
            22493.653007613964,
            126491.10640673517,
            711311.7640155691,
        ];
        assert_close(&yarn(1e6, 4.0, 32768, false), &broken);
    }

    #[test]
    fn extreme_parameters_stay_numbers() {
        for (theta, length) in [
            (1.0001, 1),
            (1e12, 1),
            (1e12, usize::MAX),
            (1.0001, usize::MAX),
        ] {
            for truncate in [true, false] {
                assert!(
                    yarn(theta, 1e6, length, truncate).iter().all(|p| *p > 0.0),
                    "{theta} {length}"
                );
            }
        }
    }
}
