//! What a build on a Mac says about missing programs.

#[path = "../build/mac.rs"]
mod mac;

/// The messages where only these command lines end well.
fn said(working: &[&str]) -> Vec<String> {
    mac::missing("my-cmake", &|program, args| {
        working.contains(&format!("{program} {}", args.join(" ")).as_str())
    })
}

const SDK: &str = "xcrun -sdk macosx --show-sdk-path";
const METAL: &str = "xcrun -sdk macosx metal --version";
const CMAKE: &str = "my-cmake --version";

#[test]
fn nothing_is_said_where_everything_works() {
    assert_eq!(said(&[SDK, METAL, CMAKE]), [""; 0]);
}

#[test]
fn each_missing_program_is_named_with_its_remedy() {
    let metal = said(&[SDK, CMAKE]);
    assert_eq!(metal.len(), 1, "{metal:?}");
    assert!(
        metal[0].contains("xcodebuild -downloadComponent MetalToolchain"),
        "{metal:?}"
    );
    let cmake = said(&[SDK, METAL]);
    assert_eq!(cmake.len(), 1, "{cmake:?}");
    assert!(
        cmake[0].contains("`my-cmake` does not run") && cmake[0].contains("brew install cmake"),
        "{cmake:?}"
    );
}

#[test]
fn without_the_sdk_its_compiler_is_not_named_as_well() {
    let all = said(&[]);
    assert_eq!(all.len(), 2, "{all:?}");
    assert!(all[0].contains("xcode-select -s"), "{all:?}");
    assert!(!all[0].contains("MetalToolchain"), "{all:?}");
}

#[test]
fn every_message_is_one_line_and_names_the_way_without_mlx() {
    for line in said(&[]).into_iter().chain(said(&[SDK])) {
        assert!(!line.contains('\n'), "{line}");
        assert!(
            line.ends_with("--no-default-features --features candle,cli,demo"),
            "{line}"
        );
    }
}
