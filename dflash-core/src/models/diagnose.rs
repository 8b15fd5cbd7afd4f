//! Names the layer and the weight behind a result that is not finite.

use super::state::TargetState;
use super::target::Target;
use crate::backend::Backend;
use crate::{Error, Result};

/// What a diagnosis stops at.
struct Found {
    layer: Option<usize>,
    row: usize,
}

impl<B: Backend> Target<B> {
    /// Runs rows again on the committed state, reading every layer's output, and returns the error for them.
    /// The rows stand at positions from `first`; `bad` is the row whose logits were found. The state stays as it is.
    pub(super) fn diagnose(
        &self,
        state: &mut TargetState<B>,
        ids: &B::Ids,
        rows: usize,
        first: usize,
        bad: usize,
    ) -> Error {
        let found = self.first_bad_layer(state, ids, rows);
        state.discard();
        let layer = found.as_ref().and_then(|f| f.layer);
        let weight = self.first_bad_weight(layer);
        let what = match weight {
            Some((name, row)) => {
                format!("target logits (weight `{name}` is not finite in row {row})")
            }
            None => "target logits".to_owned(),
        };
        // A layer shows the first bad row; the head's logits may have been read from a later one.
        let position = first + found.map_or(bad, |f| f.row.min(bad));
        Error::NonFinite {
            what,
            position,
            layer,
            dtype: self.backend().dtype().to_string(),
        }
    }

    fn first_bad_layer(
        &self,
        state: &mut TargetState<B>,
        ids: &B::Ids,
        rows: usize,
    ) -> Option<Found> {
        let b = self.backend();
        let bad_row = |h: &B::Tensor| -> Result<Option<usize>> {
            let all = b.read(h)?;
            let width = all.len() / rows;
            Ok(all.iter().position(|v| !v.is_finite()).map(|i| i / width))
        };
        let mut found = None;
        let position = state.position();
        // An error here ends the search: what was found until then is reported.
        let _ = self
            .decoder()
            .forward(state.caches_mut(), position, ids, rows, &mut |layer, h| {
                if found.is_none() {
                    found = bad_row(h)?.map(|row| Found {
                        layer: Some(layer),
                        row,
                    });
                }
                Ok(())
            });
        found
    }

    /// The first weight of the layer, or of the embedding, final norm and head, with a number that is not finite, and its row.
    fn first_bad_weight(&self, layer: Option<usize>) -> Option<(String, usize)> {
        let own = layer.map(|l| format!("layers.{l}."));
        let belongs = |name: &str| own.as_ref().is_some_and(|own| name.contains(own.as_str()));
        let outside = |name: &str| !name.contains("layers.");
        let names: Vec<String> = self.checkpoint.names().map(str::to_owned).collect();
        let search = |wanted: &dyn Fn(&str) -> bool| {
            names.iter().filter(|n| wanted(n)).find_map(|n| {
                let row = self.checkpoint.tensor(n)?.first_non_finite_row()?;
                Some((n.clone(), row))
            })
        };
        search(&belongs).or_else(|| search(&outside))
    }
}
