//! Compiles the shim around DPDK's inline functions and links DPDK.
//!
//! Release builds have DPDK and its network drivers linked in statically: a driver that is a plugin
//! asks the dynamic linker for its thread's buffers for each packet it frees, and makes all other
//! calls through tables, which takes three to five cycles a packet. Test builds, which are linked
//! far more often, use the shared libraries, whose drivers the EAL loads as plugins.
//! `SLUICE_DPDK=static` or `SLUICE_DPDK=shared` overrides this. Without DPDK's archives, release
//! builds use the shared libraries.

use pkg_config::Library;
use std::collections::BTreeSet;
use std::path::Path;
use std::process::ExitCode;

/// Libraries whose functions are called directly.
const LIBRARIES: [&str; 6] = [
    "rte_eal",
    "rte_ethdev",
    "rte_kvargs",
    "rte_mbuf",
    "rte_mempool",
    "rte_ring",
];

/// Kinds of drivers that a switch can use: `librte_KIND_*.a`.
const KINDS: [&str; 4] = ["bus", "common", "mempool", "net"];

/// Libraries of other kinds that those drivers need.
const NEEDED: [&str; 1] = ["rte_raw_ifpga"];

/// Drivers for crypto accelerators, which only `crypto` drivers use.
const NOT_NEEDED: [&str; 1] = ["rte_common_qat"];

/// System libraries that DPDK's archives may need, depending on how DPDK was built; Debian's
/// libdpdk-dev depends on all of them. The linker leaves out unused ones.
const SYSTEM: [&str; 11] = [
    "bpf", "bsd", "fdt", "ibverbs", "jansson", "mlx4", "mlx5", "numa", "pcap", "xdp", "z",
];

fn main() -> ExitCode {
    println!("cargo:rerun-if-changed=shim/shim.c");
    println!("cargo:rerun-if-changed=shim/xsk.c");
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
        .file("shim/xsk.c")
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
    let linking = match linking() {
        Ok(linking) => linking,
        Err(value) => {
            println!("cargo:warning=SLUICE_DPDK is {value:?}, and not static or shared");
            return ExitCode::FAILURE;
        }
    };
    let directory = match dpdk.link_paths.first() {
        Some(path) => path.clone(),
        None => pkg_config::get_variable("libdpdk", "libdir")
            .unwrap_or_default()
            .into(),
    };
    println!("cargo:rustc-link-search=native={}", directory.display());
    if linking != Linking::Shared {
        match archives(&dpdk, &directory) {
            Ok(archives) => {
                link_archives(&directory, &archives);
                return ExitCode::SUCCESS;
            }
            Err(missing) => {
                println!("cargo:warning={missing}: DPDK cannot be linked as archives");
                if linking == Linking::Static {
                    return ExitCode::FAILURE;
                }
            }
        }
    }
    for library in LIBRARIES {
        println!("cargo:rustc-link-lib=dylib={library}");
    }
    // A driver that is a plugin calls ours instead of libxdp's only if the program exports them.
    for function in [
        "xsk_socket__create",
        "xsk_socket__delete",
        "xsk_umem__create",
        "xsk_umem__delete",
    ] {
        println!("cargo:rustc-link-arg-tests=-Wl,--export-dynamic-symbol={function}");
    }
    ExitCode::SUCCESS
}

/// How DPDK is linked.
#[derive(PartialEq)]
enum Linking {
    Shared,
    Static,
    /// Statically if there are archives.
    Either,
}

/// Returns how to link DPDK; the error is an invalid value of `SLUICE_DPDK`.
fn linking() -> Result<Linking, String> {
    match std::env::var("SLUICE_DPDK").as_deref() {
        Ok("static") => Ok(Linking::Static),
        Ok("shared") => Ok(Linking::Shared),
        Ok(other) if !other.is_empty() => Err(other.to_owned()),
        _ if std::env::var("PROFILE").as_deref() == Ok("release") => Ok(Linking::Either),
        _ => Ok(Linking::Shared),
    }
}

fn link_archives(directory: &Path, archives: &[String]) {
    println!("cargo:rustc-cfg=static_dpdk");
    for archive in archives {
        // Drivers register themselves by constructors, which nothing calls by name.
        println!("cargo:rustc-link-lib=static:+whole-archive,-bundle={archive}");
        // If DPDK changes, the program must be linked again.
        let path = directory.join(format!("lib{archive}.a"));
        println!("cargo:rerun-if-changed={}", path.display());
    }
    for library in SYSTEM {
        if directory.join(format!("lib{library}.so")).exists() {
            println!("cargo:rustc-link-lib=dylib={library}");
        }
    }
    // A library of the compiler itself.
    println!("cargo:rustc-link-lib=dylib=atomic");
}

/// Returns the archives to link: DPDK's libraries and the drivers of the kinds above. The error
/// says what is missing.
fn archives(dpdk: &Library, directory: &Path) -> Result<Vec<String>, String> {
    let entries = directory
        .read_dir()
        .map_err(|error| format!("{}: {error}", directory.display()))?;
    let installed: BTreeSet<String> = entries
        .filter_map(|entry| {
            let name = entry.ok()?.file_name().into_string().ok()?;
            let library = name.strip_prefix("lib")?.strip_suffix(".a")?;
            library.starts_with("rte_").then(|| library.to_owned())
        })
        .collect();
    let libraries = dpdk.libs.iter().filter(|name| name.starts_with("rte_"));
    if let Some(missing) = libraries.clone().find(|name| !installed.contains(*name)) {
        return Err(format!("{}/lib{missing}.a is missing", directory.display()));
    }
    let is_driver = |name: &str| {
        let kind = name["rte_".len()..].split_once('_').map(|(kind, _)| kind);
        kind.is_some_and(|kind| KINDS.contains(&kind)) && !NOT_NEEDED.contains(&name)
    };
    let is_needed = |name: &&String| is_driver(name) || NEEDED.contains(&name.as_str());
    let drivers = installed.iter().filter(is_needed);
    let both: BTreeSet<&String> = libraries.chain(drivers).collect();
    Ok(both.into_iter().cloned().collect())
}
