//! `ofproto/trace`: shows step by step what would happen to a packet, in the layout of Open
//! vSwitch. Nothing is sent or counted. Given a real packet (or `-generate`) it learns as Open
//! vSwitch's does: rules of `learn`, addresses that `NORMAL` sees, timeouts that `fin_timeout`
//! shortens.
//!
//! [`request`] reads the arguments; [`walk`] follows the packet from bridge to bridge:
//! `pipeline::reference` tells what the rules of one bridge do, the datapath what `NORMAL`, floods
//! and mirrors would do; [`passes`] has what goes on behind `ct`; [`actions`] writes the outputs as
//! Open vSwitch's datapath actions; [`mod@print`] lays it all out.
//!
//! Datapath flows are not cached here, so there is no megaflow. The line that Open vSwitch labels
//! `Megaflow` shows which bits the outcome depended on.

mod actions;
mod passes;
mod print;
mod request;
mod tunnel;
mod walk;

use super::{Answer, Commands};
use crate::commands::datapaths::Numbers;
use crate::switch::{Bridge, Switch};
use openflow::Version;
use openflow::message::{NO_BUFFER, PacketOut};
use openflow::port::PortNo;
use request::Request;
use std::collections::BTreeMap;
use std::rc::Rc;

pub(super) fn register(commands: &Commands) {
    let numbers = Rc::clone(&commands.numbers);
    commands.answer(
        "ofproto/trace",
        "{[dp_name] odp_flow | bridge br_flow} [OPTIONS...] [-generate|packet]",
        (1, usize::MAX),
        move |switch, words| {
            let request = request::read(switch, &numbers, words, false)?;
            Ok(trace(switch, &numbers, &request, None))
        },
    );
    let numbers = Rc::clone(&commands.numbers);
    commands.answer(
        "ofproto/trace-packet-out",
        "[-consistent] {[dp_name] odp_flow | bridge br_flow} [OPTIONS...] [-generate|packet] actions",
        (2, usize::MAX),
        move |switch, words| trace_packet_out(switch, &numbers, words),
    );
}

fn trace_packet_out(switch: &Switch, numbers: &Numbers, words: &[String]) -> Answer {
    let (text, words) = words.split_last().ok_or("Syntax error")?;
    let actions = openflow::parse::actions(text, &openflow::parse::no_names)
        .map_err(|error| error.to_string())?;
    let request = request::read(switch, numbers, words, true)?;
    let message = PacketOut {
        buffer_id: NO_BUFFER,
        in_port: request.in_port(),
        matching: packet::Match::any(),
        actions: actions.clone(),
        data: request.frame.clone(),
    };
    // An action is valid if any version has it.
    let pipeline = request.bridge.pipeline.borrow();
    let checked = [Version::V1_5, Version::V1_3, Version::V1_0]
        .map(|version| pipeline.packet_out(&message, version).err());
    if let [Some(error), Some(_), Some(_)] = checked {
        return Err(format!("Bad actions: {error}"));
    }
    drop(pipeline);
    Ok(trace(switch, numbers, &request, Some(&actions)))
}

/// Traces the packet and returns the whole output.
fn trace(
    switch: &Switch,
    numbers: &Numbers,
    request: &Request,
    actions: Option<&[openflow::action::Action]>,
) -> String {
    numbers.refresh(switch);
    let mut walk = walk::Walk::new(switch, numbers, request);
    let names = names(&request.bridge, request.names);
    let mut text = String::new();
    let mut add = |heading: &str, told: print::Told| {
        text += heading;
        openflow::format::with_names(&names, || text += &print::all(&told));
    };
    add("", walk.first(actions));
    while let Some((heading, told)) = walk.follow_next() {
        add(&heading, told);
    }
    if walk.passes_left() > 0 {
        text += "\nToo many passes to be told of all.\n";
    }
    text
}

/// Returns the names of a bridge's ports, or nothing where names are not wanted.
fn names(bridge: &Bridge, wanted: bool) -> BTreeMap<PortNo, String> {
    let ports = bridge.ports.borrow();
    let named = ports
        .values()
        .filter(|_| wanted)
        .map(|port| (port.openflow_number(), port.config.interface_name.clone()));
    named.collect()
}
