//! The instruction set that an engine's kernels use, detected once.

use std::fmt;

use super::simd::Simd;
use super::simd::portable::Portable;

/// An instruction set that this machine is known to have.
///
/// Values come from detection only, so holding one is proof that its instructions can be executed.
/// All but [`Isa::portable`] give bit-identical results.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Isa(Kind);

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Kind {
    #[cfg(target_arch = "x86_64")]
    Avx512,
    #[cfg(target_arch = "x86_64")]
    Avx2,
    #[cfg(target_arch = "aarch64")]
    Neon,
    Portable,
}

impl Isa {
    /// The fastest one of this machine.
    pub fn detect() -> Self {
        Self::available()[0]
    }

    /// Plain Rust: runs everywhere.
    pub const fn portable() -> Self {
        Self(Kind::Portable)
    }

    /// Everything that this machine can execute, the fastest first. Never empty.
    pub fn available() -> Vec<Self> {
        let mut all = Vec::new();
        #[cfg(target_arch = "x86_64")]
        {
            let avx2 = is_x86_feature_detected!("avx2")
                && is_x86_feature_detected!("fma")
                && is_x86_feature_detected!("f16c");
            let avx512 = is_x86_feature_detected!("avx512f")
                && is_x86_feature_detected!("avx512bw")
                && is_x86_feature_detected!("avx512vl")
                && is_x86_feature_detected!("avx512dq");
            if avx2 && avx512 {
                all.push(Self(Kind::Avx512));
            }
            if avx2 {
                all.push(Self(Kind::Avx2));
            }
        }
        #[cfg(target_arch = "aarch64")]
        if std::arch::is_aarch64_feature_detected!("neon") {
            all.push(Self(Kind::Neon));
        }
        all.push(Self(Kind::Portable));
        all
    }

    /// The name shown by reports: `avx512`, `avx2`, `neon`, `portable`.
    pub const fn name(self) -> &'static str {
        match self.0 {
            #[cfg(target_arch = "x86_64")]
            Kind::Avx512 => "avx512",
            #[cfg(target_arch = "x86_64")]
            Kind::Avx2 => "avx2",
            #[cfg(target_arch = "aarch64")]
            Kind::Neon => "neon",
            Kind::Portable => "portable",
        }
    }

    /// Runs a kernel compiled for this instruction set.
    #[inline]
    pub(crate) fn run<K: Kernel>(self, kernel: K) -> K::Out {
        match self.0 {
            // SAFETY: this variant is constructed after detecting every feature that the function enables.
            #[cfg(target_arch = "x86_64")]
            Kind::Avx512 => unsafe { run_avx512(kernel) },
            // SAFETY: as above.
            #[cfg(target_arch = "x86_64")]
            Kind::Avx2 => unsafe { run_avx2(kernel) },
            // SAFETY: as above.
            #[cfg(target_arch = "aarch64")]
            Kind::Neon => unsafe { run_neon(kernel) },
            Kind::Portable => kernel.run(Portable),
        }
    }
}

impl fmt::Debug for Isa {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl fmt::Display for Isa {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Work written once for all instruction sets.
///
/// `run` and everything it calls with a vector must be `#[inline(always)]`, and must not pass
/// vectors through closures, so that the body ends up inside a function with the features enabled.
pub(crate) trait Kernel {
    /// What it returns.
    type Out;
    /// Does the work with the vectors of `simd`.
    fn run<S: Simd>(self, simd: S) -> Self::Out;
}

/// # Safety
/// The machine must have the enabled features.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx2,fma,f16c")]
unsafe fn run_avx512<K: Kernel>(kernel: K) -> K::Out {
    // SAFETY: the caller vouches for the features.
    kernel.run(unsafe { super::simd::x86::Avx512::assume() })
}

/// # Safety
/// The machine must have the enabled features.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn run_avx2<K: Kernel>(kernel: K) -> K::Out {
    // SAFETY: the caller vouches for the features.
    kernel.run(unsafe { super::simd::x86::Avx2::assume() })
}

/// # Safety
/// The machine must have the enabled features.
#[cfg(target_arch = "aarch64")]
#[target_feature(enable = "neon")]
unsafe fn run_neon<K: Kernel>(kernel: K) -> K::Out {
    // SAFETY: the caller vouches for the features.
    kernel.run(unsafe { super::simd::neon::Neon::assume() })
}
