//! Packets from and to control, barriers, housekeeping, and reports.

use super::{Barrier, Datapath, PortBackend};
use crate::clock::Clock;
use crate::error::Error;
use crate::history::INTERVAL_SECONDS;
use crate::learn_requests::WorkerRequest;
use crate::packet_in::{PacketIn, PacketInRing};
use crate::port::BridgeId;
use crate::report::WorkerInfo;
use crate::worker::{Moment, PacketOut};
use packet::{FlowKey, Frame};
use program::Program;
use program::actions::learn::Answer;
use program::actions::{OpList, PortNo};
use program::epoch::Epoch;
use program::exec::Frozen;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;

impl<F: Frame + 'static> Datapath<F> {
    /// Sends a packet by its own list of steps, as if it had come in by `in_port` (a port of the
    /// bridge, or a reserved number). A worker executes packet-outs in the order of calls. Rejected
    /// and counted when the queue is full or there is no worker.
    pub fn packet_out(
        &mut self,
        bridge: BridgeId,
        in_port: PortNo,
        data: Vec<u8>,
        ops: Arc<OpList>,
    ) -> Result<(), Error> {
        self.packet_out_with(bridge, in_port, None, None, data, ops)
    }

    /// Does [`Datapath::packet_out`] for a packet that begins with this metadata (its ingress port,
    /// registers, tunnel and so on), by the rules of the given epoch instead of the epoch at
    /// execution. That epoch, or a later one, has been published. Bridges behind patch ports use
    /// their rules at execution.
    pub fn packet_out_with(
        &mut self,
        bridge: BridgeId,
        in_port: PortNo,
        metadata: Option<Box<FlowKey>>,
        moment: Option<Moment>,
        data: Vec<u8>,
        ops: Arc<OpList>,
    ) -> Result<(), Error> {
        let current = self.shared.program.domain.current();
        debug_assert!(moment.as_ref().is_none_or(|moment| moment.epoch <= current));
        self.send(PacketOut {
            bridge,
            in_port,
            metadata,
            data,
            ops,
            rest: None,
            moment,
        })
    }

    /// Returns how many more packet-outs may be queued.
    pub fn packet_out_room(&self) -> usize {
        self.workers.first().map_or(0, |worker| {
            let waiting = &worker.mailbox.packet_outs;
            waiting.capacity() - waiting.len()
        })
    }

    /// Resumes a packet that has stopped for the controllers, as it is now, with this metadata
    /// (including its ingress port). Executed like [`Datapath::packet_out`], and rejected likewise.
    pub fn resume(
        &mut self,
        bridge: BridgeId,
        data: Vec<u8>,
        metadata: FlowKey,
        rest: Frozen,
    ) -> Result<(), Error> {
        self.send(PacketOut {
            bridge,
            in_port: metadata.u32(packet::key::at::IN_PORT),
            metadata: None,
            data,
            ops: Arc::default(),
            rest: Some(Box::new((rest, metadata))),
            moment: None,
        })
    }

    fn send(&mut self, out: PacketOut) -> Result<(), Error> {
        self.bridge(out.bridge)?;
        let refused = match self.workers.first() {
            None => Error::NoWorker,
            Some(worker) => match worker.mailbox.packet_outs.push(out) {
                Ok(()) => {
                    self.packet_outs += 1;
                    worker.mailbox.nudge();
                    return Ok(());
                }
                Err(_) => Error::QueueFull("packet-out"),
            },
        };
        self.packet_outs_refused += 1;
        Err(refused)
    }

    /// Returns a descriptor that is readable when packet-ins wait.
    pub fn packet_in_fd(&self) -> RawFd {
        self.packet_in_wake.wake.as_raw_fd()
    }

    /// Fetches up to `limit` packet-ins, taking turns between workers. The descriptor stays
    /// readable if more are left.
    pub fn take_packet_ins(&mut self, limit: usize) -> Vec<PacketIn> {
        self.packet_in_wake.clear();
        let mut packets = Vec::new();
        let mut empty = 0;
        for ring in self.packet_ins.iter().cycle() {
            if packets.len() >= limit {
                self.packet_in_wake.raise();
                break;
            }
            match ring.pop() {
                Some(packet) => {
                    packets.push(packet);
                    empty = 0;
                }
                None => empty += 1,
            }
            if empty >= self.packet_ins.len() {
                break;
            }
        }
        packets
    }

    /// Fetches up to `limit` requests, taking turns between workers; the descriptor is the same as
    /// for packet-ins ([`Datapath::packet_in_fd`]). To be called after
    /// [`Datapath::take_packet_ins`].
    pub fn take_requests(&mut self, limit: usize) -> Vec<WorkerRequest> {
        let mut requests = Vec::new();
        let mut empty = 0;
        for worker in self.workers.iter().cycle() {
            if requests.len() >= limit {
                self.packet_in_wake.raise();
                break;
            }
            match worker.mailbox.requests.pop() {
                Some(request) => {
                    requests.push(request);
                    empty = 0;
                }
                None => empty += 1,
            }
            if empty >= self.workers.len() {
                break;
            }
        }
        requests
    }

    /// Returns whether requests have kept coming to a busy worker since this was last called, so
    /// that whoever takes them had better look for them every millisecond
    /// ([`Datapath::poll_requests`]).
    pub fn requests_keep_coming(&self) -> bool {
        self.packet_in_wake.keep_coming()
    }

    /// Says whether the caller looks for requests by itself from now on: busy workers then wake it
    /// for them every 6.4 ms only. For packet-ins they do as before.
    pub fn poll_requests(&self, polls: bool) {
        self.packet_in_wake.set_polled(polls);
    }

    /// Answers a worker's request for a rule, after its result has been published.
    pub fn answer(&self, worker: usize, answer: Answer) {
        if let Some(handle) = self.workers.iter().find(|handle| handle.number() == worker) {
            // There is room for more answers than a worker has requests, so none is lost while it
            // lives; one that ended no longer waits.
            let _ = handle.mailbox.answers.push(answer);
            handle.mailbox.nudge();
        }
    }

    /// Returns a mark of what has been published and sent so far, for [`Datapath::barrier_passed`].
    pub fn barrier(&self) -> Barrier {
        Barrier {
            epoch: self.shared.program.domain.current(),
            packet_outs: self.packet_outs,
        }
    }

    /// Returns whether every worker works by what had been published when `barrier` was made, and
    /// earlier packet-outs have been executed.
    pub fn barrier_passed(&self, barrier: Barrier) -> bool {
        self.shared.packet_outs_done.load(Ordering::Acquire) >= barrier.packet_outs
            && self.epoch_passed(barrier.epoch)
    }

    /// Returns whether every worker works in `epoch` or later, or is asleep.
    pub fn epoch_passed(&self, epoch: Epoch) -> bool {
        self.shared.program.domain.passed(epoch)
    }

    /// Does what is due about once a second: forgets silent addresses, frees what was replaced,
    /// takes back what workers gave back late.
    pub fn run(&mut self) {
        let second = self.second();
        for bridge in self.bridges.iter().flatten() {
            bridge.macs.expire(second, bridge.settings.mac_aging.max(1));
        }
        self.take_late_returns();
        self.shared.program.domain.collect();
        let now = self.shared.clock.now_ms();
        if now.saturating_sub(self.interval_began) >= INTERVAL_SECONDS * 1000 {
            self.interval_began = now;
            self.note_interval();
        }
        self.balance(now);
    }

    fn note_interval(&mut self) {
        let threshold = self.balancing.settings().load_threshold;
        for port in self.ports.iter_mut().flatten() {
            let PortBackend::Device { queues, .. } = &port.kind else {
                continue;
            };
            let counted = queues.iter().zip(port.taken.iter());
            for ((own, taken), (queue, cycles)) in port.histories.iter_mut().zip(counted) {
                own.note(queue.cycles.get());
                taken.note(cycles.load(Ordering::Relaxed));
            }
        }
        for worker in &mut self.workers {
            let cycles = worker.all_cycles();
            worker.history.note(cycles);
            worker
                .taken
                .note(worker.mailbox.buckets.counters.take_cycles.get());
            worker.note_overload(threshold);
        }
    }

    /// Describes the workers and their queues.
    pub fn workers(&self) -> Vec<WorkerInfo> {
        self.workers
            .iter()
            .map(|worker| self.describe_worker(worker))
            .collect()
    }

    /// Clears workers' accounting of their time (`pmd-stats-clear`).
    pub fn clear_worker_stats(&mut self) {
        for worker in &mut self.workers {
            worker.cleared = worker.stats();
        }
    }

    /// Returns the number of frames dropped, by reason, over all workers.
    pub fn drops(&self) -> Vec<(&'static str, u64)> {
        let mut drops = self.shared.cells.drops();
        let status = self.shared.fragments.status();
        let purged = status.v4.counts.purged + status.v6.counts.purged;
        drops.push(("fragments_purged", purged));
        drops
    }

    /// Returns the number of packets with malformed headers, by kind. Only `malformed_ethernet` and
    /// `malformed_split` ones were dropped (and are in [`Datapath::drops`] too).
    pub fn malformed(&self) -> Vec<(&'static str, u64)> {
        self.shared.cells.malformed()
    }

    /// Returns counters for `coverage/show`: drops as `drop_REASON`, malformed packets, and other
    /// events.
    pub fn coverage(&self) -> Vec<(String, u64)> {
        let cells = &self.shared.cells;
        let drops = self
            .drops()
            .into_iter()
            .map(|(name, count)| (format!("drop_{name}"), count));
        let malformed = self
            .malformed()
            .into_iter()
            .map(|(name, count)| (name.to_owned(), count));
        let others = [
            ("patch_frames", cells.sum(|cell| &cell.patched)),
            ("tunnel_sent", cells.sum(|cell| &cell.tunnel_sent)),
            ("tunnel_received", cells.sum(|cell| &cell.tunnel_received)),
            (
                "tunnel_fragments_sent",
                cells.sum(|cell| &cell.tunnel_fragments_sent),
            ),
            (
                "tunnel_reassembled",
                cells.sum(|cell| &cell.tunnel_reassembled),
            ),
            ("tunnel_joined", cells.sum(|cell| &cell.tunnel_joined)),
            (
                "tunnel_joined_segments",
                cells.sum(|cell| &cell.tunnel_joined_segments),
            ),
            ("tunnel_waited", cells.sum(|cell| &cell.tunnel_waited)),
            ("mirror_frames", cells.sum(|cell| &cell.mirrored)),
            ("packet_in_queued", cells.sum(|cell| &cell.packet_ins)),
            ("packet_out_done", cells.sum(|cell| &cell.packet_outs)),
            ("packet_out_refused", self.packet_outs_refused),
            ("probe_refused", self.shared.waiting_probes.refused()),
            (
                "worker_failures",
                self.workers
                    .iter()
                    .map(|worker| worker.mailbox.counters.failures.get())
                    .sum(),
            ),
        ];
        let learning = cells
            .learning()
            .map(|(name, count)| (name.to_owned(), count));
        drops
            .chain(malformed)
            .chain(learning)
            .chain(others.map(|(name, count)| (name.to_owned(), count)))
            .collect()
    }

    /// Returns numbers of objects in memory, for `memory/show`.
    pub fn memory(&self) -> Vec<(&'static str, u64)> {
        let macs = self
            .bridges
            .iter()
            .flatten()
            .map(|bridge| bridge.macs.stats().current as u64)
            .sum();
        let sum = |of: fn(&PacketInRing) -> usize| {
            self.packet_ins.iter().map(|ring| of(ring) as u64).sum()
        };
        vec![
            ("macs", macs),
            ("packet-ins", sum(PacketInRing::len)),
            ("packet-in-bytes", sum(PacketInRing::bytes)),
            ("ports", self.names.len() as u64),
            ("workers", self.workers.len() as u64),
        ]
    }

    /// Returns the clock.
    pub fn clock(&self) -> &Arc<Clock> {
        &self.shared.clock
    }

    /// Returns the program.
    pub fn program(&self) -> &Arc<Program> {
        &self.shared.program
    }
}
