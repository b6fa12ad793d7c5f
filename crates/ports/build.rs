//! Compiles the shim around DPDK's inline functions and links the DPDK libraries it needs.

use std::process::ExitCode;

/// Libraries whose functions are called directly. Drivers are plugins that the EAL loads itself.
const LIBRARIES: [&str; 7] = [
    "rte_eal",
    "rte_ethdev",
    "rte_kvargs",
    "rte_mbuf",
    "rte_mempool",
    "rte_ring",
    "rte_vhost",
];

fn main() -> ExitCode {
    println!("cargo:rerun-if-changed=shim/shim.c");
    println!("cargo:rerun-if-changed=build.rs");
    let dpdk = match pkg_config::Config::new()
        .atleast_version("22.11")
        .cargo_metadata(false)
        .probe("libdpdk")
    {
        Ok(dpdk) => dpdk,
        Err(error) => {
            println!("cargo:warning=DPDK 22.11 or newer is needed (Debian: libdpdk-dev): {error}");
            return ExitCode::FAILURE;
        }
    };
    let mut build = cc::Build::new();
    build
        .file("shim/shim.c")
        .includes(&dpdk.include_paths)
        .flag("-include")
        .flag("rte_config.h")
        .flag("-D_GNU_SOURCE")
        .flag("-Wno-deprecated-declarations")
        .flag("-Wno-address-of-packed-member")
        .opt_level(3);
    if std::env::var("CARGO_CFG_TARGET_ARCH").as_deref() == Ok("x86_64") {
        // Debian builds DPDK for this baseline, and its headers use SSE4 intrinsics.
        build.flag("-march=corei7");
    }
    build.compile("sluice_shim");
    for path in &dpdk.link_paths {
        println!("cargo:rustc-link-search=native={}", path.display());
    }
    for library in LIBRARIES {
        println!("cargo:rustc-link-lib=dylib={library}");
    }
    ExitCode::SUCCESS
}
