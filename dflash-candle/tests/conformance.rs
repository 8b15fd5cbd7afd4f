//! Every operation of Candle on the processor against the reference backend.

use dflash_candle::CandleCpu;
use dflash_core::testing::conformance;

/// Packed weights are refused by name; each entry must fail.
const REFUSED: [(&str, &str); 4] = [
    ("linear", "affine"),
    ("embedding", "affine"),
    ("swiglu", "affine"),
    ("moe", "affine"),
];

#[test]
fn operations_equal_the_reference() {
    for threads in [1, 3] {
        let failures = conformance::check(&CandleCpu::new(threads));
        if let Err(difference) = conformance::expect(&failures, &REFUSED) {
            panic!("{threads} threads: {difference}");
        }
    }
}
