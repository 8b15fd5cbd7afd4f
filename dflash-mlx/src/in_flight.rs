//! Work that was begun and that nobody reads.

use std::rc::Rc;

use crate::kernels::device::wait;

/// Shared by the clones of a backend. The last one waits for what the device was given: MLX computes on a thread of its
/// own, which must not be in the middle of an operation when the process ends and takes MLX's memory with it.
#[derive(Debug, Clone)]
pub(crate) struct InFlight {
    _last: Rc<WaitsAtTheEnd>,
}

#[derive(Debug)]
struct WaitsAtTheEnd;

impl InFlight {
    pub(crate) fn new() -> Self {
        Self {
            _last: Rc::new(WaitsAtTheEnd),
        }
    }
}

impl Drop for WaitsAtTheEnd {
    fn drop(&mut self) {
        wait();
    }
}

#[cfg(test)]
mod tests {
    use mlx_rs::{Array, transforms};

    use super::*;
    use crate::kernels::device::is_there;

    #[test]
    fn the_last_clone_waits() {
        let first = InFlight::new();
        let second = first.clone();
        let mut x = Array::from_slice(&vec![0.5_f32; 256 * 256], &[256, 256]);
        for _ in 0..20 {
            x = x
                .matmul(&x)
                .and_then(|y| y.multiply(Array::from_f32(0.01)))
                .expect("it is queued");
        }
        transforms::async_eval([&x]).expect("it starts");
        drop(first);
        assert!(!is_there(&x), "too little work to tell");
        drop(second);
        assert!(is_there(&x));
    }
}
