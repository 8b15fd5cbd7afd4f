#!/usr/bin/env bash
# A compiler that type-checks for aarch64-apple-darwin on Debian or Ubuntu, in the folder $1: Debian's
# rustc with its library sources, unpacked and not installed, and the metadata of std built from them.
# Rustup's toolchains stay as they are. It wants apt-get, dpkg and cargo.
set -euo pipefail
mkdir -p "$1/debs" "$1/bin"
to=$(cd "$1" && pwd)
root=$to/root

cd "$to/debs"
packages=(rustc-web libstd-rust-web-1.96 libstd-rust-web-dev rust-web-clippy rust-web-src libllvm22)
if ! apt-get download -qq "${packages[@]}"; then
  sudo=
  [ "$(id -u)" = 0 ] || sudo=sudo
  $sudo apt-get update -qq
  apt-get download -qq "${packages[@]}"
fi
mkdir -p "$root"
for deb in *.deb; do
  case $deb in
    rust-web-src_*) dpkg --fsys-tarfile "$deb" | tar -x -C "$root" --wildcards './usr/lib/rustlib/*' './usr/src/*/library/*' ;;
    *) dpkg -x "$deb" "$root" ;;
  esac
done
rm -rf "$to/debs" "$root/usr/share"

# The programs find their own shared libraries and nobody else's.
for program in rustc clippy-driver rustdoc cargo-clippy; do
  cat > "$to/bin/$program" <<T
#!/bin/sh
LD_LIBRARY_PATH=$root/usr/lib/x86_64-linux-gnu\${LD_LIBRARY_PATH:+:\$LD_LIBRARY_PATH} exec $root/usr/bin/$program "\$@"
T
  chmod +x "$to/bin/$program"
done

# Cargo builds the metadata of std once; put into the sysroot, it serves every later check.
mkdir -p "$to/std/src"
cd "$to/std"
printf '[package]\nname = "std-for-mac"\nversion = "0.0.0"\nedition = "2021"\n[workspace]\n' > Cargo.toml
: > src/lib.rs
RUSTC=$to/bin/rustc RUSTC_BOOTSTRAP=1 CARGO_PROFILE_DEV_DEBUG=0 CARGO_INCREMENTAL=0 CARGO_TARGET_DIR=$to/std/target \
  cargo check -q -Zbuild-std=std,panic_abort,panic_unwind,proc_macro,test --target aarch64-apple-darwin
lib=$root/usr/lib/rustlib/aarch64-apple-darwin/lib
mkdir -p "$lib"
cp target/aarch64-apple-darwin/debug/deps/*.rmeta "$lib"
rm -f "$lib"/libstd_for_mac*
rm -rf "$to/std" "$root/usr/src" "$root/usr/lib/rustlib/src"
touch "$to/ready"
