//! `bridge/...`, `ofproto/...`, and commands that wait until workers see changes.

use super::{Answer, Commands, bridges};
use crate::openflow::Switch as _;
use crate::switch::{Bridge, Switch};
use crate::unixctl::{HIDDEN, Reply};
use openflow::format;
use std::fmt::Write;
use std::rc::Rc;

pub(super) fn register(commands: &Commands) {
    commands.answer(
        "bridge/dump-flows",
        "[--offload-stats] bridge",
        (1, 2),
        dump_flows,
    );
    commands.answer("bridge/reconnect", "[bridge]", (0, 1), reconnect);
    commands.answer("ofproto/list", "", (0, 0), |switch, _| {
        Ok(bridges(switch)
            .iter()
            .map(|bridge| format!("{}\n", bridge.name))
            .collect())
    });
    // There is nothing to revalidate; scripts that call this want packets to meet the rules they
    // have set.
    commands.later("revalidator/wait", "", (0, 0), |switch, _, reply| {
        crate::turns::spawn(
            "barrier",
            wait_for_workers(bridges(&switch), reply, String::new()),
        );
    });
    // Tests pause Open vSwitch's revalidators so that no cached flow is deleted; here there is
    // none.
    commands.answer("revalidator/purge", "", (0, 0), |_, _| Ok(String::new()));
    for name in ["revalidator/pause", "revalidator/resume"] {
        commands.answer(name, HIDDEN, (0, 0), |_, _| Ok(String::new()));
    }
}

/// Replies once every worker has begun a new burst, and so obeys every change made so far.
pub(super) async fn wait_for_workers(bridges: Vec<Rc<Bridge>>, reply: Reply, text: String) {
    for bridge in bridges {
        bridge.publish();
        bridge.barrier().await;
    }
    reply.ok(text);
}

fn unknown<T>(found: Option<T>) -> Result<T, String> {
    found.ok_or_else(|| "Unknown bridge".to_owned())
}

fn reconnect(switch: &Switch, arguments: &[String]) -> Answer {
    let chosen = match arguments.first() {
        Some(name) => vec![unknown(switch.bridge(name))?],
        None => bridges(switch),
    };
    for bridge in chosen {
        if let Some(openflow) = bridge.openflow.get() {
            openflow.reconnect();
        }
    }
    Ok(String::new())
}

fn dump_flows(switch: &Switch, arguments: &[String]) -> Answer {
    let offload = arguments.len() == 2 && arguments[0] == "--offload-stats";
    let bridge = unknown(arguments.last().and_then(|name| switch.bridge(name)))?;
    let mut text = String::new();
    for rule in bridge.pipeline.borrow().dump_all(switch.now()) {
        let stats = &rule.stats;
        if stats.table != 0 {
            let _ = write!(text, "table_id={}, ", stats.table);
        }
        let seconds = stats.duration_ns / 1_000_000_000;
        let _ = write!(
            text,
            "duration={seconds}s, n_packets={}, n_bytes={}, ",
            stats.packets, stats.bytes
        );
        if offload {
            // There is no hardware offload.
            text.push_str("n_offload_packets=0, n_offload_bytes=0, ");
        }
        format::matching(&mut text, &stats.matching, rule.priority);
        text.push_str(",actions=");
        format::instructions(&mut text, &stats.instructions);
        text.push('\n');
    }
    Ok(text)
}
