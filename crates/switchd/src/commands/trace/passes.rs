//! Tracked packets that go on in a table, in a pass of their own, as Open vSwitch's datapath
//! recirculates them.

use crate::switch::Bridge;
use openflow::action::Action;
use openflow::conntrack::Nat;
use openflow::format;
use packet::FlowKey;
use packet::key::at;
use pipeline::reference::story::{Fork, TrackedCopy};
use std::collections::VecDeque;
use std::fmt::Write;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::rc::Rc;

/// Most passes of one trace: packets can be tracked in circles.
const MAX_PASSES: u32 = 64;
/// `ct_state` where no other is given: `new|trk`.
const NEW: u32 = 0x21;
/// The names of `ct_state`'s bits, in their order.
const STATES: [&str; 8] = ["new", "est", "rel", "rpl", "inv", "trk", "snat", "dnat"];

/// A packet that goes on.
pub(super) struct Pass {
    pub bridge: Rc<Bridge>,
    pub fork: Rc<Fork>,
    pub number: u32,
    pub state: u32,
    /// Whether the state was asked for.
    given: bool,
}

/// Packets that are to go on.
pub(super) struct Passes {
    waiting: VecDeque<Pass>,
    /// Number and state of the pass that is being followed: one that goes on like it has its
    /// number.
    current: Option<(u32, Rc<Bridge>, Rc<Fork>)>,
    states: VecDeque<u32>,
    numbers: u32,
    begun: u32,
}

impl Passes {
    /// Makes an empty list; `states` are those that the packets will find, one after the other.
    pub fn new(states: &[u32]) -> Passes {
        Passes {
            waiting: VecDeque::new(),
            current: None,
            states: states.iter().copied().collect(),
            numbers: 0,
            begun: 0,
        }
    }

    /// Adds a packet and returns the number of its pass.
    pub fn add(&mut self, bridge: Rc<Bridge>, fork: &Rc<Fork>) -> u32 {
        let like =
            |of: &Rc<Bridge>, other: &Fork| Rc::ptr_eq(of, &bridge) && fork.goes_on_as(other);
        let waiting = self
            .waiting
            .iter()
            .find(|pass| like(&pass.bridge, &pass.fork));
        let current = self
            .current
            .iter()
            .find(|(_, bridge, fork)| like(bridge, fork));
        let known = (waiting.map(|pass| pass.number)).or(current.map(|(number, ..)| *number));
        let number = known.unwrap_or_else(|| {
            self.numbers += 1;
            self.numbers
        });
        self.waiting.push_back(Pass {
            bridge,
            fork: Rc::clone(fork),
            number,
            state: NEW,
            given: false,
        });
        number
    }

    /// Takes the next packet, with its state.
    pub fn take(&mut self) -> Option<Pass> {
        if self.begun == MAX_PASSES {
            return None;
        }
        self.begun += 1;
        let mut pass = self.waiting.pop_front()?;
        if let Some(state) = self.states.pop_front() {
            (pass.state, pass.given) = (state, true);
        }
        self.current = Some((pass.number, Rc::clone(&pass.bridge), Rc::clone(&pass.fork)));
        Some(pass)
    }

    /// Returns how many packets are left.
    pub fn left(&self) -> usize {
        self.waiting.len()
    }
}

impl Pass {
    /// Returns the lines above the trace; `now` is the key with translated addresses.
    pub fn heading(&self, now: &FlowKey) -> String {
        let rule = "=".repeat(79);
        let state = match self.given {
            false => "default ct_state=trk|new (use --ct-next to customize)".to_owned(),
            true => {
                let names = STATES.iter().enumerate();
                let set = names.filter(|(bit, _)| self.state >> bit & 1 != 0);
                let set: Vec<&str> = set.map(|(_, name)| *name).collect();
                match &set[..] {
                    [] => "ct_state=0".to_owned(),
                    set => format!("ct_state={}", set.join("|")),
                }
            }
        };
        let mut text = format!(
            "\n{rule}\nrecirc({:#x}) - resume conntrack with {state}\n",
            self.number
        );
        if let Some(nat) = &self.fork.nat {
            let ends = |key: &FlowKey| match nat.direction {
                Some(_) => ends(key),
                None => String::new(),
            };
            let _ = write!(
                text,
                "Replacing src/dst IP/ports to simulate NAT:\n Initial flow: {}\n Modified flow: {}\n",
                ends(&self.fork.key),
                ends(now)
            );
        }
        text + &rule + "\n\n"
    }
}

/// Returns a flow's addresses and ports.
fn ends(key: &FlowKey) -> String {
    let ports = (key.u16(at::TP_SRC), key.u16(at::TP_DST));
    let ipv6 = |offset: usize| {
        let mut bytes = [0; 16];
        bytes.copy_from_slice(&key.bytes()[offset..offset + 16]);
        Ipv6Addr::from(bytes)
    };
    match key.u16(at::ETH_TYPE) {
        0x86dd => format!(
            "ipv6_src=[{}],tp_src={},ipv6_dst=[{}],tp_dst={}",
            ipv6(at::IPV6_SRC),
            ports.0,
            ipv6(at::IPV6_DST),
            ports.1
        ),
        _ => format!(
            "nw_src={},tp_src={},nw_dst={},tp_dst={}",
            Ipv4Addr::from(key.u32(at::IPV4_SRC)),
            ports.0,
            Ipv4Addr::from(key.u32(at::IPV4_DST)),
            ports.1
        ),
    }
}

/// Returns the datapath's action for a `ct`.
pub(super) fn action(copy: &TrackedCopy) -> String {
    let mut parts = Vec::new();
    if copy.commit {
        parts.push(if copy.force { "force_commit" } else { "commit" }.to_owned());
    }
    if copy.zone != 0 {
        parts.push(format!("zone={}", copy.zone));
    }
    if copy.mark.1 != 0 {
        parts.push(format!("mark={:#x}/{:#x}", copy.mark.0, copy.mark.1));
    }
    match copy.label {
        (_, 0) => {}
        (value, u128::MAX) => parts.push(format!("label={value:#x}")),
        (value, mask) => parts.push(format!("label={value:#x}/{mask:#x}")),
    }
    match copy.alg {
        21 => parts.push("helper=ftp".into()),
        69 => parts.push("helper=tftp".into()),
        _ => {}
    }
    if let Some(nat) = &copy.nat {
        parts.push(translation(nat));
    }
    match &parts[..] {
        [] => "ct".into(),
        parts => format!("ct({})", parts.join(",")),
    }
}

/// Returns a translation as a datapath's action has it, which is as a rule has it.
fn translation(nat: &Nat) -> String {
    let mut text = String::new();
    format::actions(&mut text, &[Action::Nat(Box::new(*nat))]);
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn copy() -> TrackedCopy {
        TrackedCopy {
            bytes: Vec::new(),
            key: FlowKey::ZERO,
            commit: false,
            force: false,
            zone: 0,
            mark: (0, 0),
            label: (0, 0),
            alg: 0,
            nat: None,
            fork: None,
        }
    }

    /// As Open vSwitch 3.1 prints them.
    #[test]
    fn datapath_actions_are_open_vswitchs() {
        assert_eq!(action(&copy()), "ct");
        let nat = Nat {
            direction: None,
            range: None,
            persistent: false,
            hash: false,
            random: false,
        };
        let all = TrackedCopy {
            commit: true,
            force: true,
            zone: 5,
            mark: (1, 0xf),
            label: (0x77, 0xff),
            alg: 21,
            nat: Some(nat),
            ..copy()
        };
        assert_eq!(
            action(&all),
            "ct(force_commit,zone=5,mark=0x1/0xf,label=0x77/0xff,helper=ftp,nat)"
        );
    }
}
