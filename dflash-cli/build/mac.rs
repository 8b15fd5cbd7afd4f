//! The programs that building MLX takes on a Mac.

/// How to do without them.
const WITHOUT: &str = "or build without MLX: --no-default-features --features candle,cli,demo";

/// What is missing, one message each with its remedy.
///
/// `works` starts a program with arguments and says whether it ended well; `cmake` is the program
/// that MLX's build will start.
pub(crate) fn missing(cmake: &str, works: &dyn Fn(&str, &[&str]) -> bool) -> Vec<String> {
    let mut lines = Vec::new();
    // Metal's compiler is asked as MLX's build asks it. It is a part of Xcode that the command line
    // tools alone lack, and newer versions of Xcode leave a placeholder that fails until the
    // component is downloaded, so that looking for the file would not do.
    if !works("xcrun", &["-sdk", "macosx", "--show-sdk-path"]) {
        lines.push(format!(
            "MLX needs Xcode with its macOS SDK: install Xcode, then `sudo xcode-select -s /Applications/Xcode.app`; {WITHOUT}"
        ));
    } else if !works("xcrun", &["-sdk", "macosx", "metal", "--version"]) {
        lines.push(format!(
            "MLX needs Metal's compiler, which Xcode brings and the command line tools alone do not: `xcodebuild -downloadComponent MetalToolchain`, and if that wants Xcode, `sudo xcode-select -s /Applications/Xcode.app` before; {WITHOUT}"
        ));
    }
    if !works(cmake, &["--version"]) {
        lines.push(format!(
            "MLX needs CMake, and `{cmake}` does not run: `brew install cmake`, or name the program in CMAKE; {WITHOUT}"
        ));
    }
    lines
}
