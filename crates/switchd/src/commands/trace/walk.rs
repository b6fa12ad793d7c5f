//! Follows a packet from bridge to bridge, and in further passes where it was tracked.

use super::super::datapaths::Numbers;
use super::actions::{Actions, Headers};
use super::passes::Passes;
use super::print::{LineType, Node, Told};
use super::request::Request;
use super::{names, passes};
use crate::config::ofport;
use crate::switch::{Bridge, Switch};
use datapath::vlan::{Ethernet, Tag};
use datapath::{Copy, DropReason, NormalDecision, PortId, WayOut};
use openflow::action::{Action, Instruction};
use openflow::format;
use openflow::message::Fragments;
use openflow::port::{self, PortNo};
use packet::FlowKey;
use packet::key::at;
use pipeline::reference::story::{MAX_STEPS, Step, TrackedCopy, What};
use pipeline::reference::{self, Effect, Sent, Surroundings};
use program::actions::PacketInReason;
use std::rc::Rc;

/// Most patch ports in a row, as in the datapath.
const MAX_PATCHES: u32 = datapath::MAX_PATCHES;
/// Most bridges that a packet and its copies enter through patch ports, as in the datapath: bridges
/// that are linked twice would flood for ever.
const MAX_WALKS: u32 = 256;
/// Depth of nested steps beyond which no further bridge is entered.
const MAX_NESTED: u32 = 300;
/// `OFPR_EXPLICIT_MISS`, for rules that are table misses.
const EXPLICIT_MISS: u8 = 6;

/// State while a packet is followed.
pub(super) struct Walk<'s> {
    pub(super) switch: &'s Switch,
    numbers: &'s Numbers,
    request: &'s Request,
    pub(super) actions: Actions,
    looked_at: FlowKey,
    failure: Option<&'static str>,
    /// Patch ports passed since the packet came in.
    patches: u32,
    /// Bridges entered through patch ports.
    pub(super) walks: u32,
    /// Number of steps shown so far, and depth of the current one.
    told: usize,
    nested: u32,
    userspace: u32,
    /// Tracked packets that go on in a pass of their own.
    passes: Passes,
    /// Whether the current step is the last.
    pub(super) at_end: bool,
}

/// The packet's position and state in a bridge.
pub(super) struct Here<'b> {
    pub(super) bridge: &'b Rc<Bridge>,
    in_port: PortNo,
    /// Mirrors that have had a copy of it.
    mirrored: u32,
    /// Bytes to which the packet is cut when it is sent.
    cut: Option<u32>,
}

impl<'s> Walk<'s> {
    pub fn new(switch: &'s Switch, numbers: &'s Numbers, request: &'s Request) -> Walk<'s> {
        Walk {
            switch,
            numbers,
            request,
            actions: Actions::new(Headers::of(&request.frame, &request.key)),
            looked_at: FlowKey::ZERO,
            failure: None,
            patches: 0,
            walks: 0,
            told: 0,
            nested: 0,
            userspace: 0,
            passes: Passes::new(&request.states),
            at_end: true,
        }
    }

    /// Follows the packet from the bridge that receives it.
    pub fn first(&mut self, actions: Option<&[Action]>) -> Told {
        let request = self.request;
        let (node, story) = self.bridge(&request.bridge, &request.key, &request.frame, actions);
        self.told(node, story)
    }

    /// Follows the next tracked packet, if one is left: the lines above its trace, and the trace.
    pub fn follow_next(&mut self) -> Option<(String, Told)> {
        if self.told >= MAX_STEPS {
            return None;
        }
        let pass = self.passes.take()?;
        let mut node = Node::new(
            LineType::Bridge,
            format!("bridge(\"{}\")", self.request.bridge.name),
        );
        let mut thaw = Node::new(LineType::Table, "thaw");
        let text = format!("Resuming from table {}", pass.fork.table);
        thaw.below.push(Node::new(LineType::Table, text));
        node.below.push(thaw);
        let surroundings = self.surroundings(&pass.bridge);
        let (outcome, story) = {
            let live = |port| pass.bridge.is_live(port);
            let pipeline = pass.bridge.pipeline.borrow();
            let surroundings = Surroundings {
                live: &live,
                ..surroundings
            };
            reference::resume(&pipeline, &pass.fork, pass.state, pass.number, surroundings)
        };
        self.actions = Actions::new(Headers::of(&story.frame, &story.before));
        (self.looked_at, self.failure) = (FlowKey::ZERO, None);
        (self.patches, self.at_end) = (0, true);
        let mut here = Here {
            bridge: &pass.bridge,
            in_port: story.before.u32(at::IN_PORT),
            mirrored: 0,
            cut: None,
        };
        if self.request.given {
            pass.bridge.learn_from_trace(&outcome);
        }
        self.tell(&outcome, &story, &mut here, &mut node.below);
        self.reply(&outcome, &story, &mut here, &mut node.below);
        let heading = pass.heading(&story.before);
        Some((heading, self.told(node, story)))
    }

    /// Returns how many tracked packets are not followed.
    pub fn passes_left(&self) -> usize {
        self.passes.left()
    }

    /// Returns the conditions of a bridge, where all ports are live.
    fn surroundings(&self, bridge: &Bridge) -> Surroundings<'static> {
        Surroundings {
            hides_fragment_ports: bridge.fragments.get() == Fragments::Normal,
            learns: self.request.given,
            ..Surroundings::default()
        }
    }

    fn told(&mut self, node: Node, story: reference::story::Story) -> Told {
        let request = self.request;
        Told {
            before: *story.before,
            after: *story.after,
            wrote_set: wrote_set(&story.steps),
            looked_at: self.looked_at,
            options: request.bridge.option_map(),
            nodes: vec![node],
            actions: std::mem::take(&mut self.actions.list),
            failure: self.failure,
        }
    }

    /// Follows the packet through one bridge.
    fn bridge(
        &mut self,
        bridge: &Rc<Bridge>,
        key: &FlowKey,
        frame: &[u8],
        actions: Option<&[Action]>,
    ) -> (Node, reference::story::Story) {
        let mut here = Here {
            bridge,
            in_port: key.u32(at::IN_PORT),
            mirrored: 0,
            cut: None,
        };
        let mut node = Node::new(LineType::Bridge, format!("bridge(\"{}\")", bridge.name));
        let live = |port| bridge.is_live(port);
        let surroundings = Surroundings {
            live: &live,
            ..self.surroundings(bridge)
        };
        let (outcome, mut story) =
            reference::trace(&bridge.pipeline.borrow(), key, frame, actions, surroundings);
        if bridge.fragments.get() == Fragments::Drop && story.before.u8(at::IP_FRAG) != 0 {
            node.below.push(fragment_dropped());
            return (node, story);
        }
        let only_mirrors = self
            .switch
            .with_datapath(|datapath| datapath.only_mirrors(bridge.id, here.in_port));
        if actions.is_none() && only_mirrors.unwrap_or(false) {
            drop_before_rules(&mut story, &here);
        } else if self.request.given {
            bridge.learn_from_trace(&outcome);
        }
        if let Some(front) = ethernet(frame) {
            let in_port = here.in_port;
            self.mirror(&mut here, in_port, true, &front, frame, &mut node.below);
        }
        // Behind a patch port, rules that cannot be undone work on a copy, as in Open vSwitch.
        let copied = self.patches > 0 && !self.at_end && needs_copy(&story.steps);
        let begun = copied.then(|| {
            self.commit(frame, key, &here);
            self.actions.checkpoint()
        });
        let at_end = self.at_end;
        self.at_end |= copied;
        self.tell(&outcome, &story, &mut here, &mut node.below);
        self.at_end = at_end;
        if let Some(begun) = begun {
            self.actions.enclose(begun);
        }
        if self.patches == 0 {
            self.reply(&outcome, &story, &mut here, &mut node.below);
        }
        (node, story)
    }

    /// Sends a DHCP reply to the local port, at the end of its way through the bridge that it has
    /// come to, where in-band control wants that and it has not been sent there.
    fn reply(
        &mut self,
        outcome: &reference::Outcome,
        story: &reference::story::Story,
        here: &mut Here<'_>,
        out: &mut Vec<Node>,
    ) {
        let wanted = here.bridge.pipeline.borrow().tables().delivers_replies();
        if !wanted || outcome.cut_short || !packet::parse::is_dhcp_reply(&story.bytes) {
            return;
        }
        let ports = here.bridge.ports.borrow();
        let Some(local) = ports.get(&ofport::LOCAL).map(|port| port.id) else {
            return;
        };
        drop(ports);
        let name = self.datapath_port(here.bridge, local);
        if !self.actions.list.contains(&name) {
            let sent = Sent {
                in_port: here.in_port,
                queue: None,
                bytes: story.bytes.clone(),
            };
            self.output(port::LOCAL, &sent, &story.after, here, out);
        }
    }

    /// Adds the lines of a story.
    fn tell(
        &mut self,
        outcome: &reference::Outcome,
        story: &reference::story::Story,
        here: &mut Here<'_>,
        out: &mut Vec<Node>,
    ) {
        for (all, new) in self.looked_at.words.iter_mut().zip(&story.looked_at.words) {
            *all |= new;
        }
        if outcome.cut_short {
            self.failure = Some(failure(&story.steps).unwrap_or("Recursion too deep"));
        }
        let ports = names(here.bridge, self.request.names);
        format::with_names(&ports, || self.steps(&story.steps, here, out));
        take_in_set(out);
    }

    /// Sends the packet through the connection tracker.
    fn track(&mut self, copy: &TrackedCopy, here: &Here<'_>) {
        self.commit(&copy.bytes, &copy.key, here);
        self.actions.list.push(passes::action(copy));
        if let Some(fork) = &copy.fork {
            let number = self.passes.add(Rc::clone(here.bridge), fork);
            self.actions.list.push(format!("recirc({number:#x})"));
        }
    }

    fn steps(&mut self, steps: &[Step], here: &mut Here<'_>, out: &mut Vec<Node>) {
        self.nested += 1;
        let at_end = self.at_end;
        for (index, step) in steps.iter().enumerate() {
            self.told += 1;
            self.at_end = at_end && index + 1 == steps.len();
            self.step(step, here, out);
        }
        self.at_end = at_end;
        self.nested -= 1;
    }

    fn step(&mut self, step: &Step, here: &mut Here<'_>, out: &mut Vec<Node>) {
        match &step.what {
            What::Rule {
                table,
                priority,
                cookie,
                matching,
            } => {
                let mut text = format!("{table:2}. ");
                let start = text.len();
                format::matching(&mut text, matching, format::DEFAULT_PRIORITY);
                if text.len() > start {
                    text += ", ";
                }
                text += &format!("priority {priority}");
                if *cookie != 0 {
                    text += &format!(", cookie {cookie:#x}");
                }
                self.section(LineType::Table, text, step, here, out);
            }
            What::Missed {
                table,
                to_controller,
            } => {
                let text = match to_controller {
                    true => format!("{table:2}. No match, and a \"packet-in\" is called for."),
                    false => format!("{table:2}. No match."),
                };
                let mut node = Node::new(LineType::Table, text);
                let action = if *to_controller {
                    "CONTROLLER:65535"
                } else {
                    "drop"
                };
                node.below.push(Node::new(LineType::Action, action));
                out.push(node);
            }
            What::Action(action) => {
                let mut text = String::new();
                format::actions(&mut text, std::slice::from_ref(action));
                out.push(Node::new(LineType::Action, text));
                if let Action::Meter(meter) = action {
                    self.meter(*meter);
                }
                let cut = here.cut;
                if let Action::OutputTrunc { max_len, .. } = action {
                    here.cut = Some(*max_len);
                }
                match action {
                    Action::Clone(list) if !self.at_end && !is_reversible(list) => {
                        self.clone_of_packet(step, here, out);
                    }
                    _ => self.steps(&step.steps, here, out),
                }
                here.cut = cut;
            }
            What::Instruction(instruction) => {
                let mut text = String::new();
                format::instructions(&mut text, std::slice::from_ref(instruction));
                out.push(Node::new(LineType::Action, text));
                if let Instruction::Meter(meter) = instruction {
                    self.meter(*meter);
                }
                self.steps(&step.steps, here, out);
            }
            What::ActionSet => {
                let text = "--. Executing action set:".to_owned();
                self.section(LineType::Table, text, step, here, out);
            }
            What::Copy(_) => self.steps(&step.steps, here, out),
            What::Bucket(text) => {
                // The reference ends its text so for readers who do not see the line above.
                let text = text.trim_end_matches(": using bucket").to_owned();
                self.section(LineType::Bucket, text, step, here, out);
            }
            What::Effect(effect) => self.effect(&effect.0, &effect.1, here, out),
            What::Tracked(copy) => self.track(copy, here),
            // As in Open vSwitch, changes up to here are written in front of the label.
            What::FirstLabel(before) => {
                self.commit(&before.0, &before.1, here);
            }
            What::Untracked => self.actions.list.push("ct_clear".into()),
            What::Nothing => out.push(Node::new(LineType::Action, "drop")),
            What::Detail(text) => out.push(Node::new(LineType::Detail, text)),
            What::Warning(text) => out.push(Node::new(LineType::Warning, text)),
            What::Error(text) => out.push(Node::new(LineType::Error, text)),
        }
    }

    /// Adds a line with the steps below it, or `drop` if there are none.
    fn section(
        &mut self,
        kind: LineType,
        text: String,
        step: &Step,
        here: &mut Here<'_>,
        out: &mut Vec<Node>,
    ) {
        let mut node = Node::new(kind, text);
        self.steps(&step.steps, here, &mut node.below);
        if step.steps.is_empty() {
            node.below.push(Node::new(LineType::Action, "drop"));
        }
        out.push(node);
    }

    /// Shows actions on a copy that Open vSwitch's datapath has to make, because setting headers
    /// anew cannot undo these actions.
    fn clone_of_packet(&mut self, step: &Step, here: &mut Here<'_>, out: &mut Vec<Node>) {
        // Earlier changes are written first, since the copy is made after them.
        if let [
            Step {
                what: What::Copy(copy),
                ..
            },
        ] = &step.steps[..]
        {
            self.commit(&copy.0, &copy.1, here);
        }
        let written = self.actions.written().clone();
        let before = std::mem::take(&mut self.actions.list);
        let at_end = std::mem::replace(&mut self.at_end, true);
        self.steps(&step.steps, here, out);
        self.at_end = at_end;
        let inside = std::mem::replace(&mut self.actions.list, before);
        if !inside.is_empty() {
            self.actions
                .list
                .push(format!("clone({})", inside.join(",")));
        }
        self.actions.start_from(written);
    }

    fn meter(&mut self, meter: u32) {
        self.actions.list.push(format!("meter({meter})"));
    }

    fn effect(&mut self, effect: &Effect, key: &FlowKey, here: &mut Here<'_>, out: &mut Vec<Node>) {
        match effect {
            Effect::Output {
                port,
                to_in_port,
                sent,
            } => {
                if *port == sent.in_port && !to_in_port {
                    out.push(Node::new(
                        LineType::Warning,
                        "skipping output to input port",
                    ));
                    return;
                }
                self.output(*port, sent, key, here, out);
            }
            Effect::All { flood, sent } => {
                let reached = self.switch.with_datapath(|datapath| {
                    datapath.explain_all(here.bridge.id, sent.in_port, *flood)
                });
                if let Ok(Ok(reached)) = reached {
                    for port in reached {
                        self.output(port, sent, key, here, out);
                    }
                }
            }
            Effect::Normal(sent) => self.normal(sent, key, here, out),
            Effect::Controller {
                reason,
                cookie,
                max_len,
                controller_id,
                bytes,
                ..
            } => {
                self.commit(bytes, key, here);
                let reason = match reason {
                    PacketInReason::TableMiss => EXPLICIT_MISS,
                    PacketInReason::NoMatch | PacketInReason::NoRule => 0,
                    PacketInReason::Action => 1,
                    PacketInReason::InvalidTtl => 2,
                    PacketInReason::ActionSet => 3,
                    PacketInReason::Group => 4,
                    PacketInReason::PacketOut => 5,
                };
                self.userspace += 1;
                let (id, cookie) = (self.userspace, hexadecimal(*cookie));
                let silent = u8::from(!self.request.given);
                self.actions.list.push(format!(
                    "userspace(pid=0,controller(reason={reason},dont_send={silent},continuation=0,recirc_id={id},rule_cookie={cookie},\
                     controller_id={controller_id},max_len={max_len}))"
                ));
            }
        }
    }

    fn commit(&mut self, frame: &[u8], key: &FlowKey, here: &Here<'_>) -> Headers {
        // A frame that was cut may lack headers that the key still has.
        let now = match here.cut {
            Some(_) => self.actions.written().clone(),
            None => Headers::of(frame, key),
        };
        self.actions.commit(&now);
        now
    }

    /// Sends the packet out of a port.
    fn output(
        &mut self,
        number: PortNo,
        sent: &Sent,
        key: &FlowKey,
        here: &mut Here<'_>,
        out: &mut Vec<Node>,
    ) {
        let now = match here.cut {
            Some(_) => self.actions.written().clone(),
            None => Headers::of(&sent.bytes, key),
        };
        let way = self
            .switch
            .with_datapath(|datapath| datapath.way_out(here.bridge.id, number));
        let closed = |text: &str| Node::new(LineType::Detail, text);
        match way {
            Ok(Ok(WayOut::Closed(DropReason::NoForward))) => {
                out.push(closed("OFPPC_NO_FWD set, skipping output"));
            }
            Ok(Ok(WayOut::Closed(DropReason::PortDown))) => {
                out.push(closed("OFPPC_PORT_DOWN set, skipping output"));
            }
            Ok(Ok(WayOut::Closed(_))) => {
                out.push(Node::new(LineType::Warning, "the patch port has no peer"));
            }
            Ok(Ok(WayOut::Device(port))) => {
                self.mirror_out(number, sent, here, out);
                self.actions.commit(&now);
                if let Some(name) = self.taken_by(here.bridge.id, number, &sent.bytes) {
                    return self.actions.list.push(format!("tnl_pop({name})"));
                }
                if let Some(length) = here.cut {
                    self.actions.list.push(format!("trunc({length})"));
                }
                let name = self.datapath_port(here.bridge, port);
                self.actions.list.push(name);
            }
            Ok(Ok(WayOut::Tunnel(port))) => {
                self.mirror_out(number, sent, here, out);
                self.tunnel(port, sent, key, &now, here, out);
            }
            Ok(Ok(WayOut::Patch(peer, in_port))) => {
                self.mirror_out(number, sent, here, out);
                self.patch(peer, in_port, sent, key, out);
            }
            _ => out.push(Node::new(LineType::Warning, "Nonexistent output port")),
        }
    }

    /// Goes on in a patch port's peer bridge. Besides the packet itself only its ingress port and
    /// marks are known there.
    pub(super) fn patch(
        &mut self,
        peer: datapath::BridgeId,
        in_port: PortNo,
        sent: &Sent,
        key: &FlowKey,
        out: &mut Vec<Node>,
    ) {
        if self.patches >= MAX_PATCHES {
            let text = format!("over {MAX_PATCHES} patch ports");
            return out.push(Node::new(LineType::Error, text));
        }
        if self.walks >= MAX_WALKS || self.told >= MAX_STEPS || self.nested >= MAX_NESTED {
            let text = "too many bridges and steps to be told of all";
            return out.push(Node::new(LineType::Error, text));
        }
        let Some(bridge) = self.switch.bridge_by_id(peer) else {
            return;
        };
        let mut metadata = FlowKey::ZERO;
        metadata.set_u32(at::IN_PORT, in_port);
        metadata.set_u16(at::ETH_TYPE, key.u16(at::ETH_TYPE));
        for mark in [at::PKT_MARK, at::SKB_PRIORITY] {
            metadata.set_u32(mark, key.u32(mark));
        }
        self.patches += 1;
        self.walks += 1;
        let (node, _) = self.bridge(&bridge, &metadata, &sent.bytes, None);
        self.patches -= 1;
        out.push(node);
    }

    fn mirror_out(
        &mut self,
        number: PortNo,
        sent: &Sent,
        here: &mut Here<'_>,
        out: &mut Vec<Node>,
    ) {
        if let Some(front) = ethernet(&sent.bytes) {
            self.mirror(here, number, false, &front, &sent.bytes, out);
        }
    }

    /// Sends copies to mirrors that select a port.
    fn mirror(
        &mut self,
        here: &mut Here<'_>,
        number: PortNo,
        incoming: bool,
        front: &Ethernet,
        frame: &[u8],
        out: &mut Vec<Node>,
    ) {
        let copies = self.switch.with_datapath(|datapath| {
            datapath.explain_mirrors(here.bridge.id, number, incoming, front, &mut here.mirrored)
        });
        let Ok(Ok(copies)) = copies else { return };
        for mirror in copies {
            for copy in mirror.copies {
                let cut = here.cut;
                here.cut = mirror.snaplen.or(cut);
                let sent = Sent {
                    in_port: here.in_port,
                    queue: None,
                    bytes: frame.to_vec(),
                };
                self.tagged(&copy, &sent, &FlowKey::ZERO, here, out);
                here.cut = cut;
            }
        }
    }

    /// Sends a copy with another VLAN tag out of a port.
    fn tagged(
        &mut self,
        copy: &Copy,
        sent: &Sent,
        key: &FlowKey,
        here: &mut Here<'_>,
        out: &mut Vec<Node>,
    ) {
        let number = here
            .bridge
            .ports
            .borrow()
            .values()
            .find(|port| port.id == copy.port)
            .map(|port| port.openflow_number());
        let Some(number) = number else { return };
        let bytes = retag(&sent.bytes, copy.tag);
        let sent = Sent {
            bytes,
            ..sent.clone()
        };
        self.output(number, &sent, key, here, out);
    }

    /// Carries out `NORMAL`.
    fn normal(&mut self, sent: &Sent, key: &FlowKey, here: &mut Here<'_>, out: &mut Vec<Node>) {
        use packet::Field;
        for field in [Field::EthSrc, Field::EthDst, Field::VlanTci] {
            let def = field.def();
            // Of the tag only the VLAN and its presence matter.
            let mask: &[u8] = match field {
                Field::VlanTci => &[0x1f, 0xff],
                _ => &def.place(),
            };
            let tagged = key.u16(at::VLAN_TCI) != 0;
            for (index, bits) in mask.iter().enumerate() {
                if field != Field::VlanTci || tagged {
                    self.looked_at.bytes_mut()[def.offset + index] |= bits;
                }
            }
        }
        let Some(front) = ethernet(&sent.bytes) else {
            out.push(Node::new(
                LineType::Warning,
                "the packet is too short to be switched",
            ));
            return;
        };
        let told = || {
            let told = self.switch.with_datapath(|datapath| {
                datapath.explain_normal(here.bridge.id, sent.in_port, &front)
            });
            told.ok()?.ok()
        };
        let Some(mut decided) = told() else { return };
        if decided.learns && self.request.given {
            self.learn_address(&front, decided.vlan, sent.in_port, here, out);
            // Decide again: its destination may be the address just learned.
            decided = told().unwrap_or(decided);
        }
        out.extend(decision(&decided.decision, sent.in_port, here, &front));
        let at_end = self.at_end;
        for (index, copy) in decided.copies.iter().enumerate() {
            self.at_end = at_end && index + 1 == decided.copies.len();
            self.tagged(copy, sent, key, here, out);
        }
        self.at_end = at_end;
    }

    /// Learns the source address of a real packet.
    fn learn_address(
        &self,
        front: &Ethernet,
        vlan: u16,
        in_port: PortNo,
        here: &Here<'_>,
        out: &mut Vec<Node>,
    ) {
        let ports = here.bridge.ports.borrow();
        let Some(port) = port::to_u16(in_port).and_then(|number| ports.get(&number)) else {
            return;
        };
        let learned = self
            .switch
            .with_datapath(|datapath| datapath.learn_mac(here.bridge.id, port.id, vlan, front.src));
        if !matches!(learned, Ok(Ok(()))) {
            return;
        }
        let [a, b, c, d, e, f] = front.src;
        let name = &port.config.interface_name;
        out.push(Node::new(
            LineType::Detail,
            format!(
                "learned that {a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{f:02x} is on port {name} in VLAN {vlan}"
            ),
        ));
    }

    /// Returns a port as datapath actions name it.
    pub(super) fn datapath_port(&self, bridge: &Bridge, id: PortId) -> String {
        let ports = bridge.ports.borrow();
        let Some(port) = ports.values().find(|port| port.id == id) else {
            return "none".into();
        };
        match self.numbers.of(port) {
            _ if self.request.names => port.config.interface_name.clone(),
            Some(number) => number.to_string(),
            None => "none".into(),
        }
    }
}

/// Returns the name of the ingress port.
fn name_of_ingress(here: &Here<'_>) -> String {
    let ports = here.bridge.ports.borrow();
    ports
        .get(&port::to_u16(here.in_port).unwrap_or(u16::MAX))
        .map_or("none".to_owned(), |port| port.config.interface_name.clone())
}

/// Returns the message for a packet that came in by a mirror's output port, and is dropped.
fn reserved_for_mirroring(here: &Here<'_>) -> String {
    format!(
        "dropping packet received on port {}, which is reserved exclusively for mirroring",
        name_of_ingress(here)
    )
}

/// Cuts a story off at its first rule, without that rule's actions: the packet came in by a
/// mirror's output port.
fn drop_before_rules(story: &mut reference::story::Story, here: &Here<'_>) {
    story.steps.truncate(1);
    if let Some(first) = story.steps.first_mut() {
        first.steps = vec![Step {
            what: What::Error(reserved_for_mirroring(here)),
            steps: Vec::new(),
        }];
    }
    story.after = story.before.clone();
}

/// Describes a decision of `NORMAL` in Open vSwitch's words.
fn decision(
    decision: &NormalDecision,
    in_port: PortNo,
    here: &Here<'_>,
    front: &Ethernet,
) -> Vec<Node> {
    let detail = |text: &str| vec![Node::new(LineType::Detail, text)];
    let name = || name_of_ingress(here);
    match decision {
        NormalDecision::Learned => detail("forwarding to learned port"),
        NormalDecision::Flood => detail("no learned MAC for destination, flooding"),
        NormalDecision::Drop(DropReason::LearnedOnIngress) => {
            detail("learned port is input port, dropping")
        }
        NormalDecision::Drop(DropReason::LearnedPortGone) => {
            detail("learned port is unknown, dropping")
        }
        NormalDecision::Drop(DropReason::ReservedAddress) => {
            detail("packet has reserved destination MAC, dropping")
        }
        NormalDecision::Drop(DropReason::MirrorPort) => {
            vec![Node::new(LineType::Error, reserved_for_mirroring(here))]
        }
        NormalDecision::Drop(DropReason::UnknownPort) => {
            let number = port::to_u16(in_port).unwrap_or(u16::MAX);
            vec![
                Node::new(
                    LineType::Error,
                    format!("received packet on unknown port {number}"),
                ),
                Node::new(LineType::Warning, "no input bundle, dropping"),
            ]
        }
        NormalDecision::Drop(DropReason::VlanNotCarried) => {
            let vid = front.tag.map_or(0, Tag::vid);
            let ports = here.bridge.ports.borrow();
            let access = ports
                .get(&port::to_u16(here.in_port).unwrap_or(u16::MAX))
                .and_then(|port| match port.settings(false).vlan.mode() {
                    datapath::vlan::VlanMode::Access(own) => Some(own),
                    _ => None,
                });
            let why = match access {
                Some(own) => format!(
                    "dropping VLAN {vid} tagged packet received on port {} configured as VLAN {own} access port",
                    name()
                ),
                None => format!(
                    "dropping VLAN {vid} packet received on port {} not configured for trunking VLAN {vid}",
                    name()
                ),
            };
            vec![
                Node::new(LineType::Error, why),
                Node::new(
                    LineType::Warning,
                    "disallowed VLAN VID for this input port, dropping",
                ),
            ]
        }
        NormalDecision::Drop(reason) => vec![Node::new(LineType::Warning, format!("{reason:?}"))],
    }
}

/// Returns whether Open vSwitch can undo these actions by setting the packet's headers again, so
/// that no copy is needed. A `clone` among them does not matter, since it makes its own copy.
fn is_reversible(actions: &[Action]) -> bool {
    !actions.iter().any(cannot_be_undone)
}

fn cannot_be_undone(action: &Action) -> bool {
    matches!(
        action,
        Action::Meter(_) | Action::OutputTrunc { .. } | Action::Ct(_)
    )
}

/// Returns whether a bridge's first rule has an action that needs a copy.
fn needs_copy(steps: &[Step]) -> bool {
    let first = steps
        .iter()
        .find(|step| matches!(step.what, What::Rule { .. }));
    first.is_some_and(|rule| {
        let action = |step: &Step| match &step.what {
            What::Action(action) => cannot_be_undone(action),
            What::Instruction(instruction) => matches!(instruction, Instruction::Meter(_)),
            _ => false,
        };
        rule.steps.iter().any(action)
    })
}

fn ethernet(frame: &[u8]) -> Option<Ethernet> {
    let mut frame = packet::HeapFrame::new(frame);
    datapath::vlan::ethernet(&mut frame).ok()
}

/// Returns a frame with another outermost VLAN tag.
fn retag(frame: &[u8], tag: Option<Tag>) -> Vec<u8> {
    let mut bytes = frame.to_vec();
    let tagged =
        bytes.len() >= 18 && matches!(u16::from_be_bytes([bytes[12], bytes[13]]), 0x8100 | 0x88a8);
    if tagged {
        bytes.drain(12..16);
    }
    if let (Some(tag), true) = (tag, bytes.len() >= 12) {
        let [a, b] = tag.tpid.to_be_bytes();
        let [c, d] = tag.tci.to_be_bytes();
        bytes.splice(12..12, [a, b, c, d]);
    }
    bytes
}

fn hexadecimal(number: u64) -> String {
    match number {
        0 => "0".into(),
        number => format!("{number:#x}"),
    }
}

/// Describes the drop of a fragment, where `ovs-ofctl set-frags` says that fragments are dropped.
fn fragment_dropped() -> Node {
    let text = " 0. Packets are IP fragments and the fragment handling mode is \"drop\".";
    let mut node = Node::new(LineType::Table, text);
    node.below.push(Node::new(LineType::Action, "drop"));
    node
}

/// Moves the action set below the walk's first rule, as in Open vSwitch.
fn take_in_set(nodes: &mut Vec<Node>) {
    let is_set = |node: &Node| node.text.starts_with("--.");
    if let [.., first, set] = &mut nodes[..]
        && is_set(set)
        && first.kind == LineType::Table
        && !is_set(first)
        && let Some(set) = nodes.pop()
        && let Some(first) = nodes.last_mut()
    {
        first.below.push(set);
    }
}

/// Returns whether an output action was written to the action set.
fn wrote_set(steps: &[Step]) -> bool {
    steps.iter().any(|step| match &step.what {
        What::Instruction(Instruction::WriteActions(actions)) => actions
            .iter()
            .any(|action| matches!(action, Action::Output { .. } | Action::Group(_))),
        What::Copy(_) => false,
        _ => wrote_set(&step.steps),
    })
}

/// Returns why a walk failed, in Open vSwitch's words.
fn failure(steps: &[Step]) -> Option<&'static str> {
    steps.iter().find_map(|step| match &step.what {
        What::Error(text) if text.ends_with("resubmit actions") => Some("Too many resubmits"),
        What::Error(text) if text.contains("stack") => Some("Stack too deep"),
        What::Error(_) => Some("Recursion too deep"),
        _ => failure(&step.steps),
    })
}
