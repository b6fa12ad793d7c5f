//! `dpif-netdev/pmd-...`: how workers spend their time.
//!
//! Open vSwitch counts packets by the cache that answered. Here one compiled lookup answers for
//! every packet; it is counted as a megaflow hit, the most similar of Open vSwitch's lookups, and
//! the other counters stay zero.

use super::{Answer, Commands, bridges, datapaths};
use crate::switch::Switch;
use datapath::clock::cycles_per_second;
use datapath::{WorkerInfo, WorkerStats};
use std::fmt::Write;

/// Period over which the load of queues is averaged, s.
const PERIOD: u32 = 60;

pub(super) fn register(commands: &Commands) {
    commands.answer(
        "dpif-netdev/pmd-stats-show",
        "[-pmd core] [dp]",
        (0, 3),
        stats_show,
    );
    commands.answer(
        "dpif-netdev/pmd-stats-clear",
        "[-pmd core] [dp]",
        (0, 3),
        |switch, arguments| {
            Selection::read(switch, arguments)?;
            switch
                .with_datapath(|datapath| datapath.clear_worker_stats())
                .map_err(|error| error.to_string())?;
            Ok(String::new())
        },
    );
    commands.answer(
        "dpif-netdev/pmd-perf-show",
        "[-nh] [-it iter-history-len] [-ms ms-history-len] [-pmd core] [dp]",
        (0, 8),
        perf_show,
    );
    commands.answer(
        "dpif-netdev/pmd-rxq-show",
        "[-pmd core] [-secs secs] [dp]",
        (0, 5),
        queues_show,
    );
    commands.answer(
        "dpif-netdev/pmd-rxq-rebalance",
        "[dp]",
        (0, 1),
        |switch, arguments| {
            Selection::read(switch, arguments)?;
            let spread = switch
                .with_datapath(|datapath| datapath.rebalance())
                .map_err(|error| error.to_string())?;
            spread.map_err(|error| error.to_string())?;
            Ok("pmd rxq rebalance requested.\n".into())
        },
    );
}

/// The workers that a command is about.
struct Selection {
    core: Option<usize>,
}

impl Selection {
    /// Reads `[-pmd CORE] [OPTION...] [DATAPATH]`. As in Open vSwitch a wrong core number selects
    /// all workers, and where there is only one datapath its name is not checked.
    fn read(switch: &Switch, arguments: &[String]) -> Result<Selection, String> {
        let mut core = None;
        let mut name = None;
        let mut words = arguments.iter();
        while let Some(word) = words.next() {
            match word.as_str() {
                "-pmd" => core = words.next().and_then(|number| number.parse().ok()),
                "-secs" | "-it" | "-ms" => drop(words.next()),
                "-nh" => {}
                word => name = Some(word),
            }
        }
        let types = datapaths::types(switch);
        let known = name.is_some_and(|name| {
            types.iter().any(|datapath_type| {
                name.rsplit('@').next() == Some(&format!("ovs-{datapath_type}"))
            })
        });
        if types.is_empty() || !known && (name.is_some() && types.len() > 1) {
            return Err("please specify an existing datapath".into());
        }
        Ok(Selection { core })
    }

    /// Returns the workers with their core numbers, ordered by these. A worker that is not pinned
    /// is numbered by its position among the workers.
    fn workers(&self, switch: &Switch) -> Vec<(usize, WorkerInfo)> {
        let workers = switch
            .with_datapath(|datapath| datapath.workers())
            .unwrap_or_default();
        let numbered = workers
            .into_iter()
            .enumerate()
            .map(|(place, worker)| (worker.cpu.unwrap_or(place), worker));
        let mut chosen: Vec<_> = numbered
            .filter(|(core, _)| self.core.is_none_or(|wanted| wanted == *core))
            .collect();
        chosen.sort_by_key(|(core, _)| *core);
        chosen
    }
}

/// Returns the NUMA node of a processor, 0 where there is only one. Nodes that tests have set
/// (`--dummy-numa`) take precedence.
fn numa_node(switch: &Switch, core: usize) -> usize {
    let dummy = &switch.shell.options.dummy_numa;
    if !dummy.is_empty() {
        return dummy.get(core).copied().unwrap_or(0);
    }
    let entries = std::fs::read_dir(format!("/sys/devices/system/cpu/cpu{core}"))
        .into_iter()
        .flatten()
        .flatten();
    let node = |entry: std::fs::DirEntry| {
        entry
            .file_name()
            .to_str()?
            .strip_prefix("node")?
            .parse()
            .ok()
    };
    entries.filter_map(node).next().unwrap_or(0)
}

fn heading(switch: &Switch, text: &mut String, core: usize) {
    let _ = writeln!(
        text,
        "pmd thread numa_id {} core_id {core}:",
        numa_node(switch, core)
    );
}

fn ratio(part: u64, whole: u64) -> f64 {
    if whole == 0 {
        0.0
    } else {
        part as f64 / whole as f64
    }
}

fn percent(part: u64, whole: u64) -> f64 {
    100.0 * ratio(part, whole)
}

/// Returns the average number of tables in which a packet has been looked up.
fn lookups_per_pass(switch: &Switch) -> f64 {
    let mut lookups = 0;
    for bridge in bridges(switch) {
        lookups += bridge
            .pipeline
            .borrow()
            .table_stats()
            .iter()
            .map(|table| table.lookups)
            .sum::<u64>();
    }
    let coverage = switch
        .with_datapath(|datapath| datapath.ports())
        .unwrap_or_default();
    let mut passes = 0;
    for port in coverage {
        if let Ok(Ok(stats)) = switch.with_datapath(|datapath| datapath.port_stats(port.id)) {
            passes += stats.rx_packets;
        }
    }
    ratio(lookups, passes)
}

fn passes(stats: &WorkerStats) -> u64 {
    stats.processed() + stats.patched
}

fn stats_block(text: &mut String, stats: &WorkerStats, lookups: f64) {
    let hits = passes(stats);
    let _ = write!(
        text,
        "  packets received: {}\n  packet recirculations: {}\n  avg. datapath passes per packet: {:.2}\n  phwol hits: 0\n  mfex opt hits: 0\n  \
           simple match hits: 0\n  emc hits: 0\n  smc hits: 0\n  megaflow hits: {hits}\n  avg. subtable lookups per megaflow hit: {:.2}\n  \
           miss with success upcall: 0\n  miss with failed upcall: 0\n  avg. packets per output batch: {:.2}\n",
        stats.packets,
        stats.patched,
        ratio(hits, stats.processed()),
        if hits > 0 { lookups } else { 0.0 },
        ratio(stats.tx_packets, stats.tx_batches),
    );
    // Sleep is idle time, too, but takes no cycles.
    let (idle, busy) = (stats.idle_cycles, stats.busy_cycles);
    let all = idle + busy;
    if all == 0 {
        return;
    }
    let _ = write!(
        text,
        "  idle cycles: {idle} ({:.2}%)\n  processing cycles: {busy} ({:.2}%)\n",
        percent(idle, all),
        percent(busy, all)
    );
    let packets = stats.processed();
    if packets > 0 {
        let _ = write!(
            text,
            "  avg cycles per packet: {:.2} ({all}/{packets})\n  avg processing cycles per packet: {:.2} ({busy}/{packets})\n",
            ratio(all, packets),
            ratio(busy, packets),
        );
    }
    if stats.handed + stats.taken > 0 {
        let _ = write!(
            text,
            "  packets handed to other pmds: {}\n  packets taken from other pmds: {}\n",
            stats.handed, stats.taken
        );
    }
}

fn stats_show(switch: &Switch, arguments: &[String]) -> Answer {
    let selection = Selection::read(switch, arguments)?;
    let lookups = lookups_per_pass(switch);
    let mut text = String::new();
    for (core, worker) in selection.workers(switch) {
        heading(switch, &mut text, core);
        stats_block(&mut text, &worker.stats, lookups);
    }
    if selection.core.is_none() {
        // The control thread processes no packets.
        text.push_str("main thread:\n");
        stats_block(&mut text, &WorkerStats::default(), 0.0);
    }
    Ok(text)
}

/// Returns the time of day with milliseconds, UTC.
fn time_of_day() -> String {
    let now = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .unwrap_or_default();
    let seconds = now.as_secs() % 86_400;
    format!(
        "{:02}:{:02}:{:02}.{:03}",
        seconds / 3600,
        seconds / 60 % 60,
        seconds % 60,
        now.subsec_millis()
    )
}

fn perf_show(switch: &Switch, arguments: &[String]) -> Answer {
    let selection = Selection::read(switch, arguments)?;
    let lookups = lookups_per_pass(switch);
    let mut text = String::new();
    for (core, worker) in selection.workers(switch) {
        perf_block(switch, &mut text, core, &worker.stats, lookups);
    }
    Ok(text)
}

fn perf_block(switch: &Switch, text: &mut String, core: usize, stats: &WorkerStats, lookups: f64) {
    let rate = cycles_per_second() as f64;
    let used = stats.busy_cycles + stats.idle_cycles;
    let seconds = (used + stats.sleep_cycles) as f64 / rate;
    let turns = stats.busy_turns + stats.idle_turns;
    let _ = write!(
        text,
        "\nTime: {}\nMeasurement duration: {seconds:.3} s\n\n",
        time_of_day()
    );
    heading(switch, text, core);
    let microseconds = |cycles: u64| cycles as f64 / rate * 1e6;
    let _ = write!(
        text,
        "\n  Iterations:         {turns:12}  ({:.2} us/it)\n  \
             - Used TSC cycles:  {used:12}  ({:5.1} % of total cycles)\n  \
             - idle iterations:  {:12}  ({:5.1} % of used cycles)\n  \
             - busy iterations:  {:12}  ({:5.1} % of used cycles)\n  \
             - sleep iterations: {:12}  ({:5.1} % of iterations)\n  \
             Sleep time (us):    {:12.0}  ({:3.0} us/iteration avg.)\n",
        microseconds(used + stats.sleep_cycles) / turns.max(1) as f64,
        percent(used, used + stats.sleep_cycles),
        stats.idle_turns,
        percent(stats.idle_cycles, used),
        stats.busy_turns,
        percent(stats.busy_cycles, used),
        stats.sleeps,
        percent(stats.sleeps, turns),
        microseconds(stats.sleep_cycles),
        microseconds(stats.sleep_cycles) / stats.sleeps.max(1) as f64,
    );
    perf_packets(text, stats, lookups, seconds);
}

fn perf_packets(text: &mut String, stats: &WorkerStats, lookups: f64, seconds: f64) {
    let thousands = |packets: u64| {
        if seconds > 0.0 {
            packets as f64 / seconds / 1000.0
        } else {
            0.0
        }
    };
    let hits = passes(stats);
    if stats.processed() > 0 {
        let _ = write!(
            text,
            "  Rx packets:         {:12}  ({:.0} Kpps, {:.0} cycles/pkt)\n  Datapath passes:    {hits:12}  ({:.2} passes/pkt)\n",
            stats.packets,
            thousands(stats.packets),
            ratio(stats.busy_cycles, stats.processed()),
            ratio(hits, stats.processed()),
        );
        for name in [
            "PHWOL hits:",
            "MFEX Opt hits:",
            "Simple Match hits:",
            "EMC hits:",
            "SMC hits:",
        ] {
            let _ = writeln!(text, "  - {name:<18}{:12}  ({:5.1} %)", 0, 0.0);
        }
        let _ = write!(
            text,
            "  - Megaflow hits:    {hits:12}  ({:5.1} %, {lookups:.2} subtbl lookups/hit)\n  \
               - Upcalls:          {:12}  ({:5.1} %, {:.1} us/upcall)\n  - Lost upcalls:     {:12}  ({:5.1} %)\n",
            100.0, 0, 0.0, 0.0, 0, 0.0
        );
    } else {
        let _ = writeln!(text, "  Rx packets:         {:12}", 0);
    }
    if stats.tx_packets > 0 {
        let _ = write!(
            text,
            "  Tx packets:         {:12}  ({:.0} Kpps)\n  Tx batches:         {:12}  ({:.2} pkts/batch)\n",
            stats.tx_packets,
            thousands(stats.tx_packets),
            stats.tx_batches,
            ratio(stats.tx_packets, stats.tx_batches)
        );
    } else {
        let _ = writeln!(text, "  Tx packets:         {:12}\n", 0);
    }
}

fn queues_show(switch: &Switch, arguments: &[String]) -> Answer {
    let selection = Selection::read(switch, arguments)?;
    let mut text = String::new();
    if selection.core.is_none() {
        let _ = writeln!(text, "Displaying last {PERIOD} seconds pmd usage %");
    }
    for (core, mut worker) in selection.workers(switch) {
        heading(switch, &mut text, core);
        let _ = writeln!(text, "  isolated : {}", worker.isolated);
        worker
            .queues
            .sort_by(|one, other| (&one.name, one.index).cmp(&(&other.name, other.index)));
        let usage = |cycles: u64| match worker.recent_cycles {
            0 => "NOT AVAIL".to_owned(),
            all => format!("{:2} %", cycles.saturating_mul(100) / all),
        };
        for queue in &worker.queues {
            let (is_up, guest_queues) = state_of(switch, queue.port);
            // Workers serve as many queues as a guest may have.
            if guest_queues.is_some_and(|queues| queue.index >= queues.into()) {
                continue;
            }
            let state = if is_up { "(enabled) " } else { "(disabled)" };
            let usage = usage(queue.recent_cycles);
            let _ = writeln!(
                text,
                "  port: {:<16}  queue-id: {:2} {state}  pmd usage: {usage}",
                queue.name, queue.index
            );
        }
        if !worker.queues.is_empty() {
            // Cycles charged to no queue (mailboxes, timers, packet-outs) are not counted
            // separately from empty polls.
            text.push_str("  overhead: NOT AVAIL\n");
        }
        if worker.recent_taken_cycles > 0 {
            let usage = usage(worker.recent_taken_cycles);
            let _ = writeln!(text, "  packets taken from other pmds: pmd usage: {usage}");
        }
    }
    Ok(text)
}

/// Returns whether a port's queues can receive, which they cannot while the guest of a vhost port
/// is away, and how many a guest has.
fn state_of(switch: &Switch, port: datapath::PortId) -> (bool, Option<u16>) {
    let find = |bridge: &std::rc::Rc<crate::switch::Bridge>| {
        let ports = bridge.ports.borrow();
        let port = ports.values().find(|candidate| candidate.id == port)?;
        let is_up = port.info.link_up || !port.config.device.starts_with("dpdkvhostuser");
        Some((is_up, port.guest_queues()))
    };
    bridges(switch)
        .iter()
        .find_map(find)
        .unwrap_or((true, None))
}
