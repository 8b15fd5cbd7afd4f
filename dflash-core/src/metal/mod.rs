//! Kernels for Apple's GPUs as text, shared by the backends that run there.
//!
//! A [`Kernel`] is a body in the Metal Shading Language over named arguments, the form that array
//! libraries ask for; [`Launch::source`] puts a whole source file around it for those that compile files.
//! A [`Launch`] is a kernel for certain sizes: its constants, its grid and the shapes of its results, so
//! that a backend only binds memory.
//!
//! Bodies keep to what C++ shares with Metal. A test compiles them with a shim that runs threads one
//! after another and simdgroup sums as meeting points, and compares them with the reference backend;
//! so their arithmetic and their bounds are tested where there is no Apple GPU, their speed is not.
//!
//! Rejected: kernels in each backend's crate, in the dialect of its library. What is hard about them is
//! the same, and only one text can be tested without the libraries.

mod affine;
mod attention;
mod delta;
mod switches;
mod trial;

pub use affine::{AffineShape, affine_rows};
pub use attention::{AttentionShape, attention};
pub use delta::{DeltaShape, gated_delta, gated_delta_replay};
pub use switches::{Family, Switches};
pub use trial::tried;

use std::fmt::Write as _;

use crate::DType;

/// What the kernels share, to be placed before them.
pub const HELPERS: &str = include_str!("helpers.metal");

/// Cache rows from which attention in parts is used: below, a library's own kernel has enough to do at once.
pub const LONG_CACHE: usize = 1024;

/// The type of an argument's numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Element {
    /// One of the kernel's [`types`](Kernel::types), by its name.
    Of(&'static str),
    /// `float`.
    F32,
    /// `uint`.
    U32,
    /// `int`.
    I32,
}

/// A buffer that a kernel reads or writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Argument {
    /// Its name in the body.
    pub name: &'static str,
    /// The type of its numbers.
    pub element: Element,
}

impl Argument {
    const fn new(name: &'static str, element: Element) -> Self {
        Self { name, element }
    }
}

/// A kernel's body and what it expects around it.
#[derive(Debug, PartialEq, Eq)]
pub struct Kernel {
    /// The function's name, by which it is also switched off.
    pub name: &'static str,
    /// Read, row-major without gaps, in the order of their binding; the last holds [`Launch::sizes`].
    pub inputs: &'static [Argument],
    /// Written in full, bound after the inputs.
    pub outputs: &'static [Argument],
    /// Names of float types.
    pub types: &'static [&'static str],
    /// Names of compile-time integers.
    pub constants: &'static [&'static str],
    /// Macros that the body asks for.
    pub defines: &'static [&'static str],
    /// The function's statements. They use `thread_position_in_grid` and `thread_index_in_simdgroup`.
    pub body: &'static str,
}

/// A kernel for certain sizes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Launch {
    /// The kernel.
    pub kernel: &'static Kernel,
    /// One per name in [`Kernel::types`].
    pub types: Vec<DType>,
    /// One per name in [`Kernel::constants`].
    pub constants: Vec<i32>,
    /// Integers that change from call to call, for the last input.
    pub sizes: Vec<i32>,
    /// Threads.
    pub grid: [usize; 3],
    /// Threads per group; its first size is 32, a simdgroup.
    pub group: [usize; 3],
    /// The shape of each output.
    pub outputs: Vec<Vec<usize>>,
}

impl Kernel {
    /// [`HELPERS`] after the macros that the body asks for.
    pub fn header(&self) -> String {
        let mut header = String::new();
        for name in self.defines {
            let _ = writeln!(header, "#define {name}");
        }
        header + HELPERS
    }
}

impl Launch {
    /// The format of an argument's numbers, if they are floats.
    pub fn dtype(&self, argument: &Argument) -> Option<DType> {
        match argument.element {
            Element::Of(name) => {
                let at = self.kernel.types.iter().position(|t| *t == name)?;
                self.types.get(at).copied()
            }
            Element::F32 => Some(DType::F32),
            Element::U32 | Element::I32 => None,
        }
    }

    /// Types and constants as declarations.
    pub fn declarations(&self) -> String {
        let mut text = String::new();
        for (name, dtype) in self.kernel.types.iter().zip(&self.types) {
            let _ = writeln!(text, "using {name} = {};", metal_name(*dtype));
        }
        for (name, value) in self.kernel.constants.iter().zip(&self.constants) {
            let _ = writeln!(text, "constant constexpr int {name} = {value};");
        }
        text
    }

    /// A whole source file, whose only kernel has the name [`Kernel::name`].
    pub fn source(&self) -> String {
        let kernel = self.kernel;
        let mut text = String::from("#include <metal_stdlib>\nusing namespace metal;\n");
        text += &kernel.header();
        text += &self.declarations();
        let _ = writeln!(text, "kernel void {}(", kernel.name);
        let arguments = kernel
            .inputs
            .iter()
            .map(|a| ("const ", a))
            .chain(kernel.outputs.iter().map(|a| ("", a)));
        for (index, (access, argument)) in arguments.enumerate() {
            let (name, element) = (argument.name, argument.element.metal_name());
            let _ = writeln!(
                text,
                "    {access}device {element}* {name} [[buffer({index})]],"
            );
        }
        text += "    uint3 thread_position_in_grid [[thread_position_in_grid]],\n";
        text += "    uint thread_index_in_simdgroup [[thread_index_in_simdgroup]]) {\n";
        text += kernel.body;
        text += "}\n";
        text
    }
}

impl Element {
    /// The type in the Metal Shading Language, as seen after [`Launch::declarations`].
    pub const fn metal_name(self) -> &'static str {
        match self {
            Self::Of(name) => name,
            Self::F32 => "float",
            Self::U32 => "uint",
            Self::I32 => "int",
        }
    }
}

const fn metal_name(dtype: DType) -> &'static str {
    match dtype {
        DType::F32 => "float",
        DType::Bf16 => "bfloat",
        DType::F16 => "half",
    }
}

/// A size as the kernels count. Sizes of tensors in memory stay far below the limit; a larger number
/// becomes the largest, which no launch accepts.
fn int(size: usize) -> i32 {
    i32::try_from(size).unwrap_or(i32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_source_declares_what_the_body_uses() {
        let launch = gated_delta(
            &DeltaShape {
                key_heads: 2,
                value_heads: 4,
                key_dim: 128,
                value_dim: 128,
                rows: 5,
            },
            DType::Bf16,
        )
        .expect("sizes that fit");
        let source = launch.source();
        for part in [
            "using T = bfloat;",
            "constant constexpr int KEY_DIM = 128;",
            "kernel void dflash_gated_delta(",
            "const device T* mixed [[buffer(1)]],",
            "const device int* sizes [[buffer(6)]],",
            "    device T* y [[buffer(7)]],",
            "    device float* after [[buffer(8)]],",
        ] {
            assert!(source.contains(part), "{part} in\n{source}");
        }
        assert!(!source.contains("#define DFLASH_STATE_ONLY"));
    }
}
