//! What a core or a thread spends its time on: `perf`'s samples, by module of the kernel or
//! program. Its clock is the kernel's (cpu-clock), which every machine has.

use crate::place::{Place, record, run_with};
use crate::subject::Error;
use std::collections::BTreeMap;
use std::time::Duration;

/// Samples a second: not in step with what happens every millisecond.
const RATE: u32 = 1997;

/// What is sampled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// Cores.
    Cores(Vec<usize>),
    /// Threads, by kernel ID.
    Threads(Vec<u32>),
}

/// How often samples fell into modules: parts of the kernel by what their functions are for
/// ([`module`]), else the file whose code ran. The largest first; shares add up to 1.
pub fn samples(place: &Place, target: &Target, seconds: f64) -> Result<Vec<(String, f64)>, Error> {
    let list = |numbers: Vec<String>| numbers.join(",");
    let (option, numbers) = match target {
        Target::Cores(cores) => ("-C", list(cores.iter().map(usize::to_string).collect())),
        Target::Threads(threads) => ("-t", list(threads.iter().map(u32::to_string).collect())),
    };
    if numbers.is_empty() {
        return Err(Error::Failed("no core and no thread to be sampled".into()));
    }
    let file = record(place, "perf", "")?;
    let path = file.display().to_string();
    let rate = RATE.to_string();
    let time = seconds.to_string();
    let limit = Duration::from_secs_f64(seconds + 60.0);
    let words = [
        "perf",
        "record",
        "-q",
        "-e",
        "cpu-clock",
        "-F",
        &rate,
        option,
        &numbers,
        "-o",
        &path,
    ];
    let words = [&words[..], &["--", "sleep", &time]].concat();
    let recorded = run_with(&words, |_| {}, "", limit);
    let words = [
        "perf", "report", "--stdio", "-q", "-i", &path, "--sort", "dso,sym", "-F",
    ];
    let words = [&words[..], &["sample,dso,sym", "-t", "|"]].concat();
    let said = recorded.and_then(|_| run_with(&words, |_| {}, "", limit));
    // Whatever became of it.
    let _ = std::fs::remove_file(&file);
    shares(&said?)
}

/// Shares by module of what `perf report` prints.
fn shares(said: &str) -> Result<Vec<(String, f64)>, Error> {
    let mut counts: BTreeMap<String, u64> = BTreeMap::new();
    for line in said.lines().filter(|line| !line.starts_with('#')) {
        let columns: Vec<&str> = line.splitn(3, '|').map(str::trim).collect();
        let [count, object, symbol] = columns[..] else {
            continue;
        };
        let Ok(count) = count.parse::<u64>() else {
            continue;
        };
        let symbol = symbol
            .trim_start_matches("[k]")
            .trim_start_matches("[.]")
            .trim();
        *counts.entry(module(object, symbol)).or_default() += count;
    }
    let total: u64 = counts.values().sum();
    if total == 0 {
        return Err(Error::Failed("perf took no samples: nothing ran".into()));
    }
    let mut shares: Vec<(String, f64)> = counts
        .into_iter()
        .map(|(name, count)| (name, count as f64 / total as f64))
        .collect();
    shares.sort_by(|one, other| other.1.total_cmp(&one.1).then_with(|| one.0.cmp(&other.0)));
    Ok(shares)
}

/// Beginnings of the kernel's functions, by what they are for. The first that fits counts.
const MODULES: [(&str, &[&str]); 12] = [
    (
        "idle",
        &[
            "default_idle",
            "native_safe_halt",
            "pv_native_safe_halt",
            "acpi_idle",
            "cpuidle",
            "do_idle",
            "mwait_idle",
            "intel_idle",
            "io_idle",
        ],
    ),
    (
        "locks",
        &[
            "_raw_",
            "native_queued_spin",
            "queued_spin",
            "__pv_queued_spin",
            "mutex_",
            "__mutex",
        ],
    ),
    (
        "bridge",
        &[
            "br_",
            "__br_",
            "fdb_",
            "should_deliver",
            "deliver_clone",
            "maybe_deliver",
        ],
    ),
    ("veth", &["veth_", "__veth_"]),
    ("tap", &["tun_", "tap_", "__tun_"]),
    (
        "packet sockets",
        &["packet_", "tpacket", "__packet_", "prb_", "run_filter"],
    ),
    (
        "IP forwarding",
        &[
            "ip_", "__ip_", "fib_", "__fib_", "inet_", "ipv4_", "rt_", "rt4_", "neigh_",
            "__neigh_", "nf_", "arp_",
        ],
    ),
    (
        "queues",
        &[
            "qdisc_",
            "__qdisc_",
            "pfifo_",
            "fq_",
            "noqueue_",
            "sch_",
            "sch_direct",
            "dev_hard_start_xmit",
            "dev_queue_xmit",
            "__dev_queue_xmit",
            "__dev_xmit",
            "validate_xmit",
            "netdev_core_pick",
            "__netif_schedule",
        ],
    ),
    (
        "receive path",
        &[
            "netif_",
            "__netif_",
            "napi_",
            "__napi_",
            "process_backlog",
            "net_rx_action",
            "enqueue_to_backlog",
            "get_rps_cpu",
            "eth_type_trans",
            "dev_gro",
            "__dev_forward",
            "dev_forward",
            "rps_",
            "net_rps",
        ],
    ),
    (
        "packet buffers",
        &[
            "skb_",
            "__skb_",
            "kfree_skb",
            "sk_skb_reason",
            "consume_skb",
            "alloc_skb",
            "__alloc_skb",
            "build_skb",
            "__build_skb",
            "kmem_cache",
            "kmalloc",
            "__kmalloc",
            "kfree",
            "___slab",
            "__slab",
            "__kfree",
            "pskb_",
            "sock_wfree",
            "sock_alloc",
            "__alloc_pages",
            "page_frag",
            "__page_frag",
            "free_unref",
            "memcg_",
        ],
    ),
    (
        "copies",
        &[
            "copy_",
            "_copy_",
            "rep_movs",
            "memcpy",
            "__memcpy",
            "memmove",
            "__memmove",
            "csum_",
            "clear_page",
            "memset",
            "__memset",
        ],
    ),
    (
        "softirqs and scheduling",
        &[
            "handle_softirqs",
            "__do_softirq",
            "do_softirq",
            "irq_",
            "__irq",
            "schedule",
            "__schedule",
            "finish_task",
            "ksoftirqd",
            "run_ksoftirqd",
            "smpboot",
            "try_to_wake",
            "ttwu_",
            "pick_next",
            "update_",
            "enqueue_task",
            "dequeue_task",
            "sysvec_",
            "asm_sysvec",
            "flush_smp",
            "hrtimer_",
            "tick_",
            "__sysvec",
        ],
    ),
];

/// The module that a function belongs to: `kernel: bridge` and the like, or its program.
pub fn module(object: &str, symbol: &str) -> String {
    if object != "[kernel.kallsyms]" && object != "[kernel]" {
        let name = object.rsplit('/').next().unwrap_or(object);
        // A module of the kernel is given by its own name.
        return name.to_owned();
    }
    let found = MODULES
        .iter()
        .find(|(_, starts)| starts.iter().any(|start| symbol.starts_with(start)));
    match found {
        Some((name, _)) => format!("kernel: {name}"),
        None => "kernel: other".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_by_module() {
        for (symbol, wanted) in [
            ("br_handle_frame", "kernel: bridge"),
            ("veth_xmit", "kernel: veth"),
            ("_raw_spin_lock", "kernel: locks"),
            ("fib_table_lookup", "kernel: IP forwarding"),
            ("__dev_queue_xmit", "kernel: queues"),
            (
                "__netif_receive_skb_core.constprop.0",
                "kernel: receive path",
            ),
            ("kmem_cache_alloc_node_noprof", "kernel: packet buffers"),
            ("some_driver_function", "kernel: other"),
        ] {
            assert_eq!(module("[kernel.kallsyms]", symbol), wanted, "{symbol}");
        }
        assert_eq!(module("/usr/lib/libc.so.6", "memcpy"), "libc.so.6");
        assert_eq!(module("[bridge]", "br_x"), "[bridge]");
    }

    #[test]
    fn shares_of_a_report() {
        let said = " 30 |[kernel.kallsyms] |[k] br_forward\n 10|[kernel.kallsyms] |[k] br_x\n\
                    # comment\n 60        |/usr/sbin/ovs-vswitchd |[.] a | b\n\n";
        let shares = shares(said).unwrap();
        assert_eq!(
            shares,
            [("ovs-vswitchd".into(), 0.6), ("kernel: bridge".into(), 0.4)]
        );
        assert!(super::shares("# nothing\n").is_err());
    }
}
