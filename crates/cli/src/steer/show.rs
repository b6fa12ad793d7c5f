//! Prints the answers of the resident as text.

use crate::output::{out, outln};
use softirq::sampler::Source;
use softirq::session::{CoreStatus, FlowsStatus, Status};
use softirq::vms::VmLocation;

fn joined<T: ToString>(all: &[T]) -> String {
    let all: Vec<String> = all.iter().map(T::to_string).collect();
    if all.is_empty() {
        "-".to_owned()
    } else {
        all.join(",")
    }
}

fn marks(core: &CoreStatus) -> &'static str {
    match (core.offline, core.high, core.held) {
        (true, ..) => "offline",
        (_, true, true) => "high, held",
        (_, true, _) => "high",
        (_, _, true) => "held",
        _ => "",
    }
}

/// Prints everything about a session.
pub fn status(status: &Status) {
    let mode = &status.mode;
    outln!(
        "{}: {} mode: {}",
        status.device,
        mode.mode.name(),
        mode.reason
    );
    let source = match status.source {
        Source::Tracepoints => "the kernel's tracepoints",
        Source::ProcStat => "/proc/stat, which may not see interrupts",
    };
    outln!("loads from {source}");
    let layout = format!("{:?}", status.layout).to_lowercase();
    let believed = if status.trusted {
        "believed"
    } else {
        "not believed"
    };
    let taken = if status.strip { "taken off" } else { "left on" };
    match layout.as_str() {
        "none" => outln!("no flow control field"),
        layout => outln!("flow control field: {layout}, {believed}, {taken}"),
    }
    for warning in &status.warnings {
        outln!("note: {warning}");
    }
    outln!("");
    outln!(
        "core  load%  task  cpumap  softirq   irq  VMs       redirected       direct  queue full  \
         packet ns  wait us"
    );
    for core in &status.cores {
        let percent = |share: f64| share * 100.0;
        let shares = &core.shares;
        outln!(
            "{:4} {:6.1} {:5.1} {:7.1} {:8.1} {:5.1}  {:8} {:11} {:12} {:11} {:10.0} {:8.0}  {}",
            core.core,
            percent(shares.load),
            percent(shares.task),
            percent(shares.cpumap),
            percent(shares.softirq),
            percent(shares.irq),
            joined(&core.vms),
            core.redirected,
            core.direct,
            core.dropped_queue_full + core.dropped_no_memory,
            core.packet_ns,
            core.longest_wait_ns as f64 / 1e3,
            marks(core)
        );
    }
    for vm in &status.vms {
        let place = match vm.place {
            VmLocation::Core(_) => "as told".to_owned(),
            VmLocation::Process(pid) => format!("process {pid}"),
        };
        outln!("VM {}: cores {} ({place})", vm.vm, joined(&vm.cores));
    }
    outln!("");
    outln!(
        "{} of {} entries; {} choices; moves: {} wanted, {} made, {} given up, {} withdrawn, \
         longest {:.1} ms",
        status.entries.0,
        status.entries.1,
        status.choices,
        status.moves.wanted,
        status.moves.made,
        status.moves.given_up,
        status.moves.withdrawn,
        status.moves.longest_ns as f64 / 1e6
    );
    out!("constants:");
    for (name, value) in &status.constants {
        out!(" {name}={value}");
    }
    outln!("");
    outln!("counters:");
    for (name, value) in status.counters.iter().filter(|(_, value)| **value != 0) {
        outln!("  {name:18} {value}");
    }
}

/// Prints entries and choices.
pub fn flows(flows: &FlowsStatus) {
    for entry in &flows.entries {
        let vm = entry.vm.map_or(String::new(), |vm| format!(", vm {vm}"));
        let priority = if entry.priority { ", priority" } else { "" };
        let cookie = match entry.cookie {
            0 => String::new(),
            cookie => format!(", cookie {cookie:#x}"),
        };
        outln!(
            "entry {}: precedence={},{} -> {}{vm}{priority}{cookie}; {} packets, {} bytes",
            entry.entry,
            entry.precedence,
            entry.matching,
            entry.target,
            entry.packets,
            entry.bytes
        );
        for choice in flows
            .choices
            .iter()
            .filter(|choice| choice.entry == entry.entry)
        {
            let who = choice
                .flow
                .as_deref()
                .map_or("all flows".to_owned(), |flow| format!("flow {flow}"));
            let wanted = choice.wanted.map_or(String::new(), |(core, cause)| {
                format!(", wanted on core {core} ({cause:?})").to_lowercase()
            });
            outln!(
                "  {who}: core {} ({}), {} packets, {} bytes, load {:.1}%, {} moves{wanted}",
                choice.core,
                choice.basis,
                choice.packets,
                choice.bytes,
                choice.load * 100.0,
                choice.moves
            );
        }
    }
    if flows.left_out > 0 {
        outln!("{} more choices (--limit)", flows.left_out);
    }
}

/// Prints a line: load and packets per second of each core, and moves.
pub fn line(before: Option<&Status>, now: &Status, interval_s: f64) {
    for core in &now.cores {
        let known = before.and_then(|before| before.cores.iter().find(|c| c.core == core.core));
        let packets = |core: &CoreStatus| core.redirected + core.direct;
        let rate = known.map_or(0.0, |known| {
            packets(core).saturating_sub(packets(known)) as f64 / interval_s
        });
        let state = [joined(&core.vms), marks(core).to_owned()];
        out!(
            "core {}: {:5.1}% {:9.0} packets/s VMs {} {}| ",
            core.core,
            core.shares.load * 100.0,
            rate,
            state[0],
            state[1]
        );
    }
    outln!("moves {}", now.moves.made);
}
