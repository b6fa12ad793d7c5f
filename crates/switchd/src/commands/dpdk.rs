//! `dpdk/...` and `netdev-dpdk/...`: what DPDK says of itself, and its devices.
//!
//! Open vSwitch has these commands once it was told to start DPDK (`dpdk-init`). Here DPDK always
//! runs, since its buffers carry all frames.

use super::{Answer, Commands, bridges, is_dpdk};
use crate::switch::{Bridge, Port, Switch, aside};
use crate::unixctl::Reply;
use ports::{Dump, Eal, PortControl};
use std::rc::Rc;

/// DPDK's log levels by name, from 1 on (`RTE_LOG_EMERG`).
const LEVELS: [&str; 8] = [
    "emergency",
    "alert",
    "critical",
    "error",
    "warning",
    "notice",
    "info",
    "debug",
];
/// Most patterns of one command.
const PATTERNS: usize = 64;

pub(super) fn register(commands: &Commands) {
    for (name, what) in [
        ("dpdk/lcore-list", Dump::Lcores),
        ("dpdk/log-list", Dump::Logs),
        ("dpdk/get-malloc-stats", Dump::Memory),
    ] {
        commands.later(name, "", (0, 0), move |switch, _, reply| {
            dump(&switch, |_| Ok(what), reply);
        });
    }
    commands.answer(
        "dpdk/log-set",
        "{level | pattern:level}",
        (0, PATTERNS),
        |switch, words| set_levels(&eal(switch)?, words),
    );
    commands.later(
        "netdev-dpdk/get-mempool-info",
        "[netdev]",
        (0, 1),
        |switch, words, reply| {
            let what = |switch: &Switch| match words.first() {
                None => Ok(Dump::Pools),
                Some(name) => pool_of(switch, name),
            };
            dump(&switch, what, reply);
        },
    );
    commands.later(
        "netdev-dpdk/set-admin-state",
        "[netdev] up|down",
        (1, 2),
        set_admin_state,
    );
    commands.later(
        "netdev-dpdk/detach",
        "pci address of device",
        (1, 1),
        |switch, words, reply| {
            crate::turns::spawn("netdev-dpdk/detach", async move {
                reply.send(detach(&switch, &words[0]).await);
            });
        },
    );
}

fn eal(switch: &Switch) -> Result<Eal, String> {
    switch
        .eal()
        .ok_or_else(|| "DPDK has not been started: there is no configuration yet".to_owned())
}

/// Replies with what DPDK tells of itself. It is asked aside, since it waits for locks that whoever
/// starts a device may have.
fn dump(switch: &Switch, what: impl FnOnce(&Switch) -> Result<Dump, String>, reply: Reply) {
    let asked = eal(switch).and_then(|eal| Ok((eal, what(switch)?)));
    let (eal, what) = match asked {
        Ok(asked) => asked,
        Err(error) => return reply.error(error),
    };
    let text = aside::call(move || eal.dump(what));
    crate::turns::spawn("DPDK's state", async move {
        reply.send(text.await.ok_or_else(|| "the daemon is ending".to_owned()));
    });
}

/// Sets log levels: of all components, or of those that a pattern names; without words, all debug.
fn set_levels(eal: &Eal, words: &[String]) -> Answer {
    let all = [String::from("debug")];
    let words = if words.is_empty() { &all[..] } else { words };
    for word in words {
        let (pattern, level) = word.split_once(':').unwrap_or(("*", word));
        let number = LEVELS.iter().position(|name| *name == level);
        let number = number.ok_or_else(|| format!("invalid log level: '{level}'"))?;
        if !eal.set_log_level(pattern, number as u32 + 1) {
            return Err(format!("cannot set log level for '{word}'"));
        }
    }
    Ok(String::new())
}

fn pool_of(switch: &Switch, name: &str) -> Result<Dump, String> {
    let mut pool = None;
    for bridge in bridges(switch) {
        let ports = bridge.ports.borrow();
        let named = (ports.values()).find(|port| port.config.interface_name == name);
        let control = named.filter(|port| is_dpdk(port));
        pool = pool.or_else(|| control?.control.as_ref()?.pool());
    }
    pool.map(Dump::Pool)
        .ok_or_else(|| "Not a DPDK Interface".to_owned())
}

fn set_admin_state(switch: Rc<Switch>, words: Vec<String>, reply: Reply) {
    let is_of_kind = |_: &Bridge, port: &Port| is_dpdk(port);
    super::set_admin_state(switch, &words, is_of_kind, "Not a DPDK Interface", reply);
}

async fn detach(switch: &Switch, device: &str) -> Answer {
    let eal = eal(switch)?;
    let name = device.to_owned();
    let done = aside::call(move || eal.detach(&name)).await;
    done.ok_or("the daemon is ending")?
        .map_err(|error| error.to_string())?;
    Ok(format!(
        "All devices shared with device '{device}' have been detached"
    ))
}
