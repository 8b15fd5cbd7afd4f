//! The quantizer against the codes that MLX made from the same matrices.

use std::path::{Path, PathBuf};

use dflash_core::checkpoint::{Checkpoint, StoredTensor, WeightSource, quantize};
use dflash_core::config::{QuantSpec, TargetConfig};

fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/golden")
        .join(name)
}

/// The matrices of the unquantized twin that a quantized module was made of: its own, or one per expert.
fn twins(dense: &Checkpoint, module: &str) -> Vec<StoredTensor> {
    let module = module.strip_prefix("language_model.").unwrap_or(module);
    let tensor = |name: String| dense.tensor(&name).cloned();
    match module.split_once(".switch_mlp.") {
        None => tensor(format!("{module}.weight")).into_iter().collect(),
        Some((mlp, part)) => (0..)
            .map_while(|e| tensor(format!("{mlp}.experts.{e}.{part}.weight")))
            .collect(),
    }
}

/// The same numbers in float32, which is what was quantized.
fn widened(tensor: &StoredTensor) -> StoredTensor {
    let bytes: Vec<u8> = tensor
        .to_f32()
        .expect("floats")
        .iter()
        .flat_map(|v| v.to_le_bytes())
        .collect();
    StoredTensor {
        dtype: dflash_core::checkpoint::StoredType::F32,
        bytes: dflash_core::checkpoint::Bytes::copied(&bytes),
        ..tensor.clone()
    }
}

/// How many modules of a folder were compared, and what differs.
fn compare(family: &str, folder: &str, change: impl Fn(&mut StoredTensor)) -> (usize, Vec<String>) {
    let path = golden(family).join(folder);
    let config = TargetConfig::read(&path).expect("a config");
    let spec = config.quantization.expect("a quantized folder");
    let packed = Checkpoint::open(&path).expect("a checkpoint");
    let dense = Checkpoint::open(&golden(family).join("target")).expect("the twin");
    let (mut count, mut found) = (0, Vec::new());
    for scales in packed.names().filter(|n| n.ends_with(".scales")) {
        let module = scales.trim_end_matches(".scales");
        let spec: QuantSpec = spec.for_module(module).expect("it has scales");
        let recorded = |part: &str| {
            let tensor = packed
                .tensor(&format!("{module}.{part}"))
                .expect("all three");
            match tensor.shape.len() {
                3 => (0..tensor.shape[0]).map(|e| tensor.part(e)).collect(),
                _ => vec![tensor.clone()],
            }
        };
        let (codes, scales, biases) = (recorded("weight"), recorded("scales"), recorded("biases"));
        let twins = twins(&dense, module);
        assert_eq!(twins.len(), codes.len(), "{family}/{folder}: {module}");
        for (i, twin) in twins.iter().enumerate() {
            let mut twin = widened(twin);
            change(&mut twin);
            let WeightSource::Affine {
                codes: own_codes,
                scales: own_scales,
                biases: own_biases,
                bits,
                group,
                ..
            } = quantize(&twin, spec).expect("it fits")
            else {
                panic!("an affine weight");
            };
            assert_eq!((bits, group), (spec.bits, spec.group));
            for (part, own, recorded) in [
                ("codes", &own_codes, &codes[i]),
                ("scales", &own_scales, &scales[i]),
                ("biases", &own_biases, &biases[i]),
            ] {
                assert_eq!((own.dtype, &own.shape), (recorded.dtype, &recorded.shape));
                if *own.bytes != *recorded.bytes {
                    found.push(format!("{family}/{folder}: {part} of {module}, matrix {i}"));
                }
            }
            count += 1;
        }
    }
    (count, found)
}

const FAMILIES: [&str; 6] = [
    "llama3",
    "qwen3",
    "qwen3-tied",
    "qwen3-moe",
    "qwen3.5",
    "qwen3.5-moe",
];

#[test]
fn codes_scales_and_biases_are_those_of_mlx() {
    let mut count = 0;
    for family in FAMILIES {
        for folder in ["mlx-4bit", "mlx-8bit"] {
            let (compared, found) = compare(family, folder, |_| {});
            assert!(found.is_empty(), "{}", found.join("\n"));
            count += compared;
        }
    }
    assert!(count > 900, "{count} matrices");
}

/// One number a little larger is seen.
#[test]
fn a_changed_number_is_found() {
    let (_, found) = compare("qwen3", "mlx-8bit", |tensor| {
        let mut bytes = tensor.bytes.to_vec();
        let number = f32::from_le_bytes(bytes[..4].try_into().expect("four bytes"));
        bytes[..4].copy_from_slice(&(number + 0.01).to_le_bytes());
        tensor.bytes = dflash_core::checkpoint::Bytes::copied(&bytes);
    });
    assert!(found.len() >= 40, "{}", found.len());
}

/// The same numbers in another format have the same codes; scales and biases are rounded to it.
#[test]
fn codes_do_not_depend_on_the_format_of_the_file() {
    let dense = Checkpoint::open(&golden("qwen3").join("target")).expect("a checkpoint");
    let stored = dense
        .tensor("model.layers.0.self_attn.q_proj.weight")
        .expect("a matrix");
    let wide = widened(stored);
    let spec = QuantSpec {
        mode: dflash_core::config::QuantMode::Affine,
        bits: 4,
        group: 32,
    };
    let parts = |t: &StoredTensor| match quantize(t, spec).expect("it fits") {
        WeightSource::Affine {
            codes,
            scales,
            biases,
            ..
        } => (codes, scales, biases),
        other => panic!("an affine weight: {}", other.name()),
    };
    let (codes, scales, biases) = parts(stored);
    let (wide_codes, wide_scales, wide_biases) = parts(&wide);
    assert_eq!(*codes.bytes, *wide_codes.bytes);
    assert_eq!((scales.dtype, biases.dtype), (stored.dtype, stored.dtype));
    let floats = |t: &StoredTensor| t.to_f32().expect("floats");
    let rounded: Vec<f32> = floats(&wide_scales)
        .iter()
        .map(|v| half::bf16::from_f32(*v).to_f32())
        .collect();
    assert_eq!(floats(&scales), rounded);
    assert_ne!(floats(&wide_scales), rounded, "the format matters");
    // A bias is one of the matrix's own numbers.
    assert_eq!(floats(&biases), floats(&wide_biases));
}
