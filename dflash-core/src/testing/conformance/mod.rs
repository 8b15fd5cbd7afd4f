//! Compares a backend with [`Reference`](crate::backend::reference::Reference), operation by operation.
//!
//! Every operation runs on both backends from the same numbers, over shapes that break naive
//! kernels: one row and sixteen, odd sizes, views that are not contiguous, caches that are empty or
//! at a window's edge, rows that are not a number. Results must be equal within the rounding of
//! the backend's format; tokens must be equal. Where the reference's result is not finite the backend's
//! must not be either, and nowhere else.
//!
//! ```
//! use dflash_core::backend::reference::Reference;
//! use dflash_core::testing::conformance;
//!
//! let failures = conformance::check(&Reference::new());
//! conformance::expect(&failures, &[]).unwrap();
//! ```

mod attention;
mod basics;
mod fused;
mod judge;
mod layers;
mod make;
mod rows;
#[cfg(test)]
mod tests;
mod tokens;

use std::fmt;

pub use attention::{attention, cache};
pub use basics::{elementwise, shapes};
pub use fused::{dynamic_conv, gated_delta, gated_rms_norm, moe, short_conv, swiglu};
pub use layers::{embedding, linear, norm_rope, rms_norm};
pub use rows::{RowCase, measure_rows, row_invariance};
pub use tokens::{draw, path_select, propose, readbacks};

use crate::backend::{Backend, Exactness};

/// A case in which a backend's result is not the reference's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// The operation.
    pub op: &'static str,
    /// Shapes and formats of the case.
    pub case: String,
    /// Where the results part and by how much, or the backend's error.
    pub difference: String,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} [{}]: {}", self.op, self.case, self.difference)
    }
}

/// Runs every comparison, and [`row_invariance`] if the backend says that it is exact.
pub fn check<B: Backend>(backend: &B) -> Vec<Failure> {
    let parts: [fn(&B) -> Vec<Failure>; 19] = [
        shapes,
        elementwise,
        linear,
        embedding,
        rms_norm,
        norm_rope,
        attention,
        cache,
        swiglu,
        gated_rms_norm,
        short_conv,
        gated_delta,
        dynamic_conv,
        moe,
        propose,
        path_select,
        draw,
        readbacks,
        |backend| match backend.exactness() {
            Exactness::Exact => row_invariance(backend),
            Exactness::TieTolerant => Vec::new(),
        },
    ];
    parts.iter().flat_map(|part| part(backend)).collect()
}

/// Compares failures with a list of expected ones: pairs of an operation and a part of the case.
///
/// # Errors
/// Names every failure that no entry expects, and every entry that nothing failed for, so that
/// a repaired operation leaves the list.
pub fn expect(failures: &[Failure], expected: &[(&str, &str)]) -> Result<(), String> {
    let fits = |f: &Failure, (op, case): &(&str, &str)| f.op == *op && f.case.contains(case);
    let unexpected = failures
        .iter()
        .filter(|f| !expected.iter().any(|e| fits(f, e)))
        .map(|f| format!("unexpected: {f}"));
    let missing = expected
        .iter()
        .filter(|e| !failures.iter().any(|f| fits(f, e)))
        .map(|(op, case)| format!("expected to fail, but passes: {op} [{case}]"));
    let problems: Vec<String> = unexpected.chain(missing).collect();
    if problems.is_empty() {
        Ok(())
    } else {
        Err(problems.join("\n"))
    }
}
