//! Compiles the shim around DPDK's inline functions and links DPDK.
//!
//! What is released has DPDK and its network drivers inside: a driver that is a plugin asks the dynamic linker where its thread's buffers are for each packet it frees, and calls all else through tables, which
//! takes three to five cycles a packet. Builds for tests, which are linked far more often, use the shared libraries, whose drivers the EAL loads as plugins. `SLUICE_DPDK=static` or `SLUICE_DPDK=shared` chooses
//! otherwise; without DPDK's archives it is shared.

use pkg_config::Library;
use std::collections::BTreeSet;
use std::path::Path;
use std::process::ExitCode;

/// Libraries whose functions are called directly.
const LIBRARIES: [&str; 7] = [
    "rte_eal",
    "rte_ethdev",
    "rte_kvargs",
    "rte_mbuf",
    "rte_mempool",
    "rte_ring",
    "rte_vhost",
];

/// Kinds of drivers that a switch can use: `librte_KIND_*.a`.
const KINDS: [&str; 4] = ["bus", "common", "mempool", "net"];

/// What those drivers need of other kinds.
const NEEDED: [&str; 1] = ["rte_raw_ifpga"];

/// Accelerators of cryptography, which only `crypto` drivers use.
const NOT_NEEDED: [&str; 1] = ["rte_common_qat"];

/// What DPDK's archives ask of the system; Debian's libdpdk-dev brings them all. The linker leaves out what nothing asks for.
const SYSTEM: [&str; 14] = [
    "atomic", "bpf", "bsd", "crypto", "elf", "fdt", "ibverbs", "jansson", "mlx4", "mlx5", "numa",
    "pcap", "xdp", "z",
];

fn main() -> ExitCode {
    println!("cargo:rerun-if-changed=shim/shim.c");
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-env-changed=SLUICE_DPDK");
    println!("cargo:rustc-check-cfg=cfg(static_dpdk)");
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
    let archived = match linking() {
        Ok(archived) => archived,
        Err(value) => {
            println!("cargo:warning=SLUICE_DPDK is {value:?}, and not static or shared");
            return ExitCode::FAILURE;
        }
    };
    for path in &dpdk.link_paths {
        println!("cargo:rustc-link-search=native={}", path.display());
    }
    let archives = if archived {
        archives(&dpdk)
    } else {
        Vec::new()
    };
    if archives.is_empty() {
        for library in LIBRARIES {
            println!("cargo:rustc-link-lib=dylib={library}");
        }
        return ExitCode::SUCCESS;
    }
    println!("cargo:rustc-cfg=static_dpdk");
    for archive in archives {
        // Drivers make themselves known by constructors, which nothing calls by name.
        println!("cargo:rustc-link-lib=static:+whole-archive,-bundle={archive}");
    }
    for library in SYSTEM {
        println!("cargo:rustc-link-lib=dylib={library}");
    }
    ExitCode::SUCCESS
}

/// Whether DPDK is to be linked as archives; an error is the value of `SLUICE_DPDK` that means nothing.
fn linking() -> Result<bool, String> {
    match std::env::var("SLUICE_DPDK").as_deref() {
        Ok("static") => Ok(true),
        Ok("shared") => Ok(false),
        Ok(other) if !other.is_empty() => Err(other.to_owned()),
        _ => Ok(std::env::var("PROFILE").as_deref() == Ok("release")),
    }
}

/// The archives to link: DPDK's libraries and the drivers of the kinds above. None where some library has no archive.
fn archives(dpdk: &Library) -> Vec<String> {
    let Ok(directory) = pkg_config::get_variable("libdpdk", "libdir") else {
        return Vec::new();
    };
    let Ok(entries) = Path::new(&directory).read_dir() else {
        return Vec::new();
    };
    let installed: BTreeSet<String> = entries
        .filter_map(|entry| {
            let name = entry.ok()?.file_name().into_string().ok()?;
            let library = name.strip_prefix("lib")?.strip_suffix(".a")?;
            library.starts_with("rte_").then(|| library.to_owned())
        })
        .collect();
    let libraries = dpdk.libs.iter().filter(|name| name.starts_with("rte_"));
    if let Some(missing) = libraries.clone().find(|name| !installed.contains(*name)) {
        println!(
            "cargo:warning=lib{missing}.a is missing: DPDK is linked by its shared libraries, which is slower"
        );
        return Vec::new();
    }
    let is_driver = |name: &str| {
        let kind = name["rte_".len()..].split_once('_').map(|(kind, _)| kind);
        kind.is_some_and(|kind| KINDS.contains(&kind))
    };
    let drivers = installed.iter().filter(|name| {
        NEEDED.contains(&name.as_str()) || is_driver(name) && !NOT_NEEDED.contains(&name.as_str())
    });
    let both: BTreeSet<&String> = libraries.chain(drivers).collect();
    both.into_iter().cloned().collect()
}
