//! State of one gated-delta layer.

use super::{Cache, CacheKind, Rollback};
use crate::backend::{Backend, DeltaParams};
use crate::{Error, Result};

/// Convolution window and recurrent state of one gated-delta layer.
///
/// Nothing is updated in place: a verify leaves the old state here and its inputs and result in a
/// *tape*. Keeping all rows takes the result; keeping the first `a` replays `a` recorded rows from
/// the old state with the same operation, so the arithmetic is that of plain decoding; discarding
/// drops the tape.
#[derive(Debug)]
pub struct RecurrentCache<B: Backend> {
    backend: B,
    window: B::Tensor,
    state: B::Tensor,
    len: usize,
    tape: Option<Tape<B>>,
}

/// The recorded inputs of a block, and the state after all of it.
#[derive(Debug)]
pub(crate) struct Tape<B: Backend> {
    /// Convolution inputs `[1, rows, channels]`.
    pub(crate) raw: B::Tensor,
    /// Convolution outputs `[1, rows, channels]`.
    pub(crate) mixed: B::Tensor,
    /// Decay inputs `[1, rows, value_heads]`.
    pub(crate) decay: B::Tensor,
    /// Write-strength inputs `[1, rows, value_heads]`.
    pub(crate) strength: B::Tensor,
    /// State after the rows.
    pub(crate) state: B::Tensor,
    /// What replays the rows.
    pub(crate) params: std::rc::Rc<DeltaParams<B::Tensor>>,
    /// Window and state for a number of kept rows.
    pub(crate) prepared: Option<(usize, B::Tensor, B::Tensor)>,
}

impl<B: Backend> RecurrentCache<B> {
    /// A zero state `[value_heads, value_dim, key_dim]` in float32 and a zero window `[1, taps - 1, channels]`.
    ///
    /// # Errors
    /// The backend's.
    pub fn new(backend: &B, params: &DeltaParams<B::Tensor>) -> Result<Self> {
        let state = [params.value_heads, params.value_dim, params.key_dim];
        let window = [1, params.taps - 1, params.channels()];
        let zeros = |shape: &[usize], dtype| {
            backend.upload(&vec![0.0; shape.iter().product()], shape, dtype)
        };
        Ok(Self {
            backend: backend.clone(),
            window: zeros(&window, backend.dtype())?,
            state: zeros(&state, crate::DType::F32)?,
            len: 0,
            tape: None,
        })
    }

    /// The last `taps - 1` convolution inputs, oldest first.
    pub fn window(&self) -> &B::Tensor {
        &self.window
    }

    /// The committed state.
    pub fn state(&self) -> &B::Tensor {
        &self.state
    }

    /// Records a block that ran from the committed state.
    pub(crate) fn record(&mut self, tape: Tape<B>) {
        debug_assert!(
            self.tape.is_none(),
            "the block before was neither kept nor discarded"
        );
        self.tape = Some(tape);
    }

    /// The window after the first `rows` recorded rows.
    fn window_after(&self, tape: &Tape<B>, rows: usize) -> Result<B::Tensor> {
        let b = &self.backend;
        let width = b.dim(&self.window, 1);
        if rows >= width {
            return b.slice(&tape.raw, 1, rows - width, width);
        }
        let old = b.slice(&self.window, 1, rows, width - rows)?;
        b.concat(&[&old, &b.slice(&tape.raw, 1, 0, rows)?], 1)
    }
}

impl<B: Backend> Cache for RecurrentCache<B> {
    fn len(&self) -> usize {
        self.len
    }

    fn kind(&self) -> CacheKind {
        CacheKind::Recurrent
    }

    fn bytes(&self) -> usize {
        let size = |t: &B::Tensor, rank: usize| {
            (0..rank).map(|a| self.backend.dim(t, a)).product::<usize>()
        };
        size(&self.state, 3) * 4 + size(&self.window, 3) * self.backend.dtype().size()
    }

    fn can_trim(&self) -> bool {
        false
    }

    fn fork(&self) -> Result<Self> {
        if let Some(tape) = &self.tape {
            let rows = self.backend.dim(&tape.raw, 1);
            return Err(Error::Rollback {
                layer: 0,
                reason: format!("{rows} rows are neither committed nor discarded"),
            });
        }
        // Tensors are never written after they are made, so sharing them is a copy.
        Ok(Self {
            backend: self.backend.clone(),
            window: self.window.clone(),
            state: self.state.clone(),
            len: self.len,
            tape: None,
        })
    }
}

impl<B: Backend> Rollback for RecurrentCache<B> {
    fn pending(&self) -> usize {
        self.tape
            .as_ref()
            .map_or(0, |t| self.backend.dim(&t.raw, 1))
    }

    fn prepare(&mut self, rows: usize) -> Result<()> {
        let Some(tape) = &self.tape else {
            return Ok(());
        };
        let b = &self.backend;
        let window = self.window_after(tape, rows)?;
        let state = if rows == b.dim(&tape.raw, 1) {
            tape.state.clone()
        } else {
            let first = |t: &B::Tensor| b.slice(t, 1, 0, rows);
            let state = b.gated_delta_state(
                &self.state,
                &first(&tape.mixed)?,
                &first(&tape.decay)?,
                &first(&tape.strength)?,
                &tape.params,
            )?;
            b.begin(&state)?;
            state
        };
        if let Some(tape) = &mut self.tape {
            tape.prepared = Some((rows, window, state));
        }
        Ok(())
    }

    fn keep(&mut self, rows: usize) {
        let Some((prepared, window, state)) = self.tape.take().and_then(|t| t.prepared) else {
            return;
        };
        debug_assert_eq!(prepared, rows, "as many rows are kept as were prepared");
        (self.window, self.state) = (window, state);
        self.len += prepared;
    }

    fn discard(&mut self) {
        self.tape = None;
    }
}
