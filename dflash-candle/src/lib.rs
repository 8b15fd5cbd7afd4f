//! The Candle backend of dflash.

mod cpu;
mod factory;
pub mod kernels;

pub use cpu::{CandleCpu, CpuExperts, CpuWeight};
pub use factory::{CandleFactory, factory, load};

/// A target on the processor.
pub type Target = dflash_core::models::Target<CandleCpu>;
/// A draft on the processor.
pub type Draft = dflash_core::draft::Draft<CandleCpu>;

const _: fn() = || {
    fn is_target<T: dflash_core::spec::TargetModel>() {}
    fn is_draft<D: dflash_core::spec::DraftModel<Target>>() {}
    is_target::<Target>();
    is_draft::<Draft>();
};
