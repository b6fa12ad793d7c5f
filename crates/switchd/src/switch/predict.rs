//! What the rules of a bridge will cost, by the same means as `sluice predict`.
//!
//! A copy of the rules is compiled and measured on a thread that runs only when nobody else wants the processor, and ports by a process of its own likewise
//! (`crate::calibrate`): neither the control thread nor a worker waits. One prediction is made at a time. What it says is kept, and goes to the database with the statistics.

use super::Switch;
use super::bridge::Bridge;
use openflow::flow::{FlowMod, FlowStats, FlowStatsRequest, TABLE_ALL};
use openflow::port;
use predict::ports::{Helper, Memory, PortCost, Shares};
use predict::rules::Rules;
use predict::traffic::Traffic;
use predict::{Effort, Prediction, report, trace};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Most rules that are copied and compiled: some hundred megabytes.
const RULES_MAX: usize = 100_000;
/// Rules copied before others have their turn: about a millisecond.
const SLICE: usize = 512;
/// Packets made from rules.
const PACKETS: usize = 8192;
/// The port that packets come in by where rules do not say.
const IN_PORT: u32 = 1;

/// Whether a prediction is being made.
static BUSY: AtomicBool = AtomicBool::new(false);

/// Holds the right to make one.
struct Turn;

impl Turn {
    fn take() -> Result<Turn, String> {
        let free = BUSY.compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed);
        free.map(|_| Turn)
            .map_err(|_| "a prediction is being made already".to_owned())
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        BUSY.store(false, Ordering::Release);
    }
}

/// Predicts for a bridge; the text is for people.
pub async fn predict(switch: Rc<Switch>, bridge: Rc<Bridge>) -> Result<String, String> {
    let turn = Turn::take()?;
    let flows = copied(&switch, &bridge).await?;
    let run = switch.shell.options.directories.run.clone();
    let cpu = quiet_processor(&switch);
    let (send, receive) = tokio::sync::oneshot::channel();
    std::thread::Builder::new()
        .name("predict".into())
        .spawn(move || {
            run_when_idle();
            // The control thread may have gone.
            let _ = send.send(of_rules(flows, &run, cpu));
            drop(turn);
        })
        .map_err(|error| format!("cannot start a thread: {error}"))?;
    let (prediction, notes) = receive
        .await
        .map_err(|_| "predicting failed".to_owned())??;
    let mut text = format!("{}: dpdk ports, packets made from the rules\n", bridge.name);
    notes
        .iter()
        .for_each(|note| text.push_str(&format!("note: {note}\n")));
    text.push_str(&report::text(&prediction));
    bridge
        .prediction
        .replace(Some((prediction.cycles, prediction.mpps)));
    Ok(text)
}

/// A bridge's rules, copied a slice at a time.
async fn copied(switch: &Switch, bridge: &Bridge) -> Result<Vec<FlowMod>, String> {
    let count = bridge.pipeline.borrow().rule_count();
    if count > RULES_MAX {
        return Err(format!(
            "{}: {count} rules; up to {RULES_MAX} can be predicted while the switch runs",
            bridge.name
        ));
    }
    let request = FlowStatsRequest {
        table: TABLE_ALL,
        matching: packet::Match::any(),
        cookie: 0,
        cookie_mask: 0,
        out_port: port::ANY,
        out_group: u32::MAX,
    };
    let mut dump = bridge.pipeline.borrow_mut().begin_dump(&request);
    let mut flows = Vec::with_capacity(count);
    loop {
        let done =
            bridge
                .pipeline
                .borrow_mut()
                .continue_dump(&mut dump, switch.now(), SLICE, |stats| {
                    flows.push(added(stats))
                });
        if done || flows.len() > 2 * RULES_MAX {
            return Ok(flows);
        }
        tokio::task::yield_now().await;
    }
}

/// The flow mod that adds such a rule.
fn added(stats: FlowStats) -> FlowMod {
    FlowMod {
        table: stats.table,
        cookie: stats.cookie,
        ..FlowMod::add(stats.matching, stats.priority, stats.instructions.to_vec())
    }
}

/// A processor that no worker is pinned to, if there is one.
fn quiet_processor(switch: &Switch) -> usize {
    let workers = switch
        .with_datapath(|datapath| datapath.workers())
        .unwrap_or_default();
    let taken: Vec<usize> = workers.iter().filter_map(|worker| worker.cpu).collect();
    let count = std::thread::available_parallelism().map_or(1, |count| count.get());
    (0..count)
        .rev()
        .find(|cpu| !taken.contains(cpu))
        .unwrap_or(0)
}

/// Makes the calling thread, and what it starts, run only when no other wants the processor.
fn run_when_idle() {
    let parameter = libc::sched_param { sched_priority: 0 };
    // SAFETY: `parameter` is valid; pid 0 is the calling thread. Where it fails the thread runs as others do.
    unsafe { libc::sched_setscheduler(0, libc::SCHED_IDLE, &parameter) };
}

fn of_rules(
    flows: Vec<FlowMod>,
    run: &Path,
    cpu: usize,
) -> Result<(Prediction, Vec<String>), String> {
    let text = |error: predict::Error| error.to_string();
    let (rules, refused) = Rules::of(flows);
    let traffic = Traffic::of_rules(&rules, IN_PORT, PACKETS).map_err(text)?;
    let trace = trace::trace(&rules, &traffic).map_err(text)?;
    let effort = Effort {
        cpu: Some(cpu),
        ..Effort::default()
    };
    let capture: PathBuf = run.join(format!("sluice-predict.{}.pcap", std::process::id()));
    let helper = Helper {
        program: Path::new("/proc/self/exe"),
        memory: Memory::Ordinary,
        capture: &capture,
    };
    let ports: PortCost = helper.measure(&traffic, effort).map_err(text)?;
    let shares = Shares {
        received: 1.0,
        sent: 1.0,
    };
    let prediction =
        predict::predict(&rules, &traffic, trace, (&ports, shares), effort).map_err(text)?;
    let mut notes = ports.notes;
    if refused > 0 {
        notes.push(format!(
            "{refused} rules with groups or meters were left out"
        ));
    }
    Ok((prediction, notes))
}
