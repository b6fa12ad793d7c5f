//! Starts and stops workers, and assigns queues to them.

use super::{Datapath, PATIENCE, PortBackend};
use crate::assign::{Assignment, Queue, assign, place};
use crate::counters::{PortCounters, WorkerStats};
use crate::error::{BoxError, Error};
use crate::history::{History, INTERVALS};
use crate::packet_in::{PacketInRing, Teller};
use crate::port::{MakeTx, PortId};
use crate::report::{QueueInfo, WorkerInfo};
use crate::turns::{Seen, TurnStats};
use crate::wake::Wake;
use crate::worker::{Command, Mailbox, Returned, RxPort, Worker, pin, sleep_precisely};
use packet::Frame;
use std::collections::{HashMap, HashSet};
use std::sync::atomic::Ordering;
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// A worker, as control knows it.
pub(super) struct Handle<F: Frame> {
    pub cpu: Option<usize>,
    id: u32,
    /// Its reader's slot, which is its number for counters and transmit queues.
    number: usize,
    pub mailbox: Arc<Mailbox<F>>,
    thread: Option<JoinHandle<()>>,
    /// The receive queues it serves: port and index.
    pub queues: Vec<(PortId, usize)>,
    /// Its counters when they were last cleared.
    pub cleared: WorkerStats,
    pub history: History,
    /// Cycles that it spent on frames of others.
    pub taken: History,
    /// Busy cycles and all cycles when the last interval ended, and the number of intervals in a
    /// row in which it was overloaded.
    interval: (u64, u64),
    overloaded: usize,
    /// Its turns since they were last cleared, and the number of long ones before that.
    pub turns: (Seen, (u64, u64)),
    /// Its turns since they were last reported, likewise.
    untold: (Seen, (u64, u64)),
}

impl<F: Frame> Handle<F> {
    pub fn number(&self) -> usize {
        self.number
    }

    pub fn has_queues(&self) -> bool {
        !self.queues.is_empty()
    }

    /// Returns how it has spent its time since it started.
    pub fn stats(&self) -> WorkerStats {
        let counters = &self.mailbox.buckets.counters;
        WorkerStats {
            handed: counters.handed.get(),
            taken: counters.taken.get(),
            ..self.mailbox.counters.read()
        }
    }

    /// Returns the cycles of the last minute that it spent on frames of others.
    pub fn recent_taken(&self) -> u64 {
        self.taken
            .recent(self.mailbox.buckets.counters.take_cycles.get())
    }

    /// Notes at the end of an interval whether it spent `threshold` percent of it or more on
    /// frames.
    pub fn note_overload(&mut self, threshold: u64) {
        let now = (self.mailbox.counters.busy_cycles.get(), self.all_cycles());
        let before = std::mem::replace(&mut self.interval, now);
        let (busy, all) = (
            now.0.saturating_sub(before.0),
            now.1.saturating_sub(before.1),
        );
        let is_overloaded = all > 0 && u128::from(busy) * 100 >= u128::from(all * threshold);
        self.overloaded = if is_overloaded {
            self.overloaded + 1
        } else {
            0
        };
    }

    /// Returns whether it was overloaded in every interval of the last minute.
    pub fn is_overloaded(&self) -> bool {
        self.overloaded >= INTERVALS
    }

    pub fn all_cycles(&self) -> u64 {
        let stats = self.mailbox.counters.read();
        stats.busy_cycles + stats.idle_cycles + stats.sleep_cycles
    }

    /// Waits for the thread to end; after `deadline` it is left to itself.
    pub fn join(&mut self, deadline: Instant) {
        while !self.mailbox.ended.load(Ordering::Acquire) && Instant::now() < deadline {
            std::thread::sleep(Duration::from_micros(50));
        }
        if let Some(thread) = self
            .thread
            .take()
            .filter(|_| self.mailbox.ended.load(Ordering::Acquire))
        {
            // The worker catches its panics, so there is none to propagate.
            let _ = thread.join();
        }
    }
}

/// Where queues are, and what is to be known to assign them.
pub(super) struct Layout {
    /// Workers in the order of their processors, as indices in [`Datapath::workers`]; other fields
    /// number them by this order.
    pub order: Vec<usize>,
    /// Whether each worker serves pinned queues only.
    pub isolated: Vec<bool>,
    /// Queues in the order of ports: the worker that has each, port and index.
    pub placed: Vec<(usize, PortId, usize)>,
    /// The same queues' loads and pins.
    pub queues: Vec<Queue>,
}

/// A port's slot that cannot be reused until these workers have answered.
pub(super) struct Leaving {
    slot: u32,
    tickets: HashSet<u64>,
}

impl<F: Frame + 'static> Datapath<F> {
    /// Runs exactly these workers: an entry for each, with the processor to pin it to or None for
    /// one that the scheduler may move. Workers that are wanted and exist continue undisturbed;
    /// queues of those that end are spread over the others. Without any workers, frames wait in
    /// their queues.
    ///
    /// If a worker cannot be started the error says which; the others run nevertheless.
    pub fn set_workers(&mut self, wanted: &[Option<usize>]) -> Result<(), Error> {
        let mut missing = wanted.to_vec();
        let mut ending = Vec::new();
        let same = self.workers.iter().map(|worker| &worker.cpu).eq(wanted);
        if !same {
            self.recall();
        }
        for (index, worker) in self.workers.iter().enumerate() {
            match missing.iter().position(|cpu| *cpu == worker.cpu) {
                Some(at) => drop(missing.remove(at)),
                None => ending.push(index),
            }
        }
        // Workers end before others start, which then reuse their numbers, so that these stay low:
        // devices have few transmit queues.
        let ended: Vec<Handle<F>> = ending
            .into_iter()
            .rev()
            .map(|index| self.workers.remove(index))
            .collect();
        let kept = self.workers.len();
        let mut outcome = self.stop_workers(ended);
        for cpu in missing {
            if let Err(error) = self.start_worker(cpu) {
                tracing::error!(target: "dpif_netdev", "{error}");
                outcome = outcome.and(Err(error));
            }
        }
        // Workers must know which ports are shaped, and their owners, before frames reach them.
        outcome = outcome.and(self.share_shaped());
        if !self.workers.is_empty() {
            for port in std::mem::take(&mut self.parked) {
                outcome = outcome.and(self.serve(port));
            }
        }
        let first = self.workers.first();
        let sender = first.map(|worker| Arc::clone(&worker.mailbox));
        self.shared.waiting_probes.sent_by(sender);
        if self.workers.len() > kept {
            outcome = outcome.and(self.rebalance());
        }
        outcome
    }

    fn start_worker(&mut self, cpu: Option<usize>) -> Result<(), Error> {
        self.thread_ids += 1;
        let id = self.thread_ids;
        let name = match cpu {
            Some(cpu) => format!("pmd-c{cpu:02}/id:{id}"),
            None => format!("pmd-any/id:{id}"),
        };
        let failed = |reason: String| Error::Worker {
            name: name.clone(),
            reason,
        };
        let reader = self
            .shared
            .program
            .domain
            .reader()
            .ok_or_else(|| failed("too many workers".to_owned()))?;
        let number = reader.index();
        self.shared.program.counters.add_worker(number);
        let wake = Wake::new().map_err(|error| failed(error.to_string()))?;
        let teller = Teller::new(Arc::clone(&self.packet_in_wake));
        let packet_ins = Arc::new(PacketInRing::new(Arc::new(teller)));
        let mailbox = Arc::new(Mailbox::new(name.clone(), wake, Arc::clone(&packet_ins)));
        // A channel without a buffer: either this receives the answer, or the thread sees that
        // nobody waits any more and ends.
        let (ready, started) = mpsc::sync_channel(0);
        let thread = {
            let (shared, mailbox, init) = (
                Arc::clone(&self.shared),
                Arc::clone(&mailbox),
                self.thread_init.clone(),
            );
            let body = move || {
                let begun = cpu
                    .map_or(Ok(()), |cpu| pin(cpu).map_err(BoxError::from))
                    .and_then(|()| init.map(|init| init(&mailbox.name)).transpose());
                sleep_precisely();
                match begun {
                    Err(error) => drop(ready.send(Err(error.to_string()))),
                    Ok(kept) => {
                        if ready.send(Ok(())).is_ok() {
                            Worker::new(shared, Arc::clone(&mailbox), reader, cpu.is_some()).run();
                        }
                        drop(kept);
                    }
                }
                mailbox.ended.store(true, Ordering::Release);
            };
            std::thread::Builder::new()
                .name(name.clone())
                .spawn(body)
                .map_err(|error| failed(error.to_string()))?
        };
        match started.recv_timeout(PATIENCE) {
            Ok(Ok(())) => {}
            Ok(Err(reason)) => {
                // The thread is ending; what it shares with others must be gone when this returns.
                let _ = thread.join();
                return Err(failed(reason));
            }
            Err(_) => return Err(failed("its thread did not start".to_owned())),
        }
        self.packet_ins.push(packet_ins);
        self.workers.push(Handle {
            cpu,
            id,
            number,
            mailbox,
            thread: Some(thread),
            queues: Vec::new(),
            cleared: WorkerStats::default(),
            history: History::default(),
            taken: History::default(),
            interval: (0, 0),
            overloaded: 0,
            turns: Default::default(),
            untold: Default::default(),
        });
        self.equip(self.workers.len() - 1)
    }

    /// Makes a worker, by its index in [`Datapath::workers`], call `act` between two turns; returns
    /// false when there is none, or its command queue is full. For tests of what a worker that
    /// panics or stalls does to others.
    pub fn run_on_worker(&self, index: usize, act: Box<dyn FnOnce() + Send>) -> bool {
        let Some(worker) = self.workers.get(index) else {
            return false;
        };
        send(worker, Command::Run(act)).is_ok()
    }

    /// Gives a new worker a transmit queue of every device.
    fn equip(&mut self, worker: usize) -> Result<(), Error> {
        let handle = &self.workers[worker];
        let mut outcome = Ok(());
        for port in self.ports.iter_mut().flatten() {
            let PortBackend::Device { tx, .. } = &mut port.kind else {
                continue;
            };
            let given = give_tx(handle, port.id.slot(), &port.name, tx, &port.counters);
            outcome = outcome.and(given);
        }
        outcome
    }

    fn stop_workers(&mut self, mut ended: Vec<Handle<F>>) -> Result<(), Error> {
        let mut outcome = Ok(());
        let mut tickets = HashSet::new();
        for worker in &ended {
            self.tickets += 1;
            match send(
                worker,
                Command::Stop {
                    ticket: self.tickets,
                },
            ) {
                Ok(()) => drop(tickets.insert(self.tickets)),
                Err(error) => outcome = Err(error),
            }
        }
        let (returned, late) = self.collect(tickets);
        if !late.is_empty() {
            outcome = outcome.and(Err(timeout("stopping workers", "a worker")));
        }
        for rx in returned.into_iter().flat_map(|returned| returned.rx) {
            outcome = outcome.and(self.serve(rx));
        }
        let deadline = Instant::now() + PATIENCE;
        for worker in &mut ended {
            worker.join(deadline);
            self.inherit_packet_outs(worker);
        }
        // Packet-ins of workers that have ended are still wanted; their rings are dropped once
        // empty.
        let live: Vec<*const PacketInRing> = self
            .workers
            .iter()
            .map(|worker| Arc::as_ptr(&worker.mailbox.packet_ins))
            .collect();
        self.packet_ins
            .retain(|ring| live.contains(&Arc::as_ptr(ring)) || ring.len() > 0);
        outcome
    }

    /// Hands packet-outs that an ended worker has left to another, or counts them as rejected.
    fn inherit_packet_outs(&mut self, ended: &Handle<F>) {
        while let Some(out) = ended.mailbox.packet_outs.pop() {
            let taken = self.workers.first().is_some_and(|heir| {
                let taken = heir.mailbox.packet_outs.push(out).is_ok();
                heir.mailbox.nudge();
                taken
            });
            if !taken {
                self.packet_outs_refused += 1;
                self.shared.packet_outs_done.fetch_add(1, Ordering::Release);
            }
        }
    }

    /// Gives every worker a transmit queue of a new port.
    pub(super) fn hand_out_tx(
        &mut self,
        slot: u32,
        name: &str,
        tx: &mut MakeTx<F>,
        counters: &Arc<PortCounters>,
    ) -> Result<(), Error> {
        self.workers
            .iter()
            .try_for_each(|worker| give_tx(worker, slot, name, tx, counters))
    }

    /// Sets how queues are assigned to workers, and whether workers with pinned queues
    /// ([`crate::PortSettings::affinity`]) serve no others, as by default. Assigns all anew if that
    /// has changed.
    ///
    /// # Errors
    ///
    /// A worker does not give a queue back.
    pub fn set_assignment(&mut self, how: Assignment, isolates: bool) -> Result<(), Error> {
        let other_way = std::mem::replace(&mut self.assignment, how) != how;
        let other_pins = std::mem::replace(&mut self.isolates, isolates) != isolates;
        if other_way {
            let name = how.name();
            tracing::info!(target: "dpif_netdev",
                "Rxq to PMD assignment mode changed to: '{name}'.");
        }
        if other_pins {
            let verb = if isolates {
                "isolates"
            } else {
                "does not isolate"
            };
            tracing::info!(target: "dpif_netdev", "pmd-rxq-affinity {verb} PMD core");
        }
        match other_way || other_pins {
            true => self.rebalance(),
            false => Ok(()),
        }
    }

    /// Returns the index of the worker that a queue is pinned to, if it runs.
    fn pinned(&self, port: PortId, index: usize) -> Option<usize> {
        let affinity = &self.port(port).ok()?.settings.affinity;
        let of_queue = |(queue, _): &&(u32, u32)| *queue as usize == index;
        let (_, cpu) = affinity.iter().find(of_queue)?;
        let mut workers = self.workers.iter();
        workers.position(|worker| worker.cpu == Some(*cpu as usize))
    }

    /// Returns which workers serve pinned queues only; none where no worker would be left for the
    /// other queues.
    fn isolated(&self) -> Vec<bool> {
        let mut isolated = vec![false; self.workers.len()];
        if self.isolates {
            for port in self.ports.iter().flatten() {
                let queues = 0..port.histories.len();
                for at in queues.filter_map(|index| self.pinned(port.id, index)) {
                    isolated[at] = true;
                }
            }
        }
        if !isolated.contains(&false) {
            isolated.fill(false);
        }
        isolated
    }

    /// Gives a receive queue to the worker that it is pinned to, else to the one with the least
    /// load.
    pub(super) fn serve(&mut self, port: RxPort<F>) -> Result<(), Error> {
        if self.workers.is_empty() {
            self.parked.push(port);
            return Ok(());
        }
        let at = self.pinned(port.id, port.index).unwrap_or_else(|| {
            let Layout {
                order, isolated, ..
            } = self.layout();
            let loads = order.iter().map(|at| self.load(&self.workers[*at]));
            order[place(self.assignment, &loads.collect::<Vec<_>>(), &isolated)]
        });
        let worker = &mut self.workers[at];
        let queue = (port.id, port.index);
        send(worker, Command::AddRx(Box::new(port)))?;
        worker.queues.push(queue);
        Ok(())
    }

    /// Returns the cycles that a worker has spent on frames in the last minute, its queues' and
    /// those of others, and its number of queues.
    pub(super) fn load(&self, worker: &Handle<F>) -> (u128, usize) {
        let queues = worker.queues.iter();
        let cycles: u128 = queues
            .map(|(port, index)| u128::from(self.queue_loads(*port, *index).0))
            .sum();
        (
            cycles + u128::from(worker.recent_taken()),
            worker.queues.len(),
        )
    }

    /// Returns the cycles that a queue's frames took in the last minute: of the worker that serves
    /// it, and of others.
    fn queue_loads(&self, port: PortId, index: usize) -> (u64, u64) {
        let Ok(port) = self.port(port) else {
            return (0, 0);
        };
        let PortBackend::Device { queues, .. } = &port.kind else {
            return (0, 0);
        };
        let counted = queues.get(index).zip(port.taken.get(index));
        match (port.histories.get(index), counted) {
            (Some((own, taken)), Some((queue, cycles))) => (
                own.recent(queue.cycles.get()),
                taken.recent(cycles.load(Ordering::Relaxed)),
            ),
            _ => (0, 0),
        }
    }

    /// Returns what is to be known to assign all queues.
    pub(super) fn layout(&self) -> Layout {
        let mut order: Vec<usize> = (0..self.workers.len()).collect();
        order.sort_by_key(|at| (self.workers[*at].cpu, self.workers[*at].id));
        let place = |at: usize| order.iter().position(|other| *other == at);
        let of_worker = |at: usize| {
            let queues = self.workers[order[at]].queues.iter();
            queues.map(move |(port, index)| (at, *port, *index))
        };
        let mut placed: Vec<_> = (0..order.len()).flat_map(of_worker).collect();
        placed.sort_by_key(|(_, port, index)| (port.slot(), *index));
        let describe = |(_, port, index): &(usize, PortId, usize)| {
            let (own, taken) = self.queue_loads(*port, *index);
            Queue {
                load: own.saturating_add(taken),
                pin: self.pinned(*port, *index).and_then(place),
            }
        };
        let isolated = self.isolated();
        Layout {
            queues: placed.iter().map(describe).collect(),
            placed,
            isolated: order.iter().map(|at| isolated[*at]).collect(),
            order,
        }
    }

    /// Assigns all receive queues anew, as [`Datapath::set_assignment`] says, by their load in the
    /// last minute. No frame is lost or overtaken: a queue is not served while it changes hands.
    ///
    /// # Errors
    ///
    /// A worker does not give a queue back.
    pub fn rebalance(&mut self) -> Result<(), Error> {
        if self.workers.len() < 2 {
            return Ok(());
        }
        let layout = self.layout();
        let chosen = assign(self.assignment, &layout.queues, &layout.isolated);
        self.move_queues(&layout, &chosen)
    }

    /// Moves queues to the chosen workers, by their places in the layout's order.
    pub(super) fn move_queues(&mut self, layout: &Layout, chosen: &[usize]) -> Result<(), Error> {
        if layout.placed.iter().map(|(at, ..)| at).eq(chosen) {
            return Ok(());
        }
        self.recall();
        for ((from, port, index), to) in layout.placed.iter().zip(chosen) {
            if from != to {
                self.move_queue(layout.order[*from], layout.order[*to], *port, *index)?;
            }
        }
        Ok(())
    }

    fn move_queue(
        &mut self,
        from: usize,
        to: usize,
        port: PortId,
        index: usize,
    ) -> Result<(), Error> {
        self.tickets += 1;
        let ticket = self.tickets;
        send(
            &self.workers[from],
            Command::TakeRx {
                id: port,
                index,
                ticket,
            },
        )?;
        let (returned, late) = self.collect([ticket].into());
        if !late.is_empty() {
            return Err(timeout("moving a queue", &self.workers[from].mailbox.name));
        }
        self.workers[from]
            .queues
            .retain(|queue| *queue != (port, index));
        for rx in returned.into_iter().flat_map(|returned| returned.rx) {
            send(&self.workers[to], Command::AddRx(Box::new(rx)))?;
            self.workers[to].queues.push((port, index));
        }
        Ok(())
    }

    /// Takes all queues of some ports back from every worker.
    pub(super) fn take_back(&mut self, slots: &[u32], what: &str) -> Result<(), Error> {
        let gone: HashSet<u32> = slots.iter().copied().collect();
        let mut tickets = HashMap::new();
        let mut outcome = Ok(());
        for worker in &mut self.workers {
            worker
                .queues
                .retain(|(port, _)| !gone.contains(&port.slot()));
            for &slot in slots {
                self.tickets += 1;
                let ticket = self.tickets;
                match send(worker, Command::Remove { slot, ticket }) {
                    Ok(()) => drop(tickets.insert(ticket, slot)),
                    Err(error) => outcome = Err(error),
                }
            }
        }
        let (returned, late) = self.collect(tickets.keys().copied().collect());
        drop(returned);
        if !late.is_empty() {
            let mut by_slot: HashMap<u32, HashSet<u64>> = HashMap::new();
            for ticket in late {
                let slot = tickets[&ticket];
                by_slot.entry(slot).or_default().insert(ticket);
            }
            let leaving = by_slot
                .into_iter()
                .map(|(slot, tickets)| Leaving { slot, tickets });
            self.leaving.extend(leaving);
            outcome = Err(timeout(what, "a worker"));
        }
        outcome
    }

    /// Frees a slot, unless a worker may still use it: then it is freed when the worker has
    /// answered, or never.
    pub(super) fn free_when(&mut self, slot: u32, quiet: bool) {
        if quiet {
            self.free.push_back(slot);
        }
    }

    /// Waits for answers; returns them, and the tickets that were not answered in time.
    fn collect(&mut self, mut tickets: HashSet<u64>) -> (Vec<Returned<F>>, HashSet<u64>) {
        let deadline = Instant::now() + PATIENCE;
        let mut found = Vec::new();
        while !tickets.is_empty() && Instant::now() < deadline {
            for returned in self.shared.returns.take(deadline) {
                if tickets.remove(&returned.ticket) {
                    found.push(returned);
                } else {
                    self.returned_late(returned);
                }
            }
        }
        (found, tickets)
    }

    /// Takes what workers have given back after nobody waited any more.
    pub(super) fn take_late_returns(&mut self) {
        for returned in self.shared.returns.take(Instant::now()) {
            self.returned_late(returned);
        }
    }

    fn returned_late(&mut self, returned: Returned<F>) {
        for leaving in &mut self.leaving {
            leaving.tickets.remove(&returned.ticket);
        }
        let (free, waiting) = std::mem::take(&mut self.leaving)
            .into_iter()
            .partition(|leaving| leaving.tickets.is_empty());
        self.leaving = waiting;
        let free: Vec<Leaving> = free;
        self.free
            .extend(free.into_iter().map(|leaving| leaving.slot));
        for rx in returned.rx {
            if self.port(rx.id).is_ok() {
                // From a worker that stopped too late, or gave away a queue of a living port too
                // late.
                let _ = self.serve(rx);
            }
        }
    }

    fn describe_turns(
        &self,
        worker: &Handle<F>,
        (seen, (long, long_work)): &(Seen, (u64, u64)),
    ) -> TurnStats {
        let now = worker.mailbox.counters.turns.long();
        let name = |slot: u32| {
            let port = self.ports.get(slot as usize).and_then(Option::as_ref);
            port.map_or("a port that has gone", |port| port.name.as_str())
                .to_owned()
        };
        TurnStats::new(seen, (now.0 - long, now.1 - long_work), name)
    }

    /// Takes workers' records of their turns. [`Datapath::workers`] reports them afterwards; this
    /// returns those workers that have had long turns since the last call (name, whether it has a
    /// processor of its own, and these turns). To be called about once a second, and before
    /// [`Datapath::workers`].
    pub fn take_turns(&mut self, tell: bool) -> Vec<(String, bool, TurnStats)> {
        for worker in &mut self.workers {
            let seen = worker.mailbox.counters.turns.take();
            worker.turns.0.merge(&seen);
            worker.untold.0.merge(&seen);
        }
        if !tell {
            return Vec::new();
        }
        let told = self.workers.iter().map(|worker| {
            let turns = self.describe_turns(worker, &worker.untold);
            (worker.mailbox.name.clone(), worker.cpu.is_some(), turns)
        });
        let told = told.filter(|(_, _, turns)| turns.long > 0).collect();
        for worker in &mut self.workers {
            worker.untold = (Seen::default(), worker.mailbox.counters.turns.long());
        }
        told
    }

    /// Clears the records of turns.
    pub fn clear_turns(&mut self) {
        self.take_turns(false);
        for worker in &mut self.workers {
            worker.turns = (Seen::default(), worker.mailbox.counters.turns.long());
        }
    }

    /// Returns workers' progress: names with numbers that grow while a worker turns; None while it
    /// is asleep, or has ended.
    pub fn progress(&self) -> Vec<(String, Option<u64>)> {
        let domain = &self.shared.program.domain;
        let each = self.workers.iter().map(|worker| {
            let counters = &worker.mailbox.counters;
            let online = domain.is_online(worker.number);
            let turns = counters.busy_turns.get() + counters.idle_turns.get();
            let rests = counters.naps.get() + counters.sleeps.get();
            let far = online.then_some(turns.wrapping_add(rests));
            (worker.mailbox.name.clone(), far)
        });
        each.collect()
    }

    pub(super) fn describe_worker(&self, worker: &Handle<F>) -> WorkerInfo {
        let describe = |(id, index): &(PortId, usize)| {
            let port = self.port(*id).ok()?;
            let PortBackend::Device { queues, .. } = &port.kind else {
                return None;
            };
            let counters = queues.get(*index)?;
            let (own, taken) = self.queue_loads(*id, *index);
            Some(QueueInfo {
                port: *id,
                name: port.name.clone(),
                index: *index,
                packets: counters.packets.get(),
                batches: counters.batches.get(),
                cycles: counters.cycles.get(),
                recent_cycles: own,
                recent_taken_cycles: taken,
            })
        };
        let place = self.workers.iter().position(|other| other.id == worker.id);
        WorkerInfo {
            isolated: place.is_some_and(|place| self.isolated()[place]),
            name: worker.mailbox.name.clone(),
            id: worker.id,
            cpu: worker.cpu,
            stats: worker.stats().since(&worker.cleared),
            turns: self.describe_turns(worker, &worker.turns),
            recent_cycles: worker.history.recent(worker.all_cycles()),
            recent_taken_cycles: worker.recent_taken(),
            queues: worker.queues.iter().filter_map(describe).collect(),
        }
    }
}

fn give_tx<F: Frame>(
    worker: &Handle<F>,
    slot: u32,
    name: &str,
    tx: &mut MakeTx<F>,
    counters: &Arc<PortCounters>,
) -> Result<(), Error> {
    let tx = tx(worker.number).map_err(|error| Error::Transmit {
        name: name.to_owned(),
        worker: worker.mailbox.name.clone(),
        reason: error.to_string(),
    })?;
    send(
        worker,
        Command::SetTx {
            slot,
            tx,
            counters: Arc::clone(counters),
        },
    )
}

/// Puts a command into a worker's queue, waiting for room if need be.
pub(super) fn send<F: Frame>(worker: &Handle<F>, mut command: Command<F>) -> Result<(), Error> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        match worker.mailbox.commands.push(command) {
            Ok(()) => {
                worker.mailbox.nudge();
                return Ok(());
            }
            Err(refused) => command = refused,
        }
        if Instant::now() > deadline {
            return Err(timeout("sending a command", &worker.mailbox.name));
        }
        worker.mailbox.nudge();
        std::thread::sleep(Duration::from_micros(50));
    }
}

fn timeout(what: &str, worker: &str) -> Error {
    Error::Timeout {
        what: what.to_owned(),
        worker: worker.to_owned(),
        seconds: PATIENCE.as_secs(),
    }
}
