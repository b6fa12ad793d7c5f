//! `netdev-dummy/...`: ports without a device, for tests (`--enable-dummy`).

use super::bridges::wait_for_workers;
use super::{Answer, Commands, bridges, compose, device_type, is_dummy, odp};
use crate::switch::{Bridge, Port, Switch};
use crate::unixctl::Reply;
use datapath::PortId;
use ports::PortControl;
use std::rc::Rc;
use std::time::{Duration, Instant};

/// Longest frame that can be injected.
const LONGEST: usize = 65_535;
/// Shortest frame: an Ethernet header.
const SHORTEST: usize = 14;
/// Longest wait for a worker to fetch injected frames; the command then replies anyway.
const PATIENCE: Duration = Duration::from_millis(500);

pub(super) fn register(commands: &Commands) {
    let Ok(switch) = commands.switch() else {
        return;
    };
    if switch.shell.options.dummy.is_none() {
        return;
    }
    commands.later(
        "netdev-dummy/receive",
        "name [--qid queue_id] packet|flow [--len packet_len]",
        (2, usize::MAX),
        |switch, arguments, reply| receive(switch, &arguments, reply),
    );
    commands.later(
        "netdev-dummy/set-admin-state",
        "[netdev] up|down",
        (1, 2),
        set_admin_state,
    );
    commands.answer(
        "netdev-dummy/conn-state",
        "[netdev]",
        (0, 1),
        connection_state,
    );
}

/// Reports whether a dummy, or each dummy that connects to a peer (`options:stream`), is connected.
fn connection_state(switch: &Switch, arguments: &[String]) -> Answer {
    let mut text = String::new();
    if let Some(name) = arguments.first()
        && find(switch, name).is_none()
    {
        return Ok(format!("{name}: unknown\n"));
    }
    for bridge in bridges(switch) {
        for port in bridge.ports.borrow_mut().values_mut() {
            let name = &port.config.interface_name;
            if arguments.first().is_some_and(|wanted| wanted != name) {
                continue;
            }
            let connected = port
                .control
                .as_mut()
                .and_then(|control| control.is_connected());
            let state = match connected {
                Some(true) => "connected",
                Some(false) => "disconnected",
                None if arguments.is_empty() => continue,
                None => "unknown",
            };
            text += &format!("{name}: {state}\n");
        }
    }
    Ok(text)
}

/// Finds the bridge and the number of the dummy port called `name`.
fn find(switch: &Switch, name: &str) -> Option<(Rc<Bridge>, u16)> {
    bridges(switch).into_iter().find_map(|bridge| {
        let number = bridge.number_of(name)?;
        let dummy = bridge
            .ports
            .borrow()
            .get(&number)
            .is_some_and(|port| is_dummy(switch, &bridge, port));
        dummy.then_some((bridge, number))
    })
}

/// Reads a frame from hexadecimal digits.
fn from_hex(text: &str) -> Option<Vec<u8>> {
    let digits: Vec<u8> = text
        .bytes()
        .filter(|byte| !byte.is_ascii_whitespace())
        .collect();
    if !digits.len().is_multiple_of(2) || digits.len() / 2 < SHORTEST {
        return None;
    }
    let byte = |pair: &[u8]| {
        std::str::from_utf8(pair)
            .ok()
            .filter(|pair| !pair.starts_with('+'))
            .and_then(|pair| u8::from_str_radix(pair, 16).ok())
    };
    digits.chunks(2).map(byte).collect()
}

/// Returns how many receive queues tests may name: as many as the port was configured with, all of
/// which are one here. As in Open vSwitch only `dummy-pmd` can have more than one.
fn queues(switch: &Switch, bridge: &Bridge, number: u16) -> u64 {
    let ports = bridge.ports.borrow();
    let several = ports
        .get(&number)
        .filter(|port| device_type(switch, bridge, port) == "dummy-pmd");
    let asked = several.and_then(|port| port.config.options.get("n_rxq")?.parse().ok());
    asked.unwrap_or(1_u64).max(1)
}

/// Reads the frames that the arguments behind the port's name describe.
fn frames(arguments: &[String], queues: u64) -> Result<Vec<Vec<u8>>, String> {
    let mut words = arguments.iter().peekable();
    if words.next_if(|word| *word == "--qid").is_some() {
        let number = words.next().and_then(|number| odp::number(number));
        if number.ok_or("Invalid queue id.")? >= queues {
            return Err("bad rx queue id.".into());
        }
    }
    let mut frames = Vec::new();
    while let Some(word) = words.next() {
        if let Some(frame) = from_hex(word) {
            frames.push(frame);
            continue;
        }
        let mut length = None;
        if words.next_if(|word| *word == "--len").is_some() {
            let text = words.next().map_or("", |word| word);
            let valid = odp::number(text).filter(|length| (1..=LONGEST as u64).contains(length));
            length = Some(valid.ok_or("Invalid packet length.")? as usize);
        }
        frames.push(compose::compose(&odp::Flow::parse(word)?, length)?);
    }
    if let Some(long) = frames.iter().find(|frame| frame.len() > LONGEST) {
        return Err(format!("a frame of {} bytes is too long", long.len()));
    }
    Ok(frames)
}

/// Injects frames and replies when a worker has processed them, so that the next command sees their
/// effect.
fn receive(switch: Rc<Switch>, arguments: &[String], reply: Reply) {
    let Some((bridge, number)) = find(&switch, &arguments[0]) else {
        return reply.error("no such dummy netdev");
    };
    let queues = queues(&switch, &bridge, number);
    let frames = match frames(&arguments[1..], queues) {
        Ok(frames) => frames,
        Err(error) => return reply.error(error),
    };
    let (port, before) = {
        let mut ports = bridge.ports.borrow_mut();
        let Some(port) = ports.get_mut(&number) else {
            return reply.error("no such dummy netdev");
        };
        let before = received(&switch, port.id);
        for frame in &frames {
            // As in Open vSwitch, frames injected into a port that is down are lost.
            if !port.info.admin_up {
                continue;
            }
            if let Some(Err(error)) = port.control.as_mut().map(|control| control.inject(frame)) {
                return reply.error(error.to_string());
            }
        }
        (
            port.id,
            before
                + if port.info.admin_up {
                    frames.len() as u64
                } else {
                    0
                },
        )
    };
    crate::turns::spawn("netdev-dummy/receive", async move {
        let began = Instant::now();
        while received(&switch, port) < before && began.elapsed() < PATIENCE {
            tokio::time::sleep(Duration::from_micros(200)).await;
        }
        wait_for_workers(vec![bridge], reply, String::new()).await;
    });
}

/// Returns how many frames the port has received or lost.
fn received(switch: &Switch, port: PortId) -> u64 {
    match switch.with_datapath(|datapath| datapath.port_stats(port)) {
        Ok(Ok(stats)) => stats.rx_packets + stats.rx_dropped + stats.rx_errors,
        _ => u64::MAX,
    }
}

fn set_admin_state(switch: Rc<Switch>, words: Vec<String>, reply: Reply) {
    let its = Rc::clone(&switch);
    let is_of_kind = move |bridge: &Bridge, port: &Port| is_dummy(&its, bridge, port);
    super::set_admin_state(switch, &words, is_of_kind, "Unknown Dummy Interface", reply);
}
