//! Compiles launches for the host and runs them.

use std::io::Write as _;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use dflash_core::DType;
use dflash_core::metal::Launch;
use half::bf16;
use tempfile::TempDir;

/// A program that holds one function per different launch.
#[derive(Debug)]
pub(crate) struct Host {
    folder: TempDir,
    instances: Vec<String>,
}

/// The bytes of a buffer.
pub(crate) type Buffer = Vec<u8>;

impl Host {
    /// Compiles what the launches need. `None` where there is no C++ compiler, which is said aloud.
    pub(crate) fn build(launches: &[Launch]) -> Option<Self> {
        let compiler = std::env::var("CXX").unwrap_or_else(|_| "g++".into());
        let works = Command::new(&compiler).arg("--version").output();
        if !works.is_ok_and(|w| w.status.success()) {
            eprintln!("SKIPPED: `{compiler}` does not run; Metal kernels are not tested");
            return None;
        }
        let mut instances: Vec<String> = launches.iter().map(instance).collect();
        instances.sort();
        instances.dedup();
        let mut text = String::from("#include \"shim.hpp\"\n");
        text += dflash_core::metal::HELPERS;
        for (index, instance) in instances.iter().enumerate() {
            text += &format!("namespace k{index} {{\n{instance}}}\n");
        }
        text += "const shim::Body kernels[] = {";
        for index in 0..instances.len() {
            text += &format!("k{index}::run, ");
        }
        text +=
            "};\nint main() { return shim::serve(kernels, sizeof(kernels) / sizeof(*kernels)); }\n";
        let folder = tempfile::tempdir().expect("a folder");
        let write = |name: &str, text: &str| {
            std::fs::write(folder.path().join(name), text).expect("a file in it");
        };
        write("shim.hpp", include_str!("shim.hpp"));
        write("kernels.cpp", &text);
        let result = Command::new(&compiler)
            .args(["-std=c++17", "-O1", "-Wall", "-Wno-unused", "-Werror"])
            .args(["-U_FORTIFY_SOURCE", "kernels.cpp", "-o", "kernels"])
            .current_dir(folder.path())
            .output()
            .expect("the compiler starts");
        let messages = String::from_utf8_lossy(&result.stderr);
        assert!(result.status.success(), "{messages}");
        Some(Self { folder, instances })
    }

    /// Runs a launch on its inputs, the sizes not among them; its outputs as numbers.
    pub(crate) fn run(&self, launch: &Launch, inputs: &[Buffer]) -> Vec<Vec<f32>> {
        let wanted = instance(launch);
        let index = self.instances.iter().position(|i| *i == wanted);
        let index = index.expect("compiled before");
        let sizes: Buffer = launch.sizes.iter().flat_map(|x| x.to_ne_bytes()).collect();
        let inputs: Vec<&Buffer> = inputs.iter().chain([&sizes]).collect();
        assert_eq!(inputs.len(), launch.kernel.inputs.len(), "{launch:?}");
        let dtypes: Vec<DType> = launch
            .kernel
            .outputs
            .iter()
            .map(|o| launch.dtype(o).expect("floats"))
            .collect();
        let outputs: Vec<usize> = launch
            .outputs
            .iter()
            .zip(&dtypes)
            .map(|(shape, dtype)| shape.iter().product::<usize>() * dtype.size())
            .collect();

        let mut request = Buffer::new();
        let mut put = |x: usize| {
            let x = u32::try_from(x).expect("small");
            request.extend(x.to_ne_bytes());
        };
        put(index);
        launch
            .grid
            .iter()
            .chain(&launch.group)
            .for_each(|x| put(*x));
        put(inputs.len());
        for input in inputs {
            let bytes = u32::try_from(input.len()).expect("small");
            request.extend(bytes.to_ne_bytes());
            request.extend(input);
        }
        for x in [outputs.len()].iter().chain(&outputs) {
            request.extend(u32::try_from(*x).expect("small").to_ne_bytes());
        }

        let program: PathBuf = self.folder.path().join("kernels");
        let mut child = Command::new(program)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the program starts");
        let mut stdin = child.stdin.take().expect("piped");
        stdin.write_all(&request).expect("the program reads it all");
        drop(stdin);
        let result = child.wait_with_output().expect("the program ends");
        let messages = String::from_utf8_lossy(&result.stderr);
        assert!(
            result.status.success(),
            "{}: {:?} {messages}",
            launch.kernel.name,
            result.status
        );
        let mut rest = result.stdout.as_slice();
        let numbers = outputs.iter().zip(dtypes).map(|(bytes, dtype)| {
            let (own, after) = rest.split_at(*bytes);
            rest = after;
            numbers(own, dtype)
        });
        numbers.collect()
    }
}

/// A launch as a function of C++ over its buffers.
fn instance(launch: &Launch) -> String {
    let kernel = launch.kernel;
    let mut text = String::new();
    for name in kernel.defines {
        text += &format!("#define {name}\n");
    }
    text += &launch.declarations();
    text += "void run(void** buffers) {\n";
    text += "const uint3 thread_position_in_grid = shim::current->in_grid;\n";
    text += "const uint thread_index_in_simdgroup = shim::current->lane;\n";
    let inputs = kernel.inputs.iter().map(|a| (a, "const "));
    let outputs = kernel.outputs.iter().map(|a| (a, ""));
    for (index, (argument, access)) in inputs.chain(outputs).enumerate() {
        let (name, element) = (argument.name, argument.element.metal_name());
        text += &format!("{access}{element}* {name} = ({access}{element}*)buffers[{index}];\n");
    }
    text += kernel.body;
    text += "}\n";
    for name in kernel.defines {
        text += &format!("#undef {name}\n");
    }
    text
}

/// Numbers in a format.
pub(crate) fn floats(numbers: &[f32], dtype: DType) -> Buffer {
    match dtype {
        DType::F32 => numbers.iter().flat_map(|x| x.to_ne_bytes()).collect(),
        DType::Bf16 => numbers
            .iter()
            .flat_map(|x| bf16::from_f32(*x).to_ne_bytes())
            .collect(),
        DType::F16 => unreachable!("the shim has no such type"),
    }
}

fn numbers(bytes: &[u8], dtype: DType) -> Vec<f32> {
    match dtype {
        DType::F32 => bytes
            .chunks_exact(4)
            .map(|b| f32::from_ne_bytes(b.try_into().expect("four")))
            .collect(),
        DType::Bf16 => bytes
            .chunks_exact(2)
            .map(|b| bf16::from_ne_bytes(b.try_into().expect("two")).to_f32())
            .collect(),
        DType::F16 => unreachable!("the shim has no such type"),
    }
}

/// Numbers between -1 and 1 that a format can hold.
pub(crate) fn random(seed: &mut u64, count: usize, dtype: DType) -> Vec<f32> {
    let mut next = || {
        *seed = seed
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        #[expect(clippy::cast_precision_loss, reason = "24 bits")]
        let unit = (*seed >> 40) as f32 / 8_388_608.0;
        unit - 1.0
    };
    let rounded = |x: f32| match dtype {
        DType::F32 => x,
        DType::Bf16 => bf16::from_f32(x).to_f32(),
        DType::F16 => unreachable!("the shim has no such type"),
    };
    (0..count).map(|_| rounded(next())).collect()
}

/// Compares results with what was expected, up to a part of the largest expected number.
pub(crate) fn close(what: &str, found: &[f32], expected: &[f32], tolerance: f32) {
    assert_eq!(found.len(), expected.len(), "{what}");
    let scale = expected.iter().fold(1e-3_f32, |m, x| m.max(x.abs()));
    for (index, (f, e)) in found.iter().zip(expected).enumerate() {
        assert!(
            (f - e).abs() <= tolerance * scale,
            "{what}: number {index} is {f}, expected {e} (largest {scale})"
        );
    }
}

/// What rounding to a format allows, as a part of the largest number.
pub(crate) fn tolerance(dtype: DType) -> f32 {
    match dtype {
        DType::F32 => 1e-5,
        _ => 1.0 / 128.0,
    }
}
