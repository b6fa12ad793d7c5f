//! The switch's commands on the control socket, with the names and output formats of Open vSwitch
//! 3.1, so that scripts and people find what they know.
//!
//! Each file holds the commands of one topic and a `register` that adds them. Commands about Open
//! vSwitch's machinery that does not exist here (a megaflow cache, upcalls, revalidators) report
//! that nothing is cached: no misses, and empty lists.

mod absent;
mod addresses;
mod bfd;
mod bridges;
mod busiest;
mod caches;
mod compose;
mod connections;
mod counterparts;
pub(crate) mod counters;
mod datapaths;
mod dpdk;
mod dummies;
mod empty;
mod faults;
mod figures;
mod fragments;
mod odp;
mod predict;
mod qos;
mod slices;
pub(crate) mod stages;
mod steering;
mod trace;
mod tunnels;
mod underlay;
pub(crate) mod vector;
pub(crate) mod waits;
mod workers;

use crate::switch::{Bridge, Port, Switch};
use crate::unixctl::Reply;
use std::rc::{Rc, Weak};

/// Adds all commands to the registry.
pub fn register(switch: &Rc<Switch>) {
    let commands = Commands {
        switch: Rc::downgrade(switch),
        numbers: Rc::default(),
    };
    absent::register(&commands);
    bfd::register(&commands);
    connections::register(&commands);
    fragments::register(&commands);
    underlay::register(&commands);
    addresses::register(&commands);
    bridges::register(&commands);
    busiest::register(&commands);
    counters::register(&commands);
    datapaths::register(&commands);
    dpdk::register(&commands);
    dummies::register(&commands);
    empty::register(&commands);
    faults::register(&commands);
    caches::register(&commands);
    vector::register(&commands);
    figures::register(&commands);
    predict::register(&commands);
    qos::register(&commands);
    stages::register(&commands);
    steering::register(&commands);
    trace::register(&commands);
    tunnels::register(&commands);
    waits::register(&commands);
    workers::register(&commands);
}

/// A command's reply: text, or an error.
type Answer = Result<String, String>;

/// What commands share. The switch is held weakly, because it holds the registry that holds them.
#[derive(Clone)]
struct Commands {
    switch: Weak<Switch>,
    numbers: Rc<datapaths::Numbers>,
}

impl Commands {
    fn switch(&self) -> Result<Rc<Switch>, String> {
        self.switch
            .upgrade()
            .ok_or_else(|| "the switch is being shut down".to_owned())
    }

    /// Registers a command that answers at once.
    fn answer(
        &self,
        name: &str,
        usage: &str,
        arguments: (usize, usize),
        answer: impl Fn(&Switch, &[String]) -> Answer + 'static,
    ) {
        let commands = self.clone();
        self.later(name, usage, arguments, move |_, words, reply| {
            reply.send(commands.switch().and_then(|switch| answer(&switch, &words)))
        });
    }

    /// Registers a command that may answer later.
    fn later(
        &self,
        name: &str,
        usage: &str,
        (minimum, maximum): (usize, usize),
        act: impl Fn(Rc<Switch>, Vec<String>, Reply) + 'static,
    ) {
        let Ok(switch) = self.switch() else { return };
        let commands = self.clone();
        switch
            .shell
            .commands
            .register(
                name,
                usage,
                minimum,
                maximum,
                move |words, reply| match commands.switch() {
                    Ok(switch) => act(switch, words, reply),
                    Err(error) => reply.error(error),
                },
            );
    }
}

/// Returns a bridge by name, or Open vSwitch's error.
fn bridge(switch: &Switch, name: &str) -> Result<Rc<Bridge>, String> {
    switch
        .bridge(name)
        .ok_or_else(|| "no such bridge".to_owned())
}

/// Returns the bridges, ordered by name.
pub(crate) fn bridges(switch: &Switch) -> Vec<Rc<Bridge>> {
    switch.bridges.borrow().values().cloned().collect()
}

/// Returns the bridge named by the first argument, or all of them.
fn one_or_all(switch: &Switch, arguments: &[String]) -> Result<Vec<Rc<Bridge>>, String> {
    match arguments.first() {
        Some(name) => Ok(vec![bridge(switch, name)?]),
        None => Ok(bridges(switch)),
    }
}

/// Returns whether there is an interface of this name.
fn has_interface(switch: &Switch, name: &str) -> bool {
    bridges(switch)
        .iter()
        .any(|bridge| bridge.number_of(name).is_some())
}

/// Sets the devices of some kind up or down, all of them or the named one, as the last word says,
/// and replies; fails with `unknown` if none of that kind has the name.
fn set_admin_state(
    switch: Rc<Switch>,
    words: &[String],
    is_of_kind: impl Fn(&Bridge, &Port) -> bool,
    unknown: &str,
    reply: Reply,
) {
    let up = match words
        .last()
        .map(|word| word.to_ascii_lowercase())
        .as_deref()
    {
        Some("up") => true,
        Some("down") => false,
        _ => return reply.error("Invalid Admin State"),
    };
    let only = words.first().filter(|_| words.len() == 2);
    let mut coming = Vec::new();
    for bridge in bridges(&switch) {
        for port in bridge.ports.borrow().values() {
            let chosen = only.is_none_or(|name| port.config.interface_name == *name)
                && is_of_kind(&bridge, port);
            if let Some(device) = port.control.as_ref().filter(|_| chosen) {
                coming.push(device.aside(move |control| control.set_admin(up)));
            }
        }
    }
    if only.is_some() && coming.is_empty() {
        return reply.error(unknown);
    }
    crate::turns::spawn("setting devices up or down", async move {
        let mut answer = Ok("OK".to_owned());
        for set in coming {
            if let (Ok(_), Some(Err(error))) = (&answer, set.await) {
                answer = Err(error.to_string());
            }
        }
        for bridge in bridges(&switch) {
            bridge.poll_ports();
        }
        reply.send(answer);
    });
}

/// Returns whether a port is a dummy, a device for tests.
pub(crate) fn is_dummy(switch: &Switch, bridge: &Bridge, port: &Port) -> bool {
    device_type(switch, bridge, port).starts_with("dummy")
}

/// Returns whether a port's device is DPDK's in Open vSwitch.
pub(crate) fn is_dpdk(port: &Port) -> bool {
    port.config.device.starts_with("dpdk")
}

/// Returns the type of a port's device by Open vSwitch's name.
fn device_type<'a>(switch: &Switch, bridge: &Bridge, port: &'a Port) -> &'a str {
    let device = port.config.device.as_str();
    match device {
        "system" | "internal" | "tap" if switch.all_dummy() => {
            if device == "internal" {
                "dummy-internal"
            } else {
                "dummy"
            }
        }
        // Open vSwitch makes internal ports of its userspace datapath as TAP devices, and reports
        // `tap`.
        "internal" if bridge.settings.borrow().datapath_type == "netdev" => "tap",
        device => device,
    }
}
