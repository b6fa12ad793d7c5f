//! Flows that a card spreads over the queues of several workers: which of them each worker gets is
//! said by entries of the card's indirection table ([`Indirection`]).
//!
//! Where a card's queues belong to different workers, steering moves entries instead of buckets:
//! the card does then what handing over would cost workers. Each entry is a flow to the policy.

use super::steering::Group;
use super::{Datapath, PortRecord};
use crate::error::Error;
use crate::port::PortId;
use packet::Frame;
use packet::io::{Indirection, IndirectionCounts};
use std::ops::RangeInclusive;
use std::sync::Arc;
use steer::cores::{CoreId, Load};

/// Most entries of a card that begin to move together, fewer than an [`Indirection`] takes.
const MOVES_MOST: usize = 32;

/// A card's indirection table, as last sampled.
pub(super) struct Card {
    port: PortId,
    table: Arc<dyn Indirection>,
    packets: Vec<u64>,
    /// Packets in the last sample, by entry.
    pub recent: Vec<u64>,
    /// When each entry was moved last, in ns.
    pub moved_ns: Vec<u64>,
    /// By queue, the worker that serves it, as an index in [`Datapath::workers`].
    workers: Vec<Option<usize>>,
    /// Entries to be moved, each with its new queue.
    moves: Vec<(u16, u16)>,
}

/// A card whose table spreads flows over its receive queues.
#[derive(Clone, PartialEq, Debug)]
pub struct SteeringCard {
    /// The port's name.
    pub port: String,
    /// For each receive queue, the worker that serves it, as an index among them, and the number of
    /// entries that lead to it.
    pub queues: Vec<(Option<usize>, usize)>,
    /// What has become of moves.
    pub counts: IndirectionCounts,
}

impl Card {
    /// Returns the worker that receives an entry's packets.
    pub fn worker(&self, entry: usize) -> Option<usize> {
        *self.workers.get(usize::from(self.table.queue(entry)))?
    }

    /// Returns the first queue of a worker.
    fn queue_of(&self, worker: usize) -> Option<u16> {
        let at = self.workers.iter().position(|at| *at == Some(worker))?;
        u16::try_from(at).ok()
    }

    fn note(&mut self) {
        for (entry, (packets, recent)) in
            (self.packets.iter_mut().zip(&mut self.recent)).enumerate()
        {
            let now = self.table.packets(entry);
            *recent = now.saturating_sub(std::mem::replace(packets, now));
        }
    }

    /// Returns whether it spreads flows over several workers.
    pub fn is_shared(&self) -> bool {
        are_several(&self.workers)
    }
}

/// Returns whether queues with these workers belong to several of them.
fn are_several(workers: &[Option<usize>]) -> bool {
    let mut workers = workers.iter().flatten();
    let first = workers.next();
    first.is_some() && workers.any(|worker| Some(worker) != first)
}

impl<F: Frame + 'static> Datapath<F> {
    /// Sets the indirection table of a port's device.
    ///
    /// # Errors
    ///
    /// There is no such port.
    pub fn set_indirection(
        &mut self,
        id: PortId,
        table: Arc<dyn Indirection>,
    ) -> Result<(), Error> {
        self.port_mut(id)?.indirection = Some(table);
        Ok(())
    }

    /// By receive queue of a port, the worker that serves it.
    fn workers_of(&self, record: &PortRecord<F>) -> Vec<Option<usize>> {
        let mut found = vec![None; record.histories.len()];
        for (at, worker) in self.workers.iter().enumerate() {
            for (port, index) in &worker.queues {
                if *port == record.id
                    && let Some(found) = found.get_mut(*index)
                {
                    *found = Some(at);
                }
            }
        }
        found
    }

    /// Returns each port that has a table, and its table.
    fn tables(&self) -> impl Iterator<Item = (&PortRecord<F>, &Arc<dyn Indirection>)> {
        let ports = self.ports.iter().flatten();
        ports.filter_map(|port| Some((port, port.indirection.as_ref()?)))
    }

    /// Returns whether a card spreads flows over the queues of several workers.
    pub(super) fn has_shared_card(&self) -> bool {
        (self.tables()).any(|(port, _)| are_several(&self.workers_of(port)))
    }

    /// Has cards' packets counted by entry, or not.
    pub(super) fn watch_cards(&self, on: bool) {
        self.tables().for_each(|(_, table)| table.watch(on));
    }

    /// Samples the tables of cards that several workers share.
    pub(super) fn sample_cards(&self, cards: &mut Vec<Card>, now_ns: u64) {
        let mut before = std::mem::take(cards);
        for (port, table) in self.tables() {
            let known = before.iter().position(|card| card.port == port.id);
            let mut card = known.map_or_else(
                || {
                    table.watch(true);
                    let packets: Vec<u64> = (0..table.entries())
                        .map(|entry| table.packets(entry))
                        .collect();
                    Card {
                        port: port.id,
                        table: Arc::clone(table),
                        recent: vec![0; packets.len()],
                        moved_ns: vec![now_ns; packets.len()],
                        packets,
                        workers: Vec::new(),
                        moves: Vec::new(),
                    }
                },
                |at| before.swap_remove(at),
            );
            card.workers = self.workers_of(port);
            card.note();
            cards.push(card);
        }
    }

    /// Returns a port's record and its device's indirection table.
    fn table_of(&self, port: &str) -> Result<(&PortRecord<F>, &Arc<dyn Indirection>), Error> {
        let slot = *self.names.get(port).ok_or(Error::NoSuchPort)?;
        let record = self.ports.get(slot as usize).and_then(Option::as_ref);
        let record = record.ok_or(Error::NoSuchPort)?;
        let table = record.indirection.as_ref().ok_or(Error::NoTable)?;
        Ok((record, table))
    }

    /// Moves entries of a port's indirection table to another receive queue. Steering may move them
    /// again.
    ///
    /// # Errors
    ///
    /// There is no such port, or it has no such table, entry or queue, or too many are to move at a
    /// time, or earlier moves have not ended.
    pub fn move_entries(
        &mut self,
        port: &str,
        entries: RangeInclusive<usize>,
        queue: usize,
    ) -> Result<(), Error> {
        let (record, table) = self.table_of(port)?;
        if *entries.end() >= table.entries() {
            return Err(Error::NoSuchEntry(*entries.end()));
        }
        if queue >= record.histories.len() {
            return Err(Error::NoSuchQueue(queue));
        }
        let moves: Vec<(u16, u16)> = entries.map(|entry| (entry as u16, queue as u16)).collect();
        if moves.len() > MOVES_MOST {
            return Err(Error::TooManyEntries(MOVES_MOST));
        }
        match table.begin_moves(&moves) {
            true => Ok(()),
            false => Err(Error::TableIsBusy),
        }
    }

    /// Returns the receive queue of each entry of a port's indirection table, and its packets while
    /// adaptive steering counts them.
    ///
    /// # Errors
    ///
    /// There is no such port, or it has no such table.
    pub fn entries(&self, port: &str) -> Result<Vec<(u16, u64)>, Error> {
        let (_, table) = self.table_of(port)?;
        let entries = 0..table.entries();
        Ok(entries
            .map(|entry| (table.queue(entry), table.packets(entry)))
            .collect())
    }

    /// Returns the state of each card's table.
    pub(super) fn describe_cards(&self) -> Vec<SteeringCard> {
        let describe = |(port, table): (&PortRecord<F>, &Arc<dyn Indirection>)| {
            let workers = self.workers_of(port);
            let mut entries = vec![0; workers.len()];
            for entry in 0..table.entries() {
                if let Some(count) = entries.get_mut(usize::from(table.queue(entry))) {
                    *count += 1;
                }
            }
            SteeringCard {
                port: port.name.clone(),
                queues: workers.into_iter().zip(entries).collect(),
                counts: table.counts(),
            }
        };
        self.tables().map(describe).collect()
    }
}

impl Group {
    /// Returns whether most of what a worker receives comes by cards that spread it over several
    /// workers, so that entries are moved and not buckets.
    pub(super) fn is_by_cards(&self, worker: usize) -> bool {
        let by_cards: u64 = (self.cards.iter().filter(|card| card.is_shared()))
            .flat_map(|card| {
                let entries = card.recent.iter().enumerate();
                entries.filter(move |(entry, _)| card.worker(*entry) == Some(worker))
            })
            .map(|(_, recent)| recent)
            .sum();
        let all: u64 = (self.seen.get(worker)).map_or(0, |seen| seen.recent.iter().sum());
        by_cards > 0 && 2 * by_cards >= all
    }

    /// Notes that an entry is to move to a worker. If that one has none of the card's queues, it is
    /// to move to the least loaded one that has, if that will then be less loaded than its present
    /// one is.
    pub(super) fn want_entry(&mut self, (card, entry): (usize, usize), to: usize, load: Load) {
        let seen = &self.seen;
        let Some(card) = self.cards.get_mut(card) else {
            return;
        };
        let Some(from) = card.worker(entry) else {
            return;
        };
        let load_of = |worker: usize| seen.get(worker).map_or(Load::FULL, |seen| seen.load);
        let queue = card.queue_of(to).or_else(|| {
            let others = card.workers.iter().flatten().filter(|at| **at != from);
            let best = *others.min_by_key(|at| load_of(**at))?;
            let is_better = load_of(best).plus(load) < load_of(from);
            is_better.then(|| card.queue_of(best)).flatten()
        });
        if let Some(queue) = queue
            && card.moves.len() < MOVES_MOST
            && let Ok(number) = u16::try_from(entry)
        {
            card.moves.push((number, queue));
        }
    }

    /// Has the cards move what has been noted. Where earlier moves have not ended, the policy
    /// decides anew at one of the next samples.
    pub(super) fn move_entries(&mut self, now_ns: u64) {
        for card in &mut self.cards {
            if !card.moves.is_empty() && card.table.begin_moves(&card.moves) {
                for (entry, _) in &card.moves {
                    card.moved_ns[usize::from(*entry)] = now_ns;
                }
            }
            card.moves.clear();
        }
    }

    /// Returns the core of an entry's worker.
    pub(super) fn core_of(&self, card: &Card, entry: usize) -> Option<CoreId> {
        let worker = card.worker(entry).filter(|at| *at < self.seen.len())?;
        u16::try_from(worker).ok().map(CoreId)
    }
}
