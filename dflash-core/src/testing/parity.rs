//! The parity report: one row against several, per operation and per model.
//!
//! What it measures decides which level of exactness a backend may claim for a number format, and reports print that claim:
//! [`Parity::check_claim`] fails for a backend that claims more than was measured.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;

use super::conformance::{RowCase, measure_rows};
use super::golden::load_target;
use crate::backend::{Backend, Exactness};
use crate::models::RowDifference;
use crate::{DType, Result};

/// What a backend's rows owe to their company.
#[derive(Debug, Clone)]
pub struct Parity {
    /// The backend's name.
    pub backend: &'static str,
    /// Its device.
    pub device: &'static str,
    /// The format of its activations.
    pub dtype: DType,
    /// The level that it claims.
    pub claim: Exactness,
    /// The cases of every operation.
    pub operations: Vec<RowCase>,
    /// Logits of whole models, by name.
    pub models: Vec<(String, RowDifference)>,
}

impl Parity {
    /// Measures every operation, and the logits of models in folders.
    ///
    /// # Errors
    /// A model cannot be loaded or run. What an operation refuses is part of the report.
    pub fn measure<B: Backend>(backend: &B, models: &[(&str, &Path)]) -> Result<Self> {
        let model = |(name, folder): &(&str, &Path)| {
            let difference = load_target(backend, folder)?.row_difference()?;
            Ok(((*name).to_owned(), difference))
        };
        Ok(Self {
            backend: backend.name(),
            device: backend.device(),
            dtype: backend.dtype(),
            claim: backend.exactness(),
            operations: measure_rows(backend),
            models: models.iter().map(model).collect::<Result<_>>()?,
        })
    }

    /// The level that the measurement allows. Operations that the backend refuses decide nothing: no model runs them.
    pub fn level(&self) -> Exactness {
        let refused = |case: &RowCase| case.relative.is_infinite();
        let operations = self.operations.iter().filter(|c| !refused(c));
        let equal = operations.clone().all(|c| c.difference.is_none());
        if equal && operations.count() > 0 && self.models.iter().all(|(_, m)| m.equal) {
            Exactness::Exact
        } else {
            Exactness::TieTolerant
        }
    }

    /// Whether the claim holds.
    ///
    /// # Errors
    /// Names every operation and model that forbids the exact level, if it is claimed.
    pub fn check_claim(&self) -> Result<(), String> {
        if self.claim == Exactness::TieTolerant || self.level() == Exactness::Exact {
            return Ok(());
        }
        Err(format!("claims the exact level:\n{self}"))
    }
}

impl fmt::Display for Parity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{} on {}, {}: claims {}, measured {}",
            self.backend,
            self.device,
            self.dtype,
            self.claim,
            self.level()
        )?;
        let mut by_op: BTreeMap<&str, Vec<&RowCase>> = BTreeMap::new();
        for case in &self.operations {
            by_op.entry(case.op).or_default().push(case);
        }
        for (op, cases) in by_op {
            let refused = cases.iter().filter(|c| c.relative.is_infinite()).count();
            let ran = cases.len() - refused;
            let apart: Vec<_> = cases
                .iter()
                .filter(|c| c.difference.is_some() && c.relative.is_finite())
                .collect();
            let worst = apart
                .iter()
                .max_by(|a, b| a.relative.total_cmp(&b.relative));
            match worst {
                None => write!(f, "  {op:15} {ran} cases bit-equal")?,
                Some(worst) => write!(
                    f,
                    "  {op:15} {} of {ran} cases differ, by {:.1e} at most [{}]",
                    apart.len(),
                    worst.relative,
                    worst.case
                )?,
            }
            if refused > 0 {
                write!(f, ", {refused} refused")?;
            }
            writeln!(f)?;
        }
        for (name, model) in &self.models {
            if model.equal {
                writeln!(f, "  {name:15} logits bit-equal")?;
            } else {
                let relative = model.absolute / model.largest;
                writeln!(
                    f,
                    "  {name:15} logits differ by {:.1e}, {relative:.1e} of the largest",
                    model.absolute
                )?;
            }
        }
        Ok(())
    }
}
