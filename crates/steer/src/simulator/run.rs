//! The simulation loop: arrivals, queues, processing, deliveries.

mod steered;

use super::background::Fluids;
use super::machine::{Event, Fragment, Guest, Item, Machine, Next, Spent, Work};
use super::outcome::{CoreOutcome, FlowOutcome, Outcome};
use super::scenario::{Change, FlowSpec, Mode, Moving, Scenario, ScenarioError, VmSpec};
use crate::balance::Balancer;
use crate::cores::{CoreId, CoreTable, Load, Sample, VmId};
use crate::drain::{Lane, LongestWait, Ticket};
use crate::handover::{Handover, Limits};
use crate::random::Random;
use crate::table::{ChoiceId, EntryId, EntrySpec, FlowTable, Limits as TableLimits};
use std::collections::VecDeque;

/// How often background flows and their share of the cores are updated, ns.
pub(super) const SLICE_NS: u64 = 1_000_000;

/// Weight of a slice in the smoothed load that exact flows offer.
const SLICE_WEIGHT: f64 = 0.1;

/// Most incomplete datagrams of a flow at a time.
const REASSEMBLIES: usize = 4_096;

/// A wait longer than any on an idle host, ns: a flow without parking does not move after a shorter
/// gap, even if no longer wait has been measured.
const LEAST_GAP_NS: u64 = 1_000_000;

/// How long the longest wait of a core is remembered, ns.
const WAIT_WINDOW_NS: u64 = 1_000_000_000;

/// A flow that is simulated packet by packet.
struct Exact {
    spec: FlowSpec,
    entry: Option<EntryId>,
    choice: Option<ChoiceId>,
    way: Handover<Fragment>,
    ticket: Option<Ticket>,
    next_datagram: u64,
    /// The first datagram that counts.
    first_counted: u64,
    /// For each datagram: the fragments still missing, and whether one is lost.
    missing: Vec<(u64, u8, bool)>,
    /// The next datagram that would be in order.
    in_order: u64,
    spent_ns: f64,
    spent_before: f64,
    outcome: FlowOutcome,
}

struct Run<'a> {
    scenario: &'a Scenario,
    machine: Machine,
    random: Random,
    flows: Vec<Exact>,
    fluids: Fluids,
    table: FlowTable<4>,
    cores: CoreTable,
    balancer: Balancer,
    /// For flows that move without parking: the lane to each core, and its longest wait.
    lanes: Vec<(Lane, LongestWait)>,
    spent_at_sample: Vec<Spent>,
    sampled_ns: u64,
    spent_at_start: Vec<Spent>,
    packets_at_start: Vec<u64>,
    samples: u64,
    moves_refused: u64,
    packets_kept: u64,
    last_move_ns: u64,
}

/// Simulates a scenario.
///
/// # Errors
///
/// Fails as [`Scenario::check`] does.
pub fn simulate(scenario: &Scenario) -> Result<Outcome, ScenarioError> {
    scenario.check()?;
    let mut run = Run::new(scenario)?;
    run.schedule();
    while let Some(event) = run.machine.next(scenario.end_ns) {
        run.happen(event);
    }
    Ok(run.outcome())
}

impl<'a> Run<'a> {
    fn new(scenario: &'a Scenario) -> Result<Run<'a>, ScenarioError> {
        let count = scenario.cores;
        let cores = CoreTable::new(count, 0)?;
        let limits = match scenario.moving {
            Moving::Handover(limits) => limits,
            Moving::Drain | Moving::AtOnce => Limits::default(),
        };
        let wait = LongestWait::new(WAIT_WINDOW_NS, LEAST_GAP_NS, 0);
        let exact = |spec: &FlowSpec| Exact {
            spec: *spec,
            entry: None,
            choice: None,
            way: Handover::new(CoreId(0), limits),
            ticket: None,
            next_datagram: 0,
            first_counted: 0,
            missing: reassemblies(spec),
            in_order: 0,
            spent_ns: 0.0,
            spent_before: 0.0,
            outcome: FlowOutcome::default(),
        };
        let choices = scenario.flows.len() + scenario.background.flows as usize;
        let mut run = Run {
            scenario,
            machine: Machine::new(count, scenario.task_share, scenario.queue),
            random: Random::new(scenario.seed),
            flows: scenario.flows.iter().map(exact).collect(),
            fluids: Fluids::new(&scenario.background, count, scenario.seed),
            table: FlowTable::new(TableLimits {
                entries: scenario.flows.len() + scenario.vms.len() + 1,
                choices,
            }),
            balancer: Balancer::new(count, &scenario.settings),
            lanes: vec![(Lane::default(), wait); usize::from(count)],
            spent_at_sample: vec![Spent::default(); usize::from(count)],
            sampled_ns: 0,
            spent_at_start: vec![Spent::default(); usize::from(count)],
            packets_at_start: vec![0; usize::from(count)],
            cores,
            samples: 0,
            moves_refused: 0,
            packets_kept: 0,
            last_move_ns: 0,
        };
        for vm in &scenario.vms {
            run.start_vm(vm);
        }
        // Cannot fail: the table has room for the entries added here.
        let _ = run.add_entries();
        Ok(run)
    }

    fn schedule(&mut self) {
        let scenario = self.scenario;
        self.machine.at(scenario.warm_up_ns, Event::WarmedUp);
        for (index, (time_ns, _)) in scenario.changes.iter().enumerate() {
            self.machine.at(*time_ns, Event::Change(index));
        }
        for flow in 0..self.flows.len() {
            self.schedule_arrival(flow);
        }
        if !self.fluids.is_empty() {
            self.machine.at(0, Event::Slice);
        }
        self.machine
            .at(scenario.settings.sample_period_ns, Event::Sample);
        self.schedule_forced_move();
    }

    fn schedule_arrival(&mut self, flow: usize) {
        let gap_ns = self.random.exponential(1e9 / self.flows[flow].spec.rate);
        let time_ns = self.machine.now_ns + gap_ns.round() as u64;
        self.machine.at(time_ns, Event::Arrival(flow));
    }

    fn schedule_forced_move(&mut self) {
        if self.scenario.forced_moves > 0.0 {
            let gap_ns = self.random.exponential(1e9 / self.scenario.forced_moves);
            let time_ns = self.machine.now_ns + gap_ns.round() as u64;
            self.machine.at(time_ns, Event::ForcedMove);
        }
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::WarmedUp => {
                self.spent_at_start = self.spent_now();
                let packets = self.machine.servers.iter().map(|server| server.packets);
                self.packets_at_start = packets.collect();
            }
            Event::Change(index) => self.change(index),
            Event::Arrival(flow) => self.arrive(flow),
            Event::Done(core) => self.done(core),
            Event::Slice => self.slice(),
            Event::Sample => self.sample(),
            Event::ForcedMove => self.forced_move(),
        }
    }

    fn counts(&self) -> bool {
        self.machine.now_ns >= self.scenario.warm_up_ns
    }

    fn change(&mut self, index: usize) {
        match self.scenario.changes[index].1 {
            Change::StartVm(vm) => {
                self.stop_vm(vm.id);
                self.start_vm(&vm);
            }
            Change::StopVm(vm) => self.stop_vm(vm),
            Change::Priority(flow, priority) => {
                self.flows[flow].spec.priority = priority;
                if let Some(entry) = self.flows[flow].entry {
                    let change = |spec: &mut EntrySpec<4>| spec.priority = priority;
                    // Cannot fail: entries are never deleted here.
                    let _ = self.table.modify(entry, change, &mut self.cores);
                }
            }
            Change::Rate(flow, rate) => self.flows[flow].spec.rate = rate,
        }
    }

    fn start_vm(&mut self, vm: &VmSpec) {
        // Cannot fail: its core was checked.
        let _ = self.cores.vm_started(vm.id, vm.core);
        let guests = &mut self.machine.guests;
        match guests.iter_mut().find(|guest| guest.id == vm.id) {
            Some(guest) => {
                guest.core = Some(vm.core);
                guest.compute = vm.compute;
            }
            None => guests.push(Guest {
                id: vm.id,
                core: Some(vm.core),
                compute: vm.compute,
                queue: VecDeque::new(),
            }),
        }
    }

    fn stop_vm(&mut self, vm: VmId) {
        self.cores.vm_stopped(vm);
        let mut guests = self.machine.guests.iter_mut();
        if let Some(guest) = guests.find(|guest| guest.id == vm) {
            guest.core = None;
            for (flow, _) in guest.queue.drain(..) {
                self.flows[flow].outcome.lost_at_guest += 1;
            }
        }
    }

    fn rss_core(&self, hash: u64) -> CoreId {
        CoreId((hash % u64::from(self.scenario.cores)) as u16)
    }

    fn arrive(&mut self, at: usize) {
        self.schedule_arrival(at);
        let counts = self.counts();
        let now_ns = self.machine.now_ns;
        let flow = &mut self.flows[at];
        let fragment = Fragment {
            flow: at,
            datagram: flow.next_datagram,
            sent_ns: now_ns,
        };
        flow.next_datagram += 1;
        if counts {
            flow.outcome.offered += 1;
        } else {
            flow.first_counted = flow.next_datagram;
        }
        let fragments = flow.spec.fragments;
        let slot = fragment.datagram as usize % REASSEMBLIES;
        if let Some(missing) = flow.missing.get_mut(slot) {
            *missing = (fragment.datagram, fragments, false);
        }
        let hash = flow.spec.hash;
        if self.scenario.mode == Mode::Adaptive {
            self.steer(at);
        }
        let mut lost = false;
        for number in 0..fragments {
            let sent = match self.scenario.mode {
                Mode::Default(core) => self.send(core, fragment),
                Mode::Rss if number == 0 => self.send(self.rss_core(hash), fragment),
                Mode::Rss => self.send(self.rss_core(self.scenario.fragment_hash), fragment),
                Mode::Adaptive => self.send_steered(fragment),
            };
            lost |= !sent;
        }
        if lost {
            let flow = &mut self.flows[at];
            if let Some(missing) = flow.missing.get_mut(slot) {
                missing.2 = true;
            }
            if counts {
                flow.outcome.lost_in_queue += 1;
            }
        }
    }

    /// Puts a fragment into a core's queue. Returns false if it is full.
    fn send(&mut self, core: CoreId, fragment: Fragment) -> bool {
        let spec = &self.flows[fragment.flow].spec;
        let server = &mut self.machine.servers[core.index()];
        server.offered_ns += spec.fragment_ns + spec.datagram_ns / f64::from(spec.fragments);
        let sent = self.machine.put(core, Item::Fragment(fragment)).is_ok();
        self.wake(core);
        sent
    }

    /// Starts work on an idle core, if there is any.
    fn wake(&mut self, core: CoreId) {
        let Some(next) = self.machine.take(core) else {
            return;
        };
        let work = match next {
            Next::Guest { flow, cost_ns } => Work::Guest { flow, cost_ns },
            Next::Packet(item @ Item::Marker { .. }) => Work::Packet {
                item,
                completes: false,
                cost_ns: 0.0,
            },
            Next::Packet(item @ Item::Fragment(fragment)) => {
                let flow = &mut self.flows[fragment.flow];
                let slot = fragment.datagram as usize % REASSEMBLIES;
                let completes = match flow.missing.get_mut(slot) {
                    None => true,
                    Some((datagram, missing, lost)) if *datagram == fragment.datagram => {
                        *missing = missing.saturating_sub(1);
                        *missing == 0 && !*lost
                    }
                    // Overwritten by a later datagram: it will never be complete.
                    Some(_) => false,
                };
                let decrypt_ns = if completes {
                    flow.spec.datagram_ns
                } else {
                    0.0
                };
                // The core's previous work is finished.
                let (lane, _) = &mut self.lanes[core.index()];
                lane.finished = self.machine.servers[core.index()].packets as u32;
                Work::Packet {
                    item,
                    completes,
                    cost_ns: flow.spec.fragment_ns + decrypt_ns,
                }
            }
        };
        self.machine.begin(core, work);
    }

    fn done(&mut self, core: CoreId) {
        let server = &mut self.machine.servers[core.index()];
        match server.work.take() {
            Some(Work::Guest { flow, cost_ns }) => {
                server.spent.guests += cost_ns;
                self.delivered(flow);
            }
            Some(Work::Packet {
                item: Item::Marker { flow, number },
                ..
            }) => self.with_way(flow, |way, put| way.marker_done(number, &mut *put)),
            Some(Work::Packet {
                item: Item::Fragment(fragment),
                completes,
                cost_ns,
            }) => {
                let flow = &mut self.flows[fragment.flow];
                flow.spent_ns += cost_ns;
                server.packets += 1;
                server.spent.packets += cost_ns;
                if !flow.spec.priority {
                    server.spent.yielding += cost_ns;
                }
                let wait_ns = self.machine.now_ns - fragment.sent_ns;
                self.lanes[core.index()]
                    .1
                    .note(wait_ns, self.machine.now_ns);
                if completes {
                    self.completed(fragment);
                }
            }
            None => {}
        }
        self.wake(core);
    }

    /// Passes a datagram to its virtual machine.
    fn completed(&mut self, fragment: Fragment) {
        let flow = &mut self.flows[fragment.flow];
        let counts = fragment.datagram >= flow.first_counted;
        if fragment.datagram < flow.in_order {
            flow.outcome.reordered += u64::from(counts);
        } else {
            flow.in_order = fragment.datagram + 1;
        }
        let Some(vm) = flow.spec.vm else {
            return self.delivered(fragment.flow);
        };
        let mut guests = self.machine.guests.iter_mut();
        let guest = guests.find(|guest| guest.id == vm && guest.core.is_some());
        let room = |guest: &&mut Guest| guest.queue.len() < self.scenario.guest_queue;
        match guest.filter(room) {
            Some(guest) => {
                guest.queue.push_back((fragment.flow, flow.spec.guest_ns));
                if let Some(core) = guest.core {
                    self.wake(core);
                }
            }
            None => flow.outcome.lost_at_guest += u64::from(counts),
        }
    }

    fn delivered(&mut self, flow: usize) {
        let counts = self.counts();
        let interval = (self.machine.now_ns / self.scenario.interval_ns) as usize;
        let outcome = &mut self.flows[flow].outcome;
        outcome.delivered += u64::from(counts);
        if outcome.intervals.len() <= interval {
            outcome.intervals.resize(interval + 1, 0);
        }
        outcome.intervals[interval] += 1;
    }

    /// Starts background flows that are due, and divides cores between them and packets.
    fn slice(&mut self) {
        let now_ns = self.machine.now_ns;
        self.machine.at(now_ns + SLICE_NS, Event::Slice);
        for _ in 0..self.fluids.due(now_ns) {
            self.start_fluid();
        }
        for (at, server) in self.machine.servers.iter_mut().enumerate() {
            let offered = server.offered_ns / SLICE_NS as f64;
            server.offered_ns = 0.0;
            server.exact += (offered - server.exact) * SLICE_WEIGHT;
            let seconds = SLICE_NS as f64 / 1e9;
            // What they took in the slice that ends.
            server.spent.background += server.background * SLICE_NS as f64;
            server.background = self.fluids.pass(CoreId(at as u16), server.exact, seconds);
        }
    }

    fn spent_now(&self) -> Vec<Spent> {
        self.machine.servers.iter().map(|s| s.spent).collect()
    }

    /// Returns what cores have spent since the last sample. Virtual machines compute in the
    /// remaining time.
    fn measure(&mut self) -> Vec<Sample> {
        let now_ns = self.machine.now_ns;
        let period_ns = now_ns.saturating_sub(self.sampled_ns).max(1) as f64;
        self.sampled_ns = now_ns;
        let computes = self.computes();
        let servers = self.machine.servers.iter_mut();
        let before = self.spent_at_sample.iter_mut();
        let mut samples = Vec::new();
        for ((server, before), compute) in servers.zip(before).zip(computes) {
            let left_ns = (period_ns - server.spent.since(before).all()).max(0.0);
            server.spent.compute += left_ns.min(compute * period_ns);
            let spent = server.spent.since(before);
            *before = server.spent;
            samples.push(Sample {
                load: Load::of((spent.all() / period_ns).min(1.0)),
                yielding: Load::of((spent.yielding + spent.background) / period_ns),
            });
        }
        samples
    }

    /// Returns what virtual machines want to compute on each core.
    fn computes(&self) -> Vec<f64> {
        let mut computes = vec![0.0; self.machine.servers.len()];
        for guest in &self.machine.guests {
            if let Some(core) = guest.core {
                computes[core.index()] += guest.compute;
            }
        }
        computes
    }

    fn outcome(mut self) -> Outcome {
        let scenario = self.scenario;
        let counted_ns = (scenario.end_ns - scenario.warm_up_ns) as f64;
        self.machine.now_ns = scenario.end_ns;
        self.measure();
        let servers = self.machine.servers.iter().enumerate();
        let cores = servers
            .map(|(at, server)| {
                let spent = server.spent.since(&self.spent_at_start[at]);
                CoreOutcome {
                    load: (spent.all() / counted_ns).min(1.0),
                    packet_load: (spent.packets + spent.background) / counted_ns,
                    packets: server.packets - self.packets_at_start[at],
                }
            })
            .collect();
        let intervals = scenario.end_ns.div_ceil(scenario.interval_ns) as usize;
        let mut given_up = self.moves_refused;
        for flow in &mut self.flows {
            let counters = flow.way.counters();
            given_up += u64::from(counters.gave_up_full + counters.gave_up_late);
            let bits = flow.outcome.delivered as f64 * f64::from(flow.spec.bytes) * 8.0;
            flow.outcome.bits_per_second = bits / (counted_ns / 1e9);
            flow.outcome.intervals.resize(intervals, 0);
        }
        Outcome {
            cores,
            background: self.fluids.outcome(scenario.end_ns),
            moves_given_up: given_up,
            packets_kept: self.packets_kept,
            last_move_ns: self.last_move_ns,
            events: self.machine.events,
            flows: self.flows.into_iter().map(|flow| flow.outcome).collect(),
        }
    }
}

/// Returns the reassembly slots of a flow. Datagrams of one fragment need none.
fn reassemblies(spec: &FlowSpec) -> Vec<(u64, u8, bool)> {
    let places = if spec.fragments > 1 { REASSEMBLIES } else { 0 };
    vec![(u64::MAX, 0, false); places]
}
