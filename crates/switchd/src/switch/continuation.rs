//! Packets that are paused for controllers (`controller(pause)`), until one of them resumes them
//! (`NXT_RESUME`).
//!
//! Open vSwitch sends all remaining steps along with the packet and keeps nothing. Here the steps
//! are compiled, so they are kept, and the controller gets an identifier for them: a property like
//! Open vSwitch's `NXCPT_BRIDGE` that holds a number of this process and one of the packet. Any
//! controller of the bridge may send it back, once. Kept steps are bounded in number, size and
//! time; the oldest are dropped first, and a later resume of them gets `NXR_STALE`.

use super::Bridge;
use crate::coverage::Counter;
use datapath::BridgeId;
use openflow::Error;
use openflow::message::PacketIn;
use packet::{FlowKey, Match};
use program::exec::Frozen;
use std::collections::VecDeque;
use std::hash::{BuildHasher, RandomState};

/// Most packets kept at a time.
const KEPT: usize = 4096;
/// Most remaining steps of all kept packets together.
const STEPS: usize = 1 << 17;
/// How long a packet is kept, ms.
const LIMIT_MS: u64 = 300_000;
/// `NXCPT_BRIDGE`, whose content is a UUID.
const PROPERTY: u16 = 0x8000;
/// Bytes of the property: header and content.
const LENGTH: u16 = 20;
/// Shortest packet: an Ethernet header.
pub(super) const ETHERNET: usize = 14;

static STALE: Counter = Counter::new("continuation_stale");
static EXPIRED: Counter = Counter::new("continuation_expired");

struct Kept<B> {
    number: u64,
    bridge: B,
    since_ms: u64,
    steps: usize,
    /// None once it has been resumed.
    rest: Option<Frozen>,
}

/// Kept packets, the oldest first.
pub(super) struct Continuations<B = BridgeId> {
    instance: u64,
    numbers: u64,
    steps: usize,
    kept: VecDeque<Kept<B>>,
}

impl<B> Default for Continuations<B> {
    fn default() -> Self {
        Continuations {
            // A restarted switch must not recognise identifiers of the one before it.
            instance: RandomState::new().hash_one(std::process::id()),
            numbers: 0,
            steps: 0,
            kept: VecDeque::new(),
        }
    }
}

impl<B: PartialEq> Continuations<B> {
    /// Keeps a packet's remaining steps; returns the identifier for them.
    pub(super) fn keep(&mut self, bridge: B, rest: Frozen, now_ms: u64) -> Vec<u8> {
        let steps = rest.steps().max(1);
        self.steps += steps;
        self.numbers += 1;
        self.kept.push_back(Kept {
            number: self.numbers,
            bridge,
            since_ms: now_ms,
            steps,
            rest: Some(rest),
        });
        self.trim(now_ms);
        let mut name = Vec::with_capacity(24);
        name.extend(PROPERTY.to_be_bytes());
        name.extend(LENGTH.to_be_bytes());
        name.extend(self.instance.to_be_bytes());
        name.extend(self.numbers.to_be_bytes());
        name.extend([0; 4]);
        name
    }

    fn trim(&mut self, now_ms: u64) {
        while let Some(oldest) = self.kept.front() {
            let late = now_ms.saturating_sub(oldest.since_ms) > LIMIT_MS;
            let done = oldest.rest.is_none();
            if !done && !late && self.kept.len() <= KEPT && self.steps <= STEPS {
                break;
            }
            if !done {
                EXPIRED.increment();
                self.steps -= oldest.steps;
            }
            self.kept.pop_front();
        }
    }

    /// Returns the remaining steps, once.
    fn take(&mut self, bridge: B, name: &[u8], now_ms: u64) -> Option<Frozen> {
        self.trim(now_ms);
        let (head, rest) = name.split_at_checked(4)?;
        let (instance, rest) = rest.split_at_checked(8)?;
        let (number, _) = rest.split_at_checked(8)?;
        let known = *head == [0x80, 0, 0, LENGTH as u8] && *instance == self.instance.to_be_bytes();
        let number = u64::from_be_bytes(number.try_into().ok()?);
        let at = self
            .kept
            .binary_search_by_key(&number, |kept| kept.number)
            .ok()
            .filter(|_| known)?;
        let kept = self.kept.get_mut(at).filter(|kept| kept.bridge == bridge)?;
        let rest = kept.rest.take()?;
        self.steps -= kept.steps;
        Some(rest)
    }
}

impl Bridge {
    /// Resumes a paused packet, with the data and metadata in the message.
    /// Returns a match with the bytes of the tunnel options that it names; without these if the map
    /// does not have one of them.
    pub(crate) fn with_places(&self, matching: &Match) -> Match {
        let pipeline = self.pipeline.borrow();
        let placed = pipeline.with_places(matching);
        placed.as_deref().unwrap_or(matching).clone()
    }

    pub(super) fn resume_packet(&self, packet: &PacketIn) -> Result<(), Error> {
        if packet.data.len() < ETHERNET {
            return Err(Error::BadPacket);
        }
        let switch = self.switch();
        let now = switch.clock.now_ms();
        let rest = switch
            .continuations
            .borrow_mut()
            .take(self.id, &packet.continuation, now);
        let Some(rest) = rest else {
            STALE.increment();
            return Err(Error::ResumeStale);
        };
        let mut metadata = FlowKey::ZERO;
        let matching = self.with_places(&packet.matching);
        for word in matching.words() {
            metadata.words[usize::from(word.word)] = word.value;
        }
        // Earlier rule changes must be in force for it.
        self.publish();
        let sent = switch.with_datapath(|datapath| {
            datapath.resume(self.id, packet.data.clone(), metadata, rest)
        });
        if let Ok(Err(error)) = sent {
            // The worker's queue is full: the packet is lost, and its sender is told so.
            tracing::warn!(target: "ofproto", "{}: resume: {error}", self.name);
            STALE.increment();
            return Err(Error::ResumeStale);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_packet_goes_on_once_and_only_in_its_bridge() {
        let mut kept = Continuations::default();
        let mut other = Continuations::default();
        let (here, there) = (1, 2);
        let name = kept.keep(here, Frozen::default(), 5);
        assert_eq!(name.len() % 8, 0);
        assert!(other.take(here, &name, 5).is_none());
        assert!(kept.take(there, &name, 5).is_none());
        for length in 0..20 {
            assert!(kept.take(here, &name[..length], 5).is_none());
        }
        assert!(kept.take(here, &name, 5).is_some());
        assert!(kept.take(here, &name, 5).is_none());
    }

    #[test]
    fn the_oldest_makes_room_and_nothing_stays_for_ever() {
        let mut kept = Continuations::default();
        let here = 1;
        let names: Vec<Vec<u8>> = (0..=KEPT)
            .map(|_| kept.keep(here, Frozen::default(), 5))
            .collect();
        assert!(kept.take(here, &names[0], 5).is_none());
        assert!(kept.take(here, &names[1], 5).is_some());
        assert!(kept.take(here, &names[2], 6 + LIMIT_MS).is_none());
        assert_eq!((kept.kept.len(), kept.steps), (0, 0));
    }
}
