//! The datapath's part of `memory/show` and `coverage/show`, and `sluice/drops`.

use super::counterparts::Counterparts;
use super::{Commands, bridges};
use crate::switch::Switch;
use crate::{coverage, memory};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt::Write;

pub(super) fn register(commands: &Commands) {
    let Ok(switch) = commands.switch() else {
        return;
    };
    let shared = commands.clone();
    switch.shell.memory.register(move |usage| {
        if let Ok(switch) = shared.switch() {
            report_memory(&switch, usage);
        }
    });
    let shared = commands.clone();
    let counterparts = RefCell::new(Counterparts::default());
    coverage::add_source(move |take| {
        let switch = shared.switch().ok();
        let mut counters = switch
            .as_ref()
            .and_then(|switch| switch.with_datapath(|datapath| datapath.coverage()).ok())
            .unwrap_or_default();
        for (name, total) in &counters {
            take(name, *total);
        }
        if let Some(tracker) = switch.as_ref().and_then(|switch| switch.tracker()) {
            for counter in conntrack::Counter::ALL {
                take(counter.name(), tracker.counters().get(counter));
            }
        }
        let fragments = switch
            .as_ref()
            .and_then(|switch| (switch.with_datapath(|datapath| datapath.fragments())).ok());
        for (name, count) in fragments.iter().flat_map(|status| status.named()) {
            take(name, count);
        }
        // The MAC tables' own counters; `fdb/stats-show` shows them by bridge.
        counters.extend(switch.map(|switch| learning(&switch)).unwrap_or_default());
        for (name, total) in counterparts.borrow_mut().sums(&counters) {
            take(name, total);
        }
    });
    let shared = commands.clone();
    coverage::add_source(move |take| {
        let switch = shared.switch().ok();
        for (name, longest, long) in switch.map(|switch| turns(&switch)).unwrap_or_default() {
            take(&format!("longest_turn_us_{name}"), longest);
            take(&format!("long_turns_{name}"), long);
        }
    });
    commands.answer("sluice/turns-clear", "", (0, 0), |switch, _| {
        crate::turns::clear();
        // Before there are workers there is nothing to clear.
        let _ = switch.with_datapath(|datapath| datapath.clear_turns());
        Ok(String::new())
    });
    commands.answer("sluice/drops", "", (0, 0), |switch, _| {
        let mut text = String::new();
        for (reason, packets) in drops(switch) {
            let _ = writeln!(text, "{reason:<24} {packets:>20}");
        }
        Ok(text)
    });
}

/// Sums up the counters of all bridges' MAC tables.
fn learning(switch: &Switch) -> Vec<(String, u64)> {
    let mut sums = [
        ("macs_learned", 0),
        ("macs_expired", 0),
        ("macs_evicted", 0),
        ("macs_moved", 0),
    ];
    for bridge in bridges(switch) {
        let stats = switch.with_datapath(|datapath| datapath.mac_stats(bridge.id));
        let Ok(Ok(stats)) = stats else { continue };
        let counts = [stats.learned, stats.expired, stats.evicted, stats.moved];
        for ((_, sum), count) in sums.iter_mut().zip(counts) {
            *sum += count;
        }
    }
    sums.map(|(name, sum)| (name.to_owned(), sum)).to_vec()
}

/// Returns the longest turn, in microseconds, and the number of long turns, of the control thread
/// and of each worker.
fn turns(switch: &Switch) -> Vec<(String, u64, u64)> {
    let control = crate::turns::turns();
    let longest = control.longest.as_micros() as u64;
    let workers = switch.with_datapath(|datapath| {
        datapath.take_turns(false);
        datapath.workers()
    });
    let worker = |worker: datapath::WorkerInfo| {
        let longest = worker.turns.longest.as_micros() as u64;
        (worker.name, longest, worker.turns.long)
    };
    let workers = workers.unwrap_or_default().into_iter().map(worker);
    std::iter::once(("control".to_owned(), longest, control.long))
        .chain(workers)
        .collect()
}

fn report_memory(switch: &Switch, usage: &mut memory::Usage) {
    for bridge in bridges(switch) {
        let pipeline = bridge.pipeline.borrow();
        usage.add(
            "rules",
            (pipeline.rule_count() + pipeline.hidden_count()) as u64,
        );
        usage.add("behaviours", pipeline.behaviour_count() as u64);
        if let Some(openflow) = bridge.openflow.get() {
            usage.add("ofconns", openflow.connection_count() as u64);
        }
    }
    for (name, amount) in switch
        .with_datapath(|datapath| datapath.memory())
        .unwrap_or_default()
    {
        usage.add(name, amount);
    }
}

/// Returns everything dropped so far, by reason: by workers, and packet-ins that controllers did
/// not read in time.
pub(crate) fn drops(switch: &Switch) -> BTreeMap<String, u64> {
    let drops = switch
        .with_datapath(|datapath| datapath.drops())
        .unwrap_or_default();
    let mut drops: BTreeMap<String, u64> = drops
        .into_iter()
        .map(|(reason, packets)| (reason.to_owned(), packets))
        .collect();
    let unread = bridges(switch)
        .iter()
        .filter_map(|bridge| Some(bridge.openflow.get()?.packet_ins_dropped()))
        .sum();
    drops.insert("packet_in_unread".into(), unread);
    drops
}
