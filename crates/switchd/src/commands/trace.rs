//! `ofproto/trace`: what would become of a packet, told step by step, in the layout of Open
//! vSwitch. Nothing is sent, learned or counted.
//!
//! [`request`] reads the arguments; [`walk`] follows the packet from bridge to bridge: the twin
//! (`pipeline::twin`) tells what the rules of one bridge do, the datapath what `NORMAL`, floods and
//! mirrors would; [`actions`] writes what leaves in the words of Open vSwitch's datapath; [`print`]
//! lays it out.
//!
//! There is no cache of flows here, so no megaflow. The line that Open vSwitch calls so says which
//! bits the outcome depended on.

mod actions;
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
    // Each version knows actions that others do not.
    let pipeline = request.bridge.pipeline.borrow();
    let checked = [Version::V1_5, Version::V1_3, Version::V1_0]
        .map(|version| pipeline.packet_out(&message, version).err());
    if let [Some(error), Some(_), Some(_)] = checked {
        return Err(format!("Bad actions: {error}"));
    }
    drop(pipeline);
    Ok(trace(switch, numbers, &request, Some(&actions)))
}

/// The whole story as text.
fn trace(
    switch: &Switch,
    numbers: &Numbers,
    request: &Request,
    actions: Option<&[openflow::action::Action]>,
) -> String {
    numbers.refresh(switch);
    let mut walk = walk::Walk::new(switch, numbers, request);
    let told = walk.first(actions);
    let mut text = String::new();
    openflow::format::with_names(&names(&request.bridge, request.names), || {
        text = print::all(&told);
    });
    text
}

/// The names of a bridge's ports, if they are wanted.
fn names(bridge: &Bridge, wanted: bool) -> BTreeMap<PortNo, String> {
    let ports = bridge.ports.borrow();
    let named = ports
        .values()
        .filter(|_| wanted)
        .map(|port| (port.openflow_number(), port.config.interface_name.clone()));
    named.collect()
}
