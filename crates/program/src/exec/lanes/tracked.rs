//! Lanes whose packets have been sent through the connection tracker.

use crate::actions::block::ActionBlock;
use crate::actions::connection::LaneTrack;
use crate::burst::{LOOKUP_MAX, LaneSet, Members};
use crate::exec::Engine;
use crate::exec::interpreter::connection::{
    CONNECTION_WORDS, FIRST_WORD, MAX_RECIRCULATIONS, SCTP, SETTLED_WORDS, TCP, UDP, words_of,
    words_of_settled,
};
use crate::exec::interpreter::{Burst, Walk};
use crate::exec::lanes::{Arrival, Lane, Lanes};
use crate::host::{DropReason, Host};
use crate::rule::fused::Here;
use conntrack::{Answers, Coming, Earlier, Settled, Tracked, Translation};
use packet::edit::{CompiledSet, Rewrite};
use packet::key::at;
use packet::{FlowKey, Frame, WordSet};
use std::net::{IpAddr, Ipv4Addr};

/// What lanes know of their packets' connections. Only of lanes whose packets have been tracked.
pub(super) struct Connections {
    /// The key's words about them, by word and then by lane, so that a word is compared for many
    /// lanes at once; 0 where rules see no connection.
    words: [[u64; LOOKUP_MAX]; CONNECTION_WORDS],
    /// Lanes in which words behind the first [`SETTLED_WORDS`] may be other than 0.
    long: LaneSet,
    /// What the last lookups in the tracker said.
    earlier: [Earlier; LOOKUP_MAX],
    /// How often packets have gone on behind the tracker.
    recirculated: [u8; LOOKUP_MAX],
}

impl Connections {
    /// Of packets that have not been tracked.
    pub const NONE: Connections = Connections {
        words: [[0; LOOKUP_MAX]; CONNECTION_WORDS],
        long: LaneSet::EMPTY,
        earlier: [Earlier {
            state: 0,
            zone: 0,
            has_connection: false,
        }; LOOKUP_MAX],
        recirculated: [0; LOOKUP_MAX],
    };

    /// Returns a word of all lanes. None if the word does not tell of connections.
    #[inline(always)]
    pub fn column(&self, index: u8) -> Option<&[u64; LOOKUP_MAX]> {
        self.words.get(usize::from(index).wrapping_sub(FIRST_WORD))
    }

    /// Has rules see a connection.
    #[inline(never)]
    pub fn show(&mut self, lane: usize, words: [u64; CONNECTION_WORDS]) {
        for (column, word) in self.words.iter_mut().zip(words) {
            column[lane % LOOKUP_MAX] = word;
        }
        self.long = self.long.union(LaneSet::one(lane % LOOKUP_MAX));
    }

    /// Has rules see a connection whose other words are 0.
    #[inline(always)]
    pub fn show_settled(&mut self, lane: usize, words: [u64; SETTLED_WORDS]) {
        let lane = lane % LOOKUP_MAX;
        if self.long.contains(lane) {
            for column in &mut self.words {
                column[lane] = 0;
            }
            self.long = self.long.minus(LaneSet::one(lane));
        }
        for (column, word) in self.words.iter_mut().zip(words) {
            column[lane] = word;
        }
    }

    /// Fills the words of a key that are valid.
    pub fn fill(&self, lane: usize, key: &mut FlowKey, valid: WordSet) {
        for (at, column) in self.words.iter().enumerate() {
            if valid.contains(FIRST_WORD + at) {
                key.words[FIRST_WORD + at] = column[lane % LOOKUP_MAX];
            }
        }
    }

    /// Returns what the last lookup in the tracker said of a lane's packet.
    pub fn earlier(&self, lane: usize) -> Earlier {
        self.earlier[lane % LOOKUP_MAX]
    }

    /// Gives a walk what the lane knew.
    pub fn hand_on<F>(&self, lane: usize, walk: &mut Walk<F>) {
        walk.tracked = self.earlier[lane % LOOKUP_MAX];
        walk.recirculated = self.recirculated[lane % LOOKUP_MAX];
    }
}

impl<F: Frame> Lanes<F> {
    /// Sends packets through the tracker and translates them, and returns those that need a walk,
    /// with the answers for them in `aside`: those that cannot be translated here, and those that a
    /// helper has rewritten. `continues` says whether the others show their connections now, for a
    /// lookup.
    fn track<H: Host<F>>(
        &mut self,
        host: &mut H,
        track: &LaneTrack,
        set: LaneSet,
        continues: bool,
        aside: &mut Vec<(usize, Tracked)>,
    ) -> LaneSet {
        let Some((tracker, now_ms)) = host.tracker() else {
            return LaneSet::EMPTY;
        };
        let _stage = stages::enter(stages::Stage::Track, set.len());
        let again = self.tracked;
        let mut earlier = [Earlier::default(); LOOKUP_MAX];
        for lane in set.also_in(again).iter() {
            earlier[lane] = self.connections.earlier[lane];
        }
        let (lanes, frames) = (&self.lanes, &self.frames);
        let coming = set.iter().filter_map(|lane| {
            Some(Coming {
                number: lane,
                frame: frames[lane].as_ref()?,
                layers: lanes[lane].extent.layers(),
                earlier: earlier[lane],
                zone: track.zone(&lanes[lane].words),
            })
        });
        let mut taking = Taking {
            lanes,
            connections: &mut self.connections,
            again,
            continues,
            with_nat: track.request().nat.is_some(),
            leaving: LaneSet::EMPTY,
            edits: std::mem::take(&mut self.edits),
            aside,
        };
        tracker.track_burst(coming, &track.request(), now_ms, &mut taking);
        let (leaving, mut edits) = (taking.leaving, taking.edits);
        for (rewrite, lane) in edits.drain(..) {
            self.lanes[lane].rewrite(&mut self.frames[lane], &rewrite);
        }
        self.edits = edits;
        let staying = set.minus(leaving);
        self.tracked = self.tracked.union(staying);
        self.wide = self.wide.union(staying);
        leaving
    }

    /// Forgets packets' connections.
    pub(super) fn untrack(&mut self, set: LaneSet) {
        for lane in set.also_in(self.tracked).iter() {
            // As for walks: the tracker forgets only what rules see.
            if self.connections.words[0][lane] != 0 {
                self.connections.earlier[lane] = Earlier::default();
            }
            self.connections.show_settled(lane, [0; SETTLED_WORDS]);
        }
    }
}

/// Takes the tracker's answers for lanes.
struct Taking<'a> {
    lanes: &'a [Lane; LOOKUP_MAX],
    connections: &'a mut Connections,
    /// Lanes that have been tracked before.
    again: LaneSet,
    /// Whether lanes show their connections now.
    continues: bool,
    with_nat: bool,
    /// Lanes that become walks, and the answers for these.
    leaving: LaneSet,
    aside: &'a mut Vec<(usize, Tracked)>,
    /// Translations, by lane.
    edits: Vec<(Rewrite, usize)>,
}

impl Taking<'_> {
    /// Remembers what the lookup said.
    #[inline(always)]
    fn note(&mut self, lane: usize, earlier: Earlier) {
        let before = match self.again.contains(lane) {
            true => self.connections.recirculated[lane],
            false => 0,
        };
        self.connections.recirculated[lane] = before + u8::from(self.continues);
        self.connections.earlier[lane] = earlier;
    }

    fn leave(&mut self, lane: usize, tracked: &Tracked) {
        self.leaving = self.leaving.union(LaneSet::one(lane));
        self.aside.push((lane, *tracked));
    }
}

impl Answers for Taking<'_> {
    #[inline(always)]
    fn settled(&mut self, lane: usize, settled: &Settled) {
        let lane = lane % LOOKUP_MAX;
        // Only UDP and TCP are settled, so the edits can be made.
        if let Some([source, destination]) = settled.translation() {
            let (source, destination) = (Some(source), Some(destination));
            let edit = edit(settled.protocol(), source, destination);
            self.edits.extend(edit.zip(Some(lane)));
        }
        let words = match self.continues {
            true => words_of_settled(settled),
            false => [0; SETTLED_WORDS],
        };
        self.connections.show_settled(lane, words);
        self.note(lane, settled.earlier(self.with_nat));
    }

    #[inline(never)]
    fn other(&mut self, lane: usize, tracked: &Tracked) {
        let lane = lane % LOOKUP_MAX;
        if tracked.rewrite.is_some() {
            return self.leave(lane, tracked);
        }
        if !tracked.translation.is_empty() {
            let protocol = self.lanes[lane].mini_key()[at::IP_PROTO / 8];
            let protocol = protocol.to_ne_bytes()[at::IP_PROTO % 8];
            match edit_by(&tracked.translation, protocol) {
                Some(rewrite) => self.edits.push((rewrite, lane)),
                None => return self.leave(lane, tracked),
            }
        }
        let words = match self.continues {
            true => words_of(tracked),
            false => [0; CONNECTION_WORDS],
        };
        self.connections.show(lane, words);
        self.note(lane, tracked.earlier(self.with_nat));
    }
}

/// Returns the edits that give a packet of IPv4 other addresses, and ports if it is UDP or TCP;
/// None for an SCTP packet, whose ports they do not know.
#[inline(always)]
fn edit(protocol: u8, source: Option<End>, destination: Option<End>) -> Option<Rewrite> {
    let mut rewrite = Rewrite::default();
    let has_ports = matches!(protocol, TCP | UDP);
    let mut fits = has_ports || protocol != SCTP;
    if let Some((address, port)) = source {
        fits &= rewrite.then(&CompiledSet::Ipv4Src(address.to_bits()));
        fits &= !has_ports || rewrite.then(&CompiledSet::SourcePort(protocol, port));
    }
    if let Some((address, port)) = destination {
        fits &= rewrite.then(&CompiledSet::Ipv4Dst(address.to_bits()));
        fits &= !has_ports || rewrite.then(&CompiledSet::DestinationPort(protocol, port));
    }
    fits.then_some(rewrite)
}

/// Address and port of an end.
type End = (Ipv4Addr, u16);

/// [`edit`] for a translation; None also for IPv6 and for what has to be translated further inside.
fn edit_by(translation: &Translation, protocol: u8) -> Option<Rewrite> {
    let v4 = |end: (IpAddr, u16)| match end {
        (IpAddr::V4(address), port) => Some((address, port)),
        _ => None,
    };
    let (source, destination) = (translation.source, translation.destination);
    let ends = (source.and_then(v4), destination.and_then(v4));
    let all = source.is_some() == ends.0.is_some() && destination.is_some() == ends.1.is_some();
    (all && translation.inner.is_none()).then(|| edit(protocol, ends.0, ends.1))?
}

impl ActionBlock {
    /// Returns what its end asks of the tracker.
    fn tracks(&self) -> Option<&LaneTrack> {
        self.track.as_deref()
    }
}

impl<F: Frame> Engine<F> {
    /// Sends lanes through the tracker, and returns those that stay lanes. `here` is the place
    /// behind the step; `table` the one in which the packets go on, if any.
    #[allow(clippy::too_many_arguments)] // as for `burst`
    #[inline(never)]
    pub(super) fn track_lanes<H: Host<F>>(
        &mut self,
        burst: &Burst<'_, '_>,
        arrival: Arrival,
        host: &mut H,
        block: &ActionBlock,
        (here, back): (Here, u16),
        table: Option<u8>,
        set: LaneSet,
    ) -> LaneSet {
        let Some(track) = block.tracks() else {
            return set;
        };
        // Those that may not go on are tracked, too.
        let mut spent = LaneSet::EMPTY;
        if table.is_some() {
            let lanes = &mut self.lanes;
            spent = set.those(|lane| {
                lanes.tracked.contains(lane)
                    && lanes.connections.recirculated[lane] == MAX_RECIRCULATIONS
            });
            set.each(|lane| lanes.lanes[lane].hops += 1);
        }
        let mut aside = std::mem::take(&mut self.lanes.aside);
        let leaving = (self.lanes).track(host, track, set, table.is_some(), &mut aside);
        for (lane, tracked) in aside.drain(..) {
            let Some(walk) = self.leave_to(burst, arrival, here, back, lane) else {
                continue;
            };
            let next = match walk.go_on_tracked(burst, host, track.step(), &tracked) {
                Some(next) => next,
                None => walk.run(burst, host),
            };
            self.go_on(burst, host, lane, next);
        }
        self.lanes.aside = aside;
        let staying = set.minus(leaving);
        for lane in staying.also_in(spent).iter() {
            self.lanes.frames[lane] = None;
            host.dropped(DropReason::TooManyRecirculations);
        }
        staying.minus(spent)
    }
}
