//! The Candle backend of dflash.

mod cpu;
mod device;
mod factory;
mod format;
pub mod kernels;

pub use cpu::{CandleCpu, CpuExperts, CpuWeight};
pub use device::{CandleDevice, DeviceExperts, DeviceKv, DeviceRope, DeviceWeight};
pub use factory::{CandleFactory, factory, load};

/// A target on the processor.
pub type Target = dflash_core::models::Target<CandleCpu>;
/// A draft on the processor.
pub type Draft = dflash_core::draft::Draft<CandleCpu>;
/// A target on a GPU.
pub type DeviceTarget = dflash_core::models::Target<CandleDevice>;
/// A draft on a GPU.
pub type DeviceDraft = dflash_core::draft::Draft<CandleDevice>;

const _: fn() = || {
    fn is_target<T: dflash_core::spec::TargetModel>() {}
    fn is_draft<T: dflash_core::spec::TargetModel, D: dflash_core::spec::DraftModel<T>>() {}
    is_target::<Target>();
    is_draft::<Target, Draft>();
    is_target::<DeviceTarget>();
    is_draft::<DeviceTarget, DeviceDraft>();
};
