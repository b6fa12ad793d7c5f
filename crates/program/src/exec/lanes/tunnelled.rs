//! Lanes whose packets have tunnel metadata: they came by a tunnel, or a rule has written where
//! they are to go.

use crate::actions::PortNo;
use crate::actions::block::{ActionBlock, LANE_WORDS, Write};
use crate::actions::transfer::Transfer;
use crate::burst::{LOOKUP_MAX, LaneSet, Members, Words};
use crate::classifier::lanes::Found;
use crate::classifier::mini_key::Reads;
use crate::exec::Engine;
use crate::exec::first_table::WORTH_IT;
use crate::exec::interpreter::{Burst, Walk};
use crate::exec::lanes::wide::Sided;
use crate::exec::lanes::{Arrival, Lanes, Leaving, NOWHERE, Waiting};
use crate::host::Host;
use crate::rule::Rule;
use conntrack::Earlier;
use packet::Frame;
use packet::key::at;
use packet::mini_key::{self, MiniKey, NO_PATTERN};
use packet::tunnel::TunnelWords;
use smallvec::SmallVec;
use stages::Stage;
use std::ops::Range;

/// Packets of each port, on average, that are worth a run of the learning switch.
const EACH: usize = 3;

/// Stands for the ingress port of a burst whose packets came by several.
pub(crate) const SEVERAL: PortNo = PortNo::MAX;

impl<F: Frame> Lanes<F> {
    /// Has `say` write tunnel metadata of lanes.
    pub(super) fn begin_tunnelled(
        &mut self,
        set: LaneSet,
        mut say: impl FnMut(usize, &mut TunnelWords),
    ) {
        for lane in set.iter() {
            say(lane, &mut self.tunnels[lane]);
        }
        self.tunnelled = self.tunnelled.union(set);
        self.wide = self.wide.union(set);
    }

    /// Executes the transfers at a block's end.
    #[inline(never)]
    pub(super) fn transfer(&mut self, block: &ActionBlock, set: LaneSet) {
        let Some(transfers) = &block.transfers else {
            return;
        };
        if transfers.to_tunnel {
            let new = set.minus(self.tunnelled);
            self.begin_tunnelled(new, |_, words| *words = TunnelWords::ZERO);
        }
        // Where words are is found once for all lanes.
        for transfer in &transfers.list {
            match transfer.reads() {
                None => self.transfer_one(transfer, set, |_, _| 0),
                Some(word) if usize::from(word) < LANE_WORDS => {
                    self.transfer_one(transfer, set, |lanes, lane| {
                        lanes.lanes[lane].words[usize::from(word) % LANE_WORDS]
                    });
                }
                Some(word) => match TunnelWords::place(word.into()) {
                    Some(place) => self.transfer_one(transfer, set, |lanes, lane| {
                        match lanes.tunnelled.contains(lane) {
                            true => lanes.tunnels[lane].at(place),
                            false => 0,
                        }
                    }),
                    None => self.transfer_one(transfer, set, |lanes, lane| {
                        Words::word(&lanes.sided(&lanes.all(), lane), word)
                    }),
                },
            }
        }
    }

    /// Executes a transfer, given what returns the word that it reads.
    #[inline(always)]
    fn transfer_one(
        &mut self,
        transfer: &Transfer,
        set: LaneSet,
        read: impl Fn(&Self, usize) -> u64,
    ) {
        let (word, mask) = (transfer.to, transfer.mask);
        if usize::from(word) < LANE_WORDS {
            for lane in set.iter() {
                let value = transfer.value(read(self, lane));
                self.lanes[lane].write(&Write { word, mask, value });
            }
        } else if let Some(place) = TunnelWords::place(word.into()) {
            for lane in set.iter() {
                let value = transfer.value(read(self, lane));
                self.tunnels[lane].write_at(place, value, mask);
            }
        }
    }

    #[inline(never)]
    pub(super) fn look_up_tunnelled<'g>(
        &self,
        burst: &Burst<'_, 'g>,
        table: u8,
        set: LaneSet,
        found: &mut Found<'g>,
    ) -> bool {
        let all = &self.all();
        let lanes: [Sided<'_>; LOOKUP_MAX] = std::array::from_fn(|lane| self.sided(all, lane));
        (burst.bridge).lookup_lanes(table, set, &lanes, burst.guard, found)
    }

    /// Sends lanes to a port behind which what the tracker has said of them is kept, or that sends
    /// by their tunnel metadata.
    #[cold]
    pub(super) fn carry<H: Host<F>>(
        &mut self,
        arrival: Arrival,
        host: &mut H,
        port: PortNo,
        set: LaneSet,
    ) {
        if !host.carries(port) {
            return self.send_tunnelled(arrival, host, port, set);
        }
        let by_tunnel = host.reads_tunnel(port);
        for lane in set.iter() {
            let earlier = match self.tracked.contains(lane) {
                true => self.connections.earlier(lane),
                false => Earlier::default(),
            };
            host.carry(earlier);
            if by_tunnel {
                self.send_tunnelled(arrival, host, port, LaneSet::one(lane));
            } else if let Some(frame) = self.frames[lane].take() {
                let mut one = std::iter::once(frame);
                host.output_run(arrival.in_port, port, arrival.mirrored, &mut one);
            }
        }
        host.carry(Earlier::default());
    }

    /// Sends lanes to a port that sends by their tunnel metadata.
    fn send_tunnelled<H: Host<F>>(
        &mut self,
        arrival: Arrival,
        host: &mut H,
        port: PortNo,
        set: LaneSet,
    ) {
        const NONE: &TunnelWords = &TunnelWords::ZERO;
        let (frames, tunnels, tunnelled) = (&mut self.frames, &self.tunnels, self.tunnelled);
        let mut some = set.iter().filter_map(|lane| {
            let words = match tunnelled.contains(lane) {
                true => &tunnels[lane],
                false => NONE,
            };
            Some((frames[lane].take()?, words))
        });
        let Arrival { in_port, mirrored } = arrival;
        host.output_tunnelled(in_port, port, mirrored, &mut some);
    }

    /// Returns those of these lanes that came in by a port.
    pub(super) fn those_by(&self, set: LaneSet, port: PortNo) -> LaneSet {
        set.those(|lane| self.came_by(lane, port))
    }

    /// Returns whether a lane came in by a port.
    #[inline(always)]
    pub(super) fn came_by(&self, lane: usize, port: PortNo) -> bool {
        super::came_by(self.lanes[lane % LOOKUP_MAX].words[0], port)
    }
}

/// Returns whether at least [`EACH`] packets of a set came by the same port, on average.
fn is_by_few(mut set: LaneSet, ports: &[PortNo; LOOKUP_MAX]) -> bool {
    for _ in 0..set.len() / EACH {
        let Some(first) = set.first() else {
            return true;
        };
        set = set.minus(set.those_with(ports, ports[first % LOOKUP_MAX]));
    }
    set.is_empty()
}

/// Returns whether packets of one source came by different ports.
fn has_moved(set: LaneSet, hot: &[MiniKey], ports: &[PortNo; LOOKUP_MAX]) -> bool {
    const { assert!(at::ETH_SRC.is_multiple_of(8)) };
    let mut sources: SmallVec<[(u64, PortNo); LOOKUP_MAX]> = SmallVec::new();
    let source = |lane: usize| u64::from_be(hot[lane].words[at::ETH_SRC / 8]) >> 16;
    sources.extend(set.iter().map(|lane| (source(lane), ports[lane])));
    sources.sort_unstable();
    let mut neighbours = sources.iter().zip(sources.iter().skip(1));
    neighbours.any(|(one, next)| one.0 == next.0 && one.1 != next.1)
}

impl<F: Frame> Engine<F> {
    /// Takes packets from the front that came by these ports, if they are of the common kinds, and
    /// returns how many. Those with verdicts of the first table are done; from the first without
    /// one on they are put into lanes that wait for that table. `say` writes their tunnel metadata.
    pub(crate) fn begin_by_tunnels<H: Host<F>>(
        &mut self,
        burst: &Burst<'_, '_>,
        arrival: Arrival,
        host: &mut H,
        frames: &mut Vec<F>,
        ports: &[PortNo],
        say: Option<impl FnMut(usize, &mut TunnelWords)>,
    ) -> usize {
        let all = frames.len().min(LOOKUP_MAX).min(ports.len());
        stages::go(Stage::Parse, all);
        let mut first = [NO_PATTERN; LOOKUP_MAX];
        let count = mini_key::read_burst(&frames[..all], 0, &[], &mut self.hot, &mut first).count;
        if count < all.clamp(1, WORTH_IT) {
            return 0;
        }
        for (hot, port) in self.hot[..count].iter_mut().zip(ports) {
            hot.words[0] |= super::in_port_word(*port);
        }
        let done = match say {
            Some(_) => 0,
            None => self.end_by_verdicts(burst, arrival, count, frames, host),
        };
        if done == count {
            return count;
        }
        self.walks
            .resize_with(self.walks.len().max(count), Walk::new);
        let rest = done..count;
        let others = match say {
            None => self.normal_by_ports(burst, arrival, host, rest.clone(), ports, frames),
            // The learning switch may send by metadata.
            Some(_) => None,
        };
        let set = others.unwrap_or_else(|| {
            let mut frames = frames.drain(..rest.len());
            (self.lanes).begin_run(rest.start, &self.hot[rest.clone()], &mut frames);
            LaneSet::run(rest.start, rest.len())
        });
        if set.is_empty() {
            return count;
        }
        if let Some(say) = say {
            self.lanes.begin_tunnelled(set, say);
        }
        self.lanes.wait(Waiting {
            table: 0,
            resubmit: false,
            back: NOWHERE,
            set,
        });
        count
    }

    /// Gives those of these packets that meet a rule whose only step is NORMAL to the learning
    /// switch, each port's together, and puts the others into lanes, which it returns. Their mini
    /// keys have been read, and their frames are the first of `frames`. Does nothing and returns
    /// None where the first meets no such rule, since then hardly any does; where few came by the
    /// same port, since a run of one or two takes the switch longer than walks; and where packets
    /// of one source came by two ports: the switch must learn from the last one.
    #[allow(clippy::too_many_arguments)] // as for `burst`
    #[inline(never)]
    fn normal_by_ports<H: Host<F>>(
        &mut self,
        burst: &Burst<'_, '_>,
        arrival: Arrival,
        host: &mut H,
        those: Range<usize>,
        ports: &[PortNo],
        frames: &mut Vec<F>,
    ) -> Option<LaneSet> {
        if !H::NORMAL_RUNS || H::WATCHES {
            return None;
        }
        let (from, count) = (those.start, those.len());
        let hot = &self.hot[those.clone()];
        let mut came = [0; LOOKUP_MAX];
        came[..count].copy_from_slice(&ports[those]);
        let all = LaneSet::run(0, count);
        if !is_by_few(all, &came) {
            return None;
        }
        let mut found = [None; LOOKUP_MAX];
        let mut look_up = |hot: &[MiniKey]| {
            found = [None; LOOKUP_MAX];
            let (guard, found) = (burst.guard, &mut found);
            (burst.bridge).lookup_mini_keys(0, hot, Reads::MiniKey, guard, found, None)
                && found[0].is_some_and(Rule::only_normal)
        };
        if !look_up(hot.get(..1)?) || !look_up(hot) {
            return None;
        }
        let normal = all.those(|at| found[at].is_some_and(Rule::only_normal));
        if has_moved(normal, hot, &came) {
            return None;
        }
        for (at, rule) in normal.iter().filter_map(|at| Some((at, found[at]?))) {
            let (counter, bytes) = (rule.spec.counter, hot[at].len.into());
            burst.counters.add(counter, 1, bytes, burst.now_ms);
        }
        (burst.bridge).count_looked_up(0, normal.len(), normal.len(), burst.guard);
        let mut leaving = Leaving::new(frames, count);
        let mut keys: SmallVec<[MiniKey; LOOKUP_MAX]> = SmallVec::new();
        let mut rest = normal;
        while let Some(first) = rest.first() {
            let port = came[first % LOOKUP_MAX];
            let same = rest.those_with(&came, port);
            rest = rest.minus(same);
            keys.clear();
            keys.extend(same.iter().map(|at| hot[at]));
            let mut taken = leaving.take(same);
            host.normal_run(port, arrival.mirrored, &keys, &mut taken);
        }
        let mut others = LaneSet::EMPTY;
        for at in all.minus(normal).iter() {
            let (lane, mut one) = (from + at, leaving.take(LaneSet::one(at)));
            (self.lanes).begin_run(lane, &hot[at..=at], &mut one);
            others = others.union(LaneSet::one(lane));
        }
        Some(others)
    }
}
