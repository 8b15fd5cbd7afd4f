//! Shapes and elementwise operations.

use super::Failure;
use super::judge::{Judge, same};
use super::make::Layout;
use crate::DType;
use crate::backend::{Backend, Unary};

/// Reshaping, exchanging, cutting and joining axes, and casting.
pub fn shapes<B: Backend>(backend: &B) -> Vec<Failure> {
    let mut j = Judge::new(backend);
    for layout in Layout::ALL {
        let case = |what: &str| format!("{what}, {layout:?} input");
        same!(j, "reshape", case("[2, 3, 4] to [4, 6]"), |b, make| Ok(
            vec![b.reshape(&make.tensor(&[2, 3, 4], layout)?, &[4, 6])?]
        ));
        for (first, second) in [(0, 1), (1, 2), (0, 2), (1, 1)] {
            same!(
                j,
                "swap_axes",
                case(&format!("axes {first} and {second}")),
                |b, make| {
                    Ok(vec![b.swap_axes(
                        &make.tensor(&[2, 3, 4], layout)?,
                        first,
                        second,
                    )?])
                }
            );
        }
        for (axis, start, len) in [(0, 1, 1), (1, 0, 3), (1, 2, 1), (2, 1, 2)] {
            same!(
                j,
                "slice",
                case(&format!("{len} from {start} of axis {axis}")),
                |b, make| {
                    Ok(vec![b.slice(
                        &make.tensor(&[2, 3, 4], layout)?,
                        axis,
                        start,
                        len,
                    )?])
                }
            );
        }
        for axis in 0..3 {
            same!(j, "concat", case(&format!("axis {axis}")), |b, make| {
                let mut other = [2, 3, 4];
                other[axis] = 1;
                let (first, second) = (
                    make.tensor(&[2, 3, 4], layout)?,
                    make.tensor(&other, layout)?,
                );
                Ok(vec![b.concat(&[&first, &second, &first], axis)?])
            });
        }
        same!(j, "cast", case("to f32 and back"), |b, make| {
            let x = make.tensor(&[2, 3, 4], layout)?;
            let wide = b.cast(&x, DType::F32)?;
            Ok(vec![b.cast(&wide, backend.dtype())?, wide])
        });
    }
    j.failures
}

/// Sums, products, functions of one number and row sums, with broadcasting.
pub fn elementwise<B: Backend>(backend: &B) -> Vec<Failure> {
    let mut j = Judge::new(backend);
    let shapes: [(&[usize], &[usize]); 5] = [
        (&[1, 3, 5], &[1, 3, 5]),
        (&[1, 3, 5], &[1, 1, 5]),
        (&[1, 3, 1], &[1, 1, 5]),
        (&[2, 1, 3, 1], &[2, 4, 1, 5]),
        (&[7], &[1]),
    ];
    for (a, b_shape) in shapes {
        for layout in Layout::ALL {
            let case = format!("{a:?} with {b_shape:?}, {layout:?} input");
            same!(j, "add", &case, |b, make| Ok(vec![b.add(
                &make.tensor(a, layout)?,
                &make.tensor(b_shape, layout)?
            )?]));
            same!(j, "mul", &case, |b, make| Ok(vec![b.mul(
                &make.tensor(a, layout)?,
                &make.tensor(b_shape, layout)?
            )?]));
        }
    }
    for layout in Layout::ALL {
        let case = format!("{layout:?} input");
        same!(j, "affine", &case, |b, make| Ok(vec![b.affine(
            &make.tensor(&[1, 3, 5], layout)?,
            -1.5,
            0.25
        )?]));
        for width in [1, 5, 64, 100] {
            same!(
                j,
                "sum_last",
                format!("{width} wide, {case}"),
                |b, make| Ok(vec![b.sum_last(&make.tensor(&[1, 3, width], layout)?)?])
            );
        }
        for function in [
            Unary::Exp,
            Unary::Silu,
            Unary::Sigmoid,
            Unary::Softplus,
            Unary::Tanh,
        ] {
            same!(j, "unary", format!("{function:?}, {case}"), |b, make| Ok(
                vec![b.unary(&make.tensor(&[1, 3, 5], layout)?, function)?]
            ));
        }
    }
    for function in [Unary::Silu, Unary::Sigmoid, Unary::Softplus, Unary::Tanh] {
        for x in [-95.0, -30.0, 0.0, 30.0, 95.0, f32::NAN] {
            same!(j, "unary", format!("{function:?} of {x}"), |b, make| Ok(
                vec![b.unary(&make.given(&[x], &[1, 1, 1])?, function)?]
            ));
        }
    }
    j.failures
}
