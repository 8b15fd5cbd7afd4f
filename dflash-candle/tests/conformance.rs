//! Every operation of Candle on the processor against the reference backend.

use dflash_candle::CandleCpu;
use dflash_core::testing::conformance;

#[test]
fn operations_equal_the_reference() {
    for threads in [1, 3] {
        let failures = conformance::check(&CandleCpu::new(threads));
        if let Err(difference) = conformance::expect(&failures, &[]) {
            panic!("{threads} threads: {difference}");
        }
    }
}
