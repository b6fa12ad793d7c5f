//! A burst's way in when its packets are of the common kind and the first table reads little of them.
//!
//! Two short cuts in front of the general way (parse into whole keys, look up, walk):
//!
//! * The first table reads nothing but the ingress port, and the rule for it only sends to a port: one lookup is the answer for the whole burst, and no
//!   packet is read at all. Headers that lie are then not counted as malformed, for nobody has looked at them.
//! * The first table reads only what lies in the hot words: packets are read into one cache line each, looked up there, and runs of neighbours
//!   that meet the same sending rule go out together. A packet that has more before it gets its whole key then.
//!
//! A burst begins the general way where its next packet is not of the common kind; a few common ones before it are not worth a burst of their own.

use super::{Burst, Engine, Next, Walk};
use crate::action_set;
use crate::host::Host;
use crate::ops::PortNo;
use crate::rule::Rule;
use crate::table::{HotWords, LOOKUP_MAX, Reads};
use packet::key::at;
use packet::parse::{self, HOT_WORDS};
use packet::{Frame, WordSet};

/// Fewest common packets that are looked up by themselves when another one follows.
const WORTH_IT: usize = 8;
/// Shortest frame that has an Ethernet header; a shorter one is for the general way to throw out.
const ETHERNET_LEN: usize = 14;

impl<F: Frame> Engine<F> {
    /// Takes a number of frames from the front, does all that can be done before the next lookup, and says whether it did. Otherwise nothing has been
    /// done, and the frames are to go the general way.
    #[inline(always)]
    pub(super) fn front<H: Host<F>>(
        &mut self,
        burst: &Burst<'_, '_>,
        in_port: PortNo,
        frames: &mut Vec<F>,
        mirrored: u32,
        host: &mut H,
    ) -> bool {
        match burst.bridge.reads(0, burst.guard) {
            Reads::Port => by_port(burst, in_port, frames, mirrored, host),
            Reads::Hot => self.by_hot_words(burst, in_port, frames, mirrored, host),
            Reads::Deep => false,
        }
    }

    #[inline(always)]
    fn by_hot_words<H: Host<F>>(
        &mut self,
        burst: &Burst<'_, '_>,
        in_port: PortNo,
        frames: &mut Vec<F>,
        mirrored: u32,
        host: &mut H,
    ) -> bool {
        let all = frames.len().min(LOOKUP_MAX);
        let count = read_common(&frames[..all], in_port, &mut self.hot);
        if count < all.min(WORTH_IT) {
            return false;
        }
        let mut found = [None; LOOKUP_MAX];
        if !burst
            .bridge
            .lookup_hot(0, &self.hot[..count], burst.guard, &mut found)
        {
            return false;
        }
        let found = &found[..count];
        let matched = found.iter().filter(|rule| rule.is_some()).count();
        burst.bridge.count_hot(0, count, matched, burst.guard);
        self.walks
            .resize_with(self.walks.len().max(count), Walk::new);
        found.iter().for_each(|rule| host.looked_up(0, None, *rule));
        let mut frames = frames.drain(..count);
        let mut index = 0;
        while index < count {
            let rule = found[index];
            if let Some((rule, port)) = rule.and_then(|rule| Some((rule, rule.only_output?))) {
                let run = run_of(rule, &found[index..]);
                let bytes = self.hot[index..index + run]
                    .iter()
                    .map(|hot| u64::from(hot.len))
                    .sum();
                let counter = rule.spec.counter;
                burst.counters.add(counter, run as u64, bytes, burst.now_ms);
                host.output_run(in_port, port, mirrored, &mut frames.by_ref().take(run));
                index += run;
                continue;
            }
            if let Some(frame) = frames.next() {
                self.begin_walk(burst, index, frame, mirrored, rule, host);
            }
            index += 1;
        }
        true
    }

    /// Gives a packet that was looked up by its hot words the rest of its walk.
    #[inline(always)]
    fn begin_walk<H: Host<F>>(
        &mut self,
        burst: &Burst<'_, '_>,
        index: usize,
        frame: F,
        mirrored: u32,
        rule: Option<&Rule>,
        host: &mut H,
    ) {
        let (walk, hot) = (&mut self.walks[index], &self.hot[index]);
        walk.key.words[..HOT_WORDS].copy_from_slice(&hot.words);
        let others = burst.valid.minus(WordSet::HOT);
        if !others.is_empty() {
            walk.key.clear(others);
        }
        if others.contains(at::ACTSET_OUTPUT / 8) {
            walk.key.set_u32(at::ACTSET_OUTPUT, action_set::NO_OUTPUT);
        }
        walk.layers = hot.extent.layers();
        walk.start(frame, mirrored);
        let next = match rule {
            Some(rule) => {
                walk.count(burst, rule);
                Self::hit(walk, burst, host, 0, rule)
            }
            None => Self::missed(walk, burst, host, 0),
        };
        match next {
            Next::Done => {}
            Next::Lookup(table) => self.waiting.push((table, index as u16)),
            other => self.run_to_end(burst, host, index, other),
        }
    }
}

/// Reads common packets up to the first that is not; returns how many there were.
#[inline(always)]
fn read_common<F: Frame>(frames: &[F], in_port: PortNo, hot: &mut [HotWords]) -> usize {
    for (index, (frame, hot)) in frames.iter().zip(hot).enumerate() {
        let len = frame.len();
        match parse::common_words(frame.head(), len, in_port, &mut hot.words) {
            Some(extent) => (hot.extent, hot.len) = (extent, len as u32),
            None => return index,
        }
    }
    frames.len()
}

/// How many results from the first on are this rule.
#[inline(always)]
fn run_of(rule: &Rule, found: &[Option<&Rule>]) -> usize {
    found
        .iter()
        .take_while(|other| other.is_some_and(|other| std::ptr::eq(other, rule)))
        .count()
}

#[inline(always)]
fn by_port<F: Frame, H: Host<F>>(
    burst: &Burst<'_, '_>,
    in_port: PortNo,
    frames: &mut Vec<F>,
    mirrored: u32,
    host: &mut H,
) -> bool {
    let mut found = [None; LOOKUP_MAX];
    let hot = [HotWords::of_port(in_port)];
    if !burst.bridge.lookup_hot(0, &hot, burst.guard, &mut found) {
        return false;
    }
    let Some((rule, port)) = found[0].and_then(|rule: &Rule| Some((rule, rule.only_output?)))
    else {
        return false;
    };
    let mut bytes = 0;
    let mut shortest = usize::MAX;
    for frame in frames.iter() {
        bytes += frame.len() as u64;
        shortest = shortest.min(frame.len());
    }
    if shortest < ETHERNET_LEN {
        return false;
    }
    let count = frames.len();
    (0..count).for_each(|_| host.looked_up(0, None, Some(rule)));
    burst.bridge.count_hot(0, count, count, burst.guard);
    let counter = rule.spec.counter;
    burst
        .counters
        .add(counter, count as u64, bytes, burst.now_ms);
    host.output_run(in_port, port, mirrored, &mut frames.drain(..));
    true
}
