//! The MLX backend of dflash: Apple's array library, on Metal.
//!
//! On other systems than macOS the crate is an empty shell, unless the feature `host` builds it
//! against MLX's processor build, which serves development and tests.

#[cfg(any(target_os = "macos", feature = "host"))]
mod array;
#[cfg(any(target_os = "macos", feature = "host"))]
mod attention;
#[cfg(any(target_os = "macos", feature = "host"))]
mod backend;
#[cfg(any(target_os = "macos", feature = "host"))]
mod choose;
#[cfg(any(target_os = "macos", feature = "host"))]
mod conv;
#[cfg(any(target_os = "macos", feature = "host"))]
mod delta;
#[cfg(any(target_os = "macos", feature = "host"))]
mod factory;
#[cfg(any(target_os = "macos", feature = "host"))]
mod in_flight;
#[cfg(any(target_os = "macos", feature = "host"))]
mod kernels;
#[cfg(any(target_os = "macos", feature = "host"))]
mod kv;
#[cfg(any(target_os = "macos", feature = "host"))]
mod limits;
#[cfg(any(target_os = "macos", feature = "host"))]
mod moe;
#[cfg(any(target_os = "macos", feature = "host"))]
mod rope;
#[cfg(any(target_os = "macos", feature = "host"))]
mod stored;
#[cfg(any(target_os = "macos", feature = "host"))]
mod weight;

#[cfg(any(target_os = "macos", feature = "host"))]
pub use self::parts::*;

#[cfg(any(target_os = "macos", feature = "host"))]
mod parts {
    pub use crate::backend::Mlx;
    pub use crate::factory::{MlxFactory, factory, load};
    pub use crate::kv::MlxKv;
    pub use crate::rope::MlxRope;
    pub use crate::weight::{MlxExperts, MlxWeight, Place};

    /// A target on MLX.
    pub type Target = dflash_core::models::Target<Mlx>;
    /// A draft on MLX.
    pub type Draft = dflash_core::draft::Draft<Mlx>;

    const _: fn() = || {
        fn is_target<T: dflash_core::spec::TargetModel>() {}
        fn is_draft<T: dflash_core::spec::TargetModel, D: dflash_core::spec::DraftModel<T>>() {}
        is_target::<Target>();
        is_draft::<Target, Draft>();
    };
}
