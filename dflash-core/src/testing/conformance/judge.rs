//! Runs a case on both backends and compares.

use std::fmt::Debug;

use super::Failure;
use super::make::Maker;
use crate::backend::Backend;
use crate::backend::reference::{RefTensor, Reference};
use crate::{DType, Result};

/// Collects the failures of one backend.
#[derive(Debug)]
pub(super) struct Judge<'a, B: Backend> {
    pub(super) backend: &'a B,
    pub(super) reference: Reference,
    seed: u64,
    pub(super) failures: Vec<Failure>,
}

/// Runs the same expression, of type `Result<Vec<Tensor>>`, on both backends, and compares tensor by tensor.
macro_rules! same {
    ($judge:expr, $op:expr, $case:expr, |$b:ident, $make:ident| $body:expr) => {{
        let seed = $judge.next_seed();
        let dtype = $judge.backend.dtype();
        let theirs = {
            let $b = &$judge.reference;
            #[allow(unused_mut, unused_variables)]
            let mut $make = $crate::testing::conformance::make::Maker::new($b, dtype, seed);
            $crate::testing::conformance::judge::attempt(|| $body)
        };
        let ours = {
            let $b = $judge.backend;
            #[allow(unused_mut, unused_variables)]
            let mut $make = $crate::testing::conformance::make::Maker::new($b, dtype, seed);
            $crate::testing::conformance::judge::attempt(|| $body)
        };
        $judge.compare($op, $case, ours, theirs);
    }};
}
pub(super) use same;

/// Runs steps of which each can fail.
pub(super) fn attempt<T>(steps: impl FnOnce() -> Result<T>) -> Result<T> {
    steps()
}

impl<'a, B: Backend> Judge<'a, B> {
    pub(super) fn new(backend: &'a B) -> Self {
        Self {
            backend,
            reference: Reference::new(),
            seed: 0,
            failures: Vec::new(),
        }
    }

    pub(super) fn next_seed(&mut self) -> u64 {
        self.seed += 1;
        self.seed
    }

    /// Inputs for the backend alone.
    pub(super) fn maker(&mut self) -> Maker<'a, B> {
        Maker::new(self.backend, self.backend.dtype(), self.next_seed())
    }

    pub(super) fn fail(
        &mut self,
        op: &'static str,
        case: impl Into<String>,
        difference: impl Into<String>,
    ) {
        self.failures.push(Failure {
            op,
            case: case.into(),
            difference: difference.into(),
        });
    }

    /// Notes a failure unless the condition holds, or if it could not be found out.
    pub(super) fn require(
        &mut self,
        op: &'static str,
        case: impl Into<String>,
        held: Result<bool>,
        requirement: &str,
    ) {
        match held {
            Ok(true) => {}
            Ok(false) => self.fail(op, case, requirement),
            Err(e) => self.fail(op, case, format!("error: {e}")),
        }
    }

    /// Notes a failure unless two values are equal.
    pub(super) fn equal<T: PartialEq + Debug>(
        &mut self,
        op: &'static str,
        case: impl Into<String>,
        ours: Result<T>,
        expected: &T,
    ) {
        match ours {
            Ok(ours) if ours == *expected => {}
            Ok(ours) => self.fail(op, case, format!("{ours:?}, expected {expected:?}")),
            Err(e) => self.fail(op, case, format!("error: {e}")),
        }
    }

    pub(super) fn compare(
        &mut self,
        op: &'static str,
        case: impl Into<String>,
        ours: Result<Vec<B::Tensor>>,
        theirs: Result<Vec<RefTensor>>,
    ) {
        let theirs = theirs.expect("invariant: a case suits the reference");
        let difference = match ours.and_then(|ours| {
            ours.iter()
                .map(|t| self.backend.read(t).map(|n| (t.clone(), n)))
                .collect::<Result<Vec<_>>>()
        }) {
            Err(e) => Some(format!("error: {e}")),
            Ok(ours) => ours
                .iter()
                .zip(&theirs)
                .find_map(|((tensor, numbers), expected)| {
                    let shape: Vec<usize> = (0..expected.shape().len())
                        .map(|axis| self.backend.dim(tensor, axis))
                        .collect();
                    if shape != expected.shape() || numbers.len() != expected.data().len() {
                        return Some(format!("shape {shape:?}, expected {:?}", expected.shape()));
                    }
                    difference(numbers, expected, tolerance(self.backend.dtype()))
                }),
        };
        if let Some(difference) = difference {
            self.fail(op, case, difference);
        }
    }
}

/// Relative to a number and its row's root mean square: some ten roundings of the format.
pub(super) fn tolerance(dtype: DType) -> f32 {
    match dtype {
        DType::F32 => 1e-5,
        DType::Bf16 => 2e-2,
        DType::F16 => 3e-3,
    }
}

/// Where numbers part from those expected, if they do.
fn difference(found: &[f32], expected: &RefTensor, tolerance: f32) -> Option<String> {
    let width = expected.shape().last().copied().unwrap_or(1).max(1);
    for (row, (found, expected)) in found
        .chunks(width)
        .zip(expected.data().chunks(width))
        .enumerate()
    {
        let finite = expected.iter().filter(|x| x.is_finite());
        #[expect(clippy::cast_precision_loss, reason = "a row's length")]
        let rms =
            (finite.clone().map(|x| x * x).sum::<f32>() / finite.count().max(1) as f32).sqrt();
        for (column, (&f, &e)) in found.iter().zip(expected).enumerate() {
            let equal = if e.is_finite() {
                (f - e).abs() <= tolerance * (e.abs() + rms)
            } else {
                !f.is_finite()
            };
            if !equal {
                return Some(format!("row {row}, column {column}: {f}, expected {e}"));
            }
        }
    }
    None
}
