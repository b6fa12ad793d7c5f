//! The parts of a run that steer: entries, choices of cores, samples and moves.

use super::super::machine::{Event, Fragment, Item};
use super::super::scenario::{FlowSpec, Mode, Moving};
use super::{Exact, Run};
use crate::balance::Flow;
use crate::cores::{CoreId, Load};
use crate::handover::{Handover, Limits};
use crate::policy::Basis;
use crate::random::mix;
use crate::table::{EntrySpec, Match, Packet, Scope, Steered, TableError, Target};

/// A flow as the balancer names it: an exact flow, or a background flow.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Key {
    Exact(usize),
    Fluid(usize),
}

impl Run<'_> {
    /// Adds one entry for each exact flow, whose fragments then share a core, one for the
    /// background flows of each virtual machine, and one for the others.
    pub(super) fn add_entries(&mut self) -> Result<(), TableError> {
        let entry = |key: [u8; 4], scope, vm, priority| EntrySpec {
            matching: Match::new([0xff; 4], key),
            precedence: 0,
            target: Target::Choose(scope),
            vm,
            priority,
            cookie: 0,
            idle_timeout_ns: None,
            hard_timeout_ns: None,
            notify: false,
        };
        for at in 0..self.flows.len() {
            let FlowSpec { vm, priority, .. } = self.flows[at].spec;
            let entry = entry(exact_key(at), Scope::Entry, vm, priority);
            self.flows[at].entry = Some(self.table.add(entry, &mut self.cores, 0)?);
        }
        for at in 0..=self.scenario.vms.len() {
            let vm = self.scenario.vms.get(at).map(|vm| vm.id);
            let entry = entry(fluid_key(at), Scope::Flow, vm, false);
            self.table.add(entry, &mut self.cores, 0)?;
        }
        Ok(())
    }

    /// Looks up a flow's datagram in the steering table, which chooses a core for the first.
    pub(super) fn steer(&mut self, at: usize) {
        let spec = self.flows[at].spec;
        let current = self.rss_core(spec.hash);
        let packet = Packet {
            key: &exact_key(at),
            flow: spec.hash,
            current,
            length: spec.bytes,
        };
        let (settings, now_ns) = (&self.scenario.settings, self.machine.now_ns);
        let steered = self.table.steer(packet, &mut self.cores, settings, now_ns);
        let flow = &mut self.flows[at];
        if let Steered::Chosen { core, choice, new } = steered {
            flow.choice = Some(choice);
            // No packet has come for longer than any can wait, unless some are still parked: then
            // the flow stays, and `settle` corrects the choice.
            if new && flow.way.is_settled() {
                let counters = flow.way.counters();
                self.moves_refused += u64::from(counters.gave_up_full + counters.gave_up_late);
                let limits = match self.scenario.moving {
                    Moving::Handover(limits) => limits,
                    Moving::Drain | Moving::AtOnce => Limits::default(),
                };
                flow.way = Handover::new(core, limits);
                flow.ticket = None;
            }
        }
    }

    pub(super) fn send_steered(&mut self, fragment: Fragment) -> bool {
        let at = fragment.flow;
        let chosen = self.flows[at].choice.and_then(|id| self.table.choice(id));
        let Some(core) = chosen.map(|choice| choice.core) else {
            return self.send(self.rss_core(self.flows[at].spec.hash), fragment);
        };
        match self.scenario.moving {
            Moving::AtOnce => self.send(core, fragment),
            Moving::Handover(_) => {
                self.with_way(at, |way, put| way.packet(fragment, &mut *put).is_ok())
            }
            Moving::Drain => {
                let now_ns = self.machine.now_ns;
                let mut to = core;
                if let Some(ticket) = self.flows[at].ticket
                    && ticket.core != core
                {
                    let (lane, wait) = &mut self.lanes[ticket.core.index()];
                    let longest_ns = wait.longest_ns(now_ns);
                    if !lane.may_move(&ticket, longest_ns, now_ns) {
                        self.packets_kept += 1;
                        to = ticket.core;
                    }
                }
                let sent = self.send(to, fragment);
                if sent {
                    let ticket = self.lanes[to.index()].0.send(to, now_ns);
                    self.flows[at].ticket = Some(ticket);
                }
                sent
            }
        }
    }

    /// Calls a method of a flow's handover with a function that puts fragments into queues, and
    /// then wakes the cores that got some.
    pub(super) fn with_way<R>(
        &mut self,
        at: usize,
        call: impl FnOnce(
            &mut Handover<Fragment>,
            &mut dyn FnMut(CoreId, Fragment) -> Result<(), Fragment>,
        ) -> R,
    ) -> R {
        let Exact { way, spec, .. } = &mut self.flows[at];
        let machine = &mut self.machine;
        let offered_ns = spec.fragment_ns + spec.datagram_ns / f64::from(spec.fragments);
        let before = way.core();
        let result = call(way, &mut |core, fragment| {
            machine.servers[core.index()].offered_ns += offered_ns;
            let full = machine.put(core, Item::Fragment(fragment)).is_err();
            if full { Err(fragment) } else { Ok(()) }
        });
        let after = way.core();
        self.wake(before);
        self.wake(after);
        result
    }

    pub(super) fn start_fluid(&mut self) {
        let hash = self.fluids.next_hash();
        let now_ns = self.machine.now_ns;
        let rss = self.rss_core(hash);
        let (core, choice) = match self.scenario.mode {
            Mode::Default(core) => (core, None),
            Mode::Rss => (rss, None),
            Mode::Adaptive => {
                let vm = (mix(hash) % (self.scenario.vms.len() as u64 + 1)) as usize;
                let packet = Packet {
                    key: &fluid_key(vm),
                    flow: hash,
                    current: rss,
                    length: 0,
                };
                let settings = &self.scenario.settings;
                let steered = self.table.steer(packet, &mut self.cores, settings, now_ns);
                match steered {
                    Steered::Chosen { core, choice, .. } => (core, Some(choice)),
                    _ => (rss, None),
                }
            }
        };
        self.fluids.start(core, choice, now_ns);
    }

    /// Measures loads; in adaptive mode, moves flows.
    pub(super) fn sample(&mut self) {
        let now_ns = self.machine.now_ns;
        let settings = &self.scenario.settings;
        self.machine
            .at(now_ns + settings.sample_period_ns, Event::Sample);
        let samples = self.measure();
        if self.scenario.mode != Mode::Adaptive {
            return;
        }
        self.samples += 1;
        let period_ns = settings.sample_period_ns as f64;
        // Cannot fail: there is one sample for each core.
        let _ = self.cores.sample(&samples, now_ns);
        self.balancer.observe(&self.cores);
        for flow in &mut self.flows {
            let spent_ns = flow.spent_ns - flow.spent_before;
            flow.spent_before = flow.spent_ns;
            if let Some(choice) = flow.choice {
                let load = Load::of(spent_ns / period_ns);
                self.table.measured(choice, load, now_ns);
            }
        }
        // Background flows send all the time, so it is enough to record their use before they age.
        // The first samples determine what to expect of flows that start later.
        let often = (settings.choice_age_ns / settings.sample_period_ns / 2).max(1);
        if self.samples <= 5 || self.samples.is_multiple_of(often) {
            for fluid in &self.fluids.flows {
                if let Some(choice) = fluid.choice {
                    let load = self.fluids.load(fluid).max(Load(1));
                    self.table.measured(choice, load, now_ns);
                }
            }
        }
        self.table.expire(&mut self.cores, settings, now_ns);
        self.balance();
        for at in 0..self.flows.len() {
            self.settle(at);
        }
    }

    fn balance(&mut self) {
        let settings = &self.scenario.settings;
        let sources = self.balancer.sources(&self.cores, settings);
        let mut flows = Vec::new();
        let exact = self.flows.iter().enumerate();
        let exact = exact.map(|(at, flow)| (Key::Exact(at), flow.choice));
        let fluid = self.fluids.flows.iter().enumerate();
        let fluid = fluid.filter(|(_, fluid)| sources[fluid.core.index()]);
        let fluid = fluid.map(|(at, fluid)| (Key::Fluid(at), fluid.choice));
        for (key, choice) in exact.chain(fluid) {
            let Some(choice) = choice.and_then(|id| self.table.choice(id)) else {
                continue;
            };
            let load = match key {
                Key::Exact(_) => choice.load,
                Key::Fluid(at) => self.fluids.load(&self.fluids.flows[at]),
            };
            flows.push(Flow {
                key,
                core: choice.core,
                load,
                vm: choice.vm,
                priority: choice.priority,
                basis: choice.basis,
                moved_ns: choice.moved_ns,
            });
        }
        let now_ns = self.machine.now_ns;
        let moves = self.balancer.decide(&self.cores, &flows, settings, now_ns);
        for step in moves {
            match step.key {
                Key::Exact(at) => self.move_exact(at, step.to, step.basis),
                Key::Fluid(at) => {
                    let choice = self.fluids.flows[at].choice;
                    let cores = &mut self.cores;
                    if choice.is_some_and(|id| {
                        self.table
                            .move_choice(id, step.to, step.basis, cores, now_ns)
                    }) {
                        self.fluids.move_to(at, step.to);
                        self.last_move_ns = now_ns;
                    }
                }
            }
        }
    }

    pub(super) fn forced_move(&mut self) {
        self.schedule_forced_move();
        if self.scenario.mode != Mode::Adaptive || self.flows.is_empty() {
            return;
        }
        let at = self.random.below(self.flows.len() as u64) as usize;
        let to = CoreId(self.random.below(u64::from(self.scenario.cores)) as u16);
        self.move_exact(at, to, Basis::LeastLoad);
    }

    fn move_exact(&mut self, at: usize, to: CoreId, basis: Basis) {
        let Some(choice) = self.flows[at].choice else {
            return;
        };
        let now_ns = self.machine.now_ns;
        if let Moving::Handover(_) = self.scenario.moving {
            let machine = &mut self.machine;
            let from = self.flows[at].way.core();
            let put_marker = |core, number| {
                let marker = Item::Marker { flow: at, number };
                machine.put(core, marker).is_ok()
            };
            let begun = self.flows[at].way.begin(to, now_ns, put_marker);
            self.wake(from);
            if begun.is_err() {
                self.moves_refused += u64::from(to != from);
                return;
            }
        }
        let cores = &mut self.cores;
        if self.table.move_choice(choice, to, basis, cores, now_ns) {
            self.flows[at].outcome.moves += u64::from(now_ns >= self.scenario.warm_up_ns);
            self.last_move_ns = now_ns;
        }
    }

    /// Advances a flow's handover; if it was given up, resets the choice to the flow's core.
    fn settle(&mut self, at: usize) {
        if !matches!(self.scenario.moving, Moving::Handover(_)) {
            return;
        }
        let now_ns = self.machine.now_ns;
        self.with_way(at, |way, put| way.turn(now_ns, &mut *put));
        let flow = &self.flows[at];
        let Some(id) = flow.choice.filter(|_| flow.way.is_settled()) else {
            return;
        };
        let Some(basis) = self.table.choice(id).map(|choice| choice.basis) else {
            return;
        };
        let (back, cores) = (flow.way.core(), &mut self.cores);
        self.table.move_choice(id, back, basis, cores, now_ns);
    }
}

/// Returns the key of an exact flow in the table; background flows use their virtual machine's
/// number.
fn exact_key(flow: usize) -> [u8; 4] {
    (flow as u32).to_be_bytes()
}

fn fluid_key(vm: usize) -> [u8; 4] {
    (vm as u32 | 1 << 31).to_be_bytes()
}
