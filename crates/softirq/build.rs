//! Compiles the programs in `bpf/` to BPF.

use std::path::PathBuf;
use std::process::{Command, ExitCode};

fn main() -> ExitCode {
    println!("cargo:rerun-if-changed=bpf");
    println!("cargo:rerun-if-env-changed=CLANG");
    let variable = |name| std::env::var(name).unwrap_or_default();
    let object = PathBuf::from(variable("OUT_DIR")).join("steer.bpf.o");
    let clang = match variable("CLANG") {
        empty if empty.is_empty() => "clang".to_owned(),
        clang => clang,
    };
    // Debian's compilers find the kernel headers for one architecture (asm/types.h) by default, but
    // not when they compile for BPF.
    let headers = format!(
        "/usr/include/{}-linux-gnu",
        variable("CARGO_CFG_TARGET_ARCH")
    );
    // Version 3 of the BPF instruction set has compare-and-exchange.
    let status = Command::new(&clang)
        .args([
            "-target", "bpf", "-mcpu=v3", "-g", "-O2", "-Wall", "-Werror",
        ])
        .args(["-idirafter", &headers, "-c", "bpf/steer.bpf.c", "-o"])
        .arg(&object)
        .status();
    match status {
        Ok(status) if status.success() => ExitCode::SUCCESS,
        Ok(_) => {
            println!("cargo:warning=bpf/steer.bpf.c: {clang} failed (Debian: clang, libbpf-dev)");
            ExitCode::FAILURE
        }
        Err(error) => {
            println!("cargo:warning=cannot run {clang} (Debian: clang): {error}");
            ExitCode::FAILURE
        }
    }
}
