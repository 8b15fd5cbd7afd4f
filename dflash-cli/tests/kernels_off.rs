//! `--kernels-off` through the real binary.

mod common;

use common::run;

#[test]
fn a_kernel_that_does_not_exist_is_refused() {
    let ran = run(&["generate", "Hi", "--kernels-off", "attention,atention"]);
    assert_eq!((ran.code, ran.out.as_str()), (2, ""), "{}", ran.err);
    for part in [
        "`atention`",
        "`gated-delta`",
        "`affine-rows`",
        "`attention`",
    ] {
        assert!(ran.err.contains(part), "{}", ran.err);
    }
}

#[cfg(not(target_os = "macos"))]
#[test]
fn without_an_apple_gpu_it_is_noted_to_have_no_effect() {
    let ask = |options: &[&str]| {
        let object = common::generate(&[&["Hi", "--max-tokens", "3"], options].concat());
        let notes = object["notes"].as_array().expect("a list").clone();
        notes.iter().any(|n| {
            n.as_str()
                .is_some_and(|n| n.contains("`--kernels-off` has no effect"))
        })
    };
    assert!(ask(&["--kernels-off", "attention"]));
    assert!(!ask(&[]));
}
