//! The lookup of a burst in the first table, when its packets are of the common kinds (IPv4, IPv6
//! and ARP, as in [`packet::mini_key`]).
//!
//! Three short cuts in front of the general way (parse into whole keys, look up, walk):
//!
//! * The first table reads nothing but the ingress port, and the rule for it only sends to a port:
//!   one lookup is the answer for the whole burst, and no packet is read at all. Malformed headers
//!   are then not counted, because nobody has looked at them.
//! * The first table reads only words of mini keys: packets are read into one cache line each
//!   ([`packet::mini_key`]), looked up there, and runs of neighbours that meet the same sending
//!   rule go out together. Where the rules are few, each packet is compared with them while it is
//!   read, or, where these only send and drop, in its buffer. A packet whose rule needs further
//!   lookups goes on in a lane ([`super::lanes`]).
//! * The first table reads further words of common packets: the same, except that these words of
//!   IPv6 and ARP packets are read first.
//!
//! Where rules are many, most packets meet a rule of their own. A verdict (`classifier::verdicts`)
//! is enough for those that send, perhaps after edits. As long as packets have verdicts, two small
//! loops execute them: one finds and prefetches counters and edits, the other edits and counts. The
//! packets then leave at once, sorted by port, without a search for runs. Behind a table's trie
//! (`classifier::trie`) or exact table (`classifier::exact`) the rules themselves are not read.
//!
//! Runs of neighbours that meet a rule whose only step is NORMAL go to the learning switch together
//! ([`Host::normal_run`]), with their mini keys.
//!
//! A burst takes the general way when one of its first packets is not of a common kind: a few
//! common packets before that one are not worth a batch of their own.

#[cfg(test)]
mod tests;

use crate::actions::PortNo;
use crate::actions::batch::{ActionBatch, STEP};
use crate::actions::block::ActionBlock;
use crate::burst::Words;
use crate::burst::{LOOKUP_MAX, LaneSet};
use crate::classifier::mini_key::Reads;
use crate::classifier::prefilter::{PatternRules, Patterned};
use crate::classifier::verdicts::{FoundRules, Rules, Verdicts, VerdictsBy};
use crate::counters::CounterId;
use crate::exec::Engine;
use crate::exec::interpreter::{Burst, Walk};
use crate::exec::lanes::{Arrival, Lanes, begin_key, word_beyond};
use crate::host::{DropReason, Host};
use crate::rule::Rule;
use crate::rule::summary::MatchedRule;
use crate::table::Miss;
use conntrack::Earlier;
use packet::Frame;
use packet::io::Lengths;
use packet::mini_key::MiniKey;
use packet::mini_key::{self, NO_PATTERN, Pattern, RawPrefilter};
use packet::parse::MoreWords;
use smallvec::SmallVec;
use stages::Stage;
use std::ops::Range;

/// Fewest common packets worth looking up together when another kind follows.
pub(crate) const WORTH_IT: usize = 8;
/// How many packets ahead to prefetch what executing their rules reads: some hundred nanoseconds'
/// work where rules only send, and more where they edit.
const AHEAD: usize = 24;
/// Length of an Ethernet header; the general way drops shorter frames.
const ETHERNET_LEN: usize = 14;

impl<F: Frame> Engine<F> {
    /// Takes frames from the front, does all that can be done before the next lookup, and returns
    /// true. Returns false if it has done nothing and the frames must take the general way.
    #[inline(always)]
    pub(crate) fn front<H: Host<F>>(
        &mut self,
        burst: &Burst<'_, '_>,
        in_port: PortNo,
        frames: &mut Vec<F>,
        mirrored: u32,
        host: &mut H,
    ) -> bool {
        match burst.bridge.reads(0, burst.guard) {
            Reads::Port if self.by_port(burst, in_port, frames, mirrored, host) => true,
            Reads::Port | Reads::MiniKey => {
                self.by_mini_keys(burst, in_port, frames, mirrored, host)
            }
            Reads::Lane | Reads::Deep => self.by_all_words(burst, in_port, frames, mirrored, host),
            Reads::Whole => false,
        }
    }

    #[inline(always)]
    fn by_port<H: Host<F>>(
        &mut self,
        burst: &Burst<'_, '_>,
        in_port: PortNo,
        frames: &mut Vec<F>,
        mirrored: u32,
        host: &mut H,
    ) -> bool {
        stages::go(Stage::Lookup, frames.len());
        let mut found = [None];
        let hot = [MiniKey::of_port(in_port)];
        if !(burst.bridge).lookup_mini_keys(0, &hot, Reads::Port, burst.guard, &mut found, None) {
            return false;
        }
        let Some((rule, port)) = found[0].and_then(|rule: &Rule| Some((rule, rule.only_output()?)))
        else {
            return false;
        };
        stages::go(Stage::Actions, frames.len());
        let mut lengths = Lengths::default();
        let mut shortest = usize::MAX;
        for frame in frames.iter() {
            let len = frame.len();
            lengths.add(len);
            shortest = shortest.min(len);
        }
        if shortest < ETHERNET_LEN {
            return false;
        }
        let count = frames.len();
        (0..count).for_each(|_| host.looked_up(0, None, Some(rule)));
        burst.bridge.count_looked_up(0, count, count, burst.guard);
        let counter = rule.spec.counter;
        burst
            .counters
            .add(counter, count as u64, lengths.bytes, burst.now_ms);
        self.received += lengths.bytes;
        host.output_burst(in_port, port, mirrored, frames, Some(lengths));
        true
    }

    /// Reads the common packets at the front; returns None where they are too few.
    #[inline(always)]
    fn read_first(
        &mut self,
        frames: &[F],
        in_port: PortNo,
        patterns: &[Pattern],
        first: &mut [u8; LOOKUP_MAX],
    ) -> Option<mini_key::Read> {
        let all = frames.len().min(LOOKUP_MAX);
        stages::go(Stage::Parse, all);
        let read = mini_key::read_burst(&frames[..all], in_port, patterns, &mut self.hot, first);
        (read.count >= all.min(WORTH_IT)).then_some(read)
    }

    #[inline(always)]
    fn by_mini_keys<H: Host<F>>(
        &mut self,
        burst: &Burst<'_, '_>,
        in_port: PortNo,
        frames: &mut Vec<F>,
        mirrored: u32,
        host: &mut H,
    ) -> bool {
        let arrival = Arrival { in_port, mirrored };
        let patterned = burst.bridge.patterned(0, burst.guard);
        if let Some(patterned) = patterned
            && let Some(prefilter) = patterned.prefilter
            && burst.bridge.miss(0) == Miss::Drop
            && !H::WATCHES
        {
            return self.by_runs(burst, in_port, patterned, prefilter, frames, mirrored, host);
        }
        let patterns = patterned.map_or(&[][..], |patterned| patterned.patterns);
        let mut first = [NO_PATTERN; LOOKUP_MAX];
        let Some(read) = self.read_first(frames, in_port, patterns, &mut first) else {
            return false;
        };
        if let Some(patterned) = patterned {
            stages::go(Stage::Actions, read.count);
            let first = &first[..read.count];
            if read.count == frames.len()
                && mini_key::all_same(first)
                && let Some(one) = patterned.decided(first[0])
                && meet_one(
                    burst, in_port, one, read, None, &self.hot, frames, mirrored, host,
                )
            {
                self.received += read.bytes;
                return true;
            }
            if patterned.is_list() {
                self.received += read.bytes;
                // Summed in bytes, which are wide enough and add sixteen at a time.
                let found = first.iter().map(|index| u8::from(*index != NO_PATTERN));
                let matched = usize::from(found.sum::<u8>());
                (burst.bridge).count_looked_up(0, read.count, matched, burst.guard);
                let list = patterned;
                let rules = PatternRules { list, first };
                self.meet(burst, arrival, 0..read.count, &rules, frames, host);
                return true;
            }
        }
        stages::go(Stage::Lookup, read.count);
        let hot = &self.hot[..read.count];
        // A packet whose pattern is not the first tuple's has no verdict; verdicts are used only
        // when at least half have one. Summed in bytes, as above.
        let mut numbers = [0; LOOKUP_MAX];
        let in_first = first[..read.count].iter().map(|gate| u8::from(*gate == 0));
        if !H::WATCHES
            && (patterned.is_none() || usize::from(in_first.sum::<u8>()) * 2 >= read.count)
            && let Some(verdicts) =
                burst
                    .bridge
                    .verdicts(0, hot, Reads::MiniKey, burst.guard, &mut numbers)
        {
            stages::go(Stage::Actions, read.count);
            self.received += read.bytes;
            self.execute_by::<_, false>(burst, arrival, read.count, verdicts, frames, host);
            return true;
        }
        let mut rules = FoundRules::EMPTY;
        let FoundRules { found, summaries } = &mut rules;
        if let Some(patterned) = patterned {
            let first = &first[..read.count];
            patterned.look_up(hot, first, &mut found[..read.count], Some(summaries));
        } else if !(burst.bridge).lookup_mini_keys(
            0,
            hot,
            Reads::MiniKey,
            burst.guard,
            found,
            Some(summaries),
        ) {
            return false;
        }
        stages::go(Stage::Actions, read.count);
        self.received += read.bytes;
        // The rules are known already, so the lookup needs no further words.
        self.execute::<_, _, false>(burst, arrival, read.count, &rules, frames, host);
        true
    }

    /// [`Engine::by_mini_keys`] where all rules only send or drop, so that mini keys are not read.
    #[allow(clippy::too_many_arguments)] // as for `burst`
    #[inline(always)]
    fn by_runs<H: Host<F>>(
        &mut self,
        burst: &Burst<'_, '_>,
        in_port: PortNo,
        patterned: Patterned<'_>,
        prefilter: &RawPrefilter,
        frames: &mut Vec<F>,
        mirrored: u32,
        host: &mut H,
    ) -> bool {
        let all = frames.len().min(LOOKUP_MAX);
        stages::go(Stage::Lookup, all);
        let (read, lengths) =
            mini_key::prefilter_burst(&frames[..all], in_port, prefilter, &mut self.runs);
        if read.count < all.min(WORTH_IT) {
            return false;
        }
        stages::go(Stage::Actions, read.count);
        self.received += read.bytes;
        if read.count == frames.len()
            && let [one] = self.runs[..]
            && meet_one(
                burst,
                in_port,
                patterned.rule(one.found),
                read,
                Some(lengths),
                &[], // only NORMAL needs them
                frames,
                mirrored,
                host,
            )
        {
            return true;
        }
        let met = self.runs.iter().filter(|run| run.found != NO_PATTERN);
        let matched = met.map(|run| run.packets as usize).sum();
        (burst.bridge).count_looked_up(0, read.count, matched, burst.guard);
        let mut frames = frames.drain(..read.count);
        for run in &self.runs {
            let frames = &mut frames.by_ref().take(run.packets as usize);
            let rule = patterned.rule(run.found);
            (0..run.packets).for_each(|_| host.looked_up(0, None, rule));
            let reason = match rule {
                Some(rule) => {
                    let (counter, packets) = (rule.spec.counter, run.packets.into());
                    burst
                        .counters
                        .add(counter, packets, run.bytes, burst.now_ms);
                    if let Some(port) = rule.only_output() {
                        host.output_run(in_port, port, mirrored, frames);
                        continue;
                    }
                    DropReason::Action
                }
                None => DropReason::TableMiss,
            };
            for frame in frames {
                drop(frame);
                host.dropped(reason);
            }
        }
        true
    }

    /// [`Engine::by_mini_keys`] by mini keys and the further words of IPv6 and ARP.
    #[inline(never)]
    fn by_all_words<H: Host<F>>(
        &mut self,
        burst: &Burst<'_, '_>,
        in_port: PortNo,
        frames: &mut Vec<F>,
        mirrored: u32,
        host: &mut H,
    ) -> bool {
        let mut first = [NO_PATTERN; LOOKUP_MAX];
        let Some(read) = self.read_first(frames, in_port, &[], &mut first) else {
            return false;
        };
        let hot = &self.hot[..read.count];
        for ((hot, more), frame) in hot.iter().zip(&mut self.more).zip(frames.iter()) {
            if !hot.extent.is_ipv4() {
                *more = MoreWords::of(frame.head(), hot.extent);
            }
        }
        stages::go(Stage::Lookup, read.count);
        let keys = AllWords::of(hot, &self.more);
        let mut numbers = [0; LOOKUP_MAX];
        let arrival = Arrival { in_port, mirrored };
        if !H::WATCHES
            && let Some(verdicts) =
                (burst.bridge).verdicts(0, &keys, Reads::Deep, burst.guard, &mut numbers)
        {
            drop(keys);
            stages::go(Stage::Actions, read.count);
            self.received += read.bytes;
            self.execute_by::<_, true>(burst, arrival, read.count, verdicts, frames, host);
            return true;
        }
        let mut rules = FoundRules::EMPTY;
        let FoundRules { found, summaries } = &mut rules;
        if !(burst.bridge).lookup_mini_keys(
            0,
            &keys,
            Reads::Deep,
            burst.guard,
            found,
            Some(summaries),
        ) {
            return false;
        }
        drop(keys);
        stages::go(Stage::Actions, read.count);
        self.received += read.bytes;
        // As in `by_mini_keys`.
        self.execute::<_, _, false>(burst, arrival, read.count, &rules, frames, host);
        true
    }

    /// Executes the verdicts of the first packets, whose mini keys have been read, where the first
    /// table has verdicts and looks at nothing else; returns how many have been done.
    pub(crate) fn end_by_verdicts<H: Host<F>>(
        &mut self,
        burst: &Burst<'_, '_>,
        arrival: Arrival,
        count: usize,
        frames: &mut Vec<F>,
        host: &mut H,
    ) -> usize {
        if H::WATCHES {
            return 0;
        }
        let mut numbers = [0; LOOKUP_MAX];
        let hot = &self.hot[..count];
        stages::go(Stage::Lookup, count);
        let verdicts = (burst.bridge).verdicts(0, hot, Reads::MiniKey, burst.guard, &mut numbers);
        stages::go(Stage::Actions, count);
        let all = 0..count;
        let done = match verdicts {
            None => 0,
            Some(VerdictsBy::Routes(by)) => {
                self.end_those::<_, false>(burst, arrival, all, &by, frames, host)
            }
            Some(VerdictsBy::OneWord(by)) => {
                self.end_those::<_, false>(burst, arrival, all, &by, frames, host)
            }
            Some(VerdictsBy::TwoWords(by)) => {
                self.end_those::<_, false>(burst, arrival, all, &by, frames, host)
            }
        };
        if done > 0 {
            burst.bridge.count_looked_up(0, done, done, burst.guard);
        }
        done
    }

    /// [`Engine::execute`] by the verdicts of any kind of table.
    #[inline(always)]
    fn execute_by<'g, H: Host<F>, const ALL: bool>(
        &mut self,
        burst: &Burst<'_, 'g>,
        arrival: Arrival,
        count: usize,
        verdicts: VerdictsBy<'g, '_>,
        frames: &mut Vec<F>,
        host: &mut H,
    ) {
        match verdicts {
            VerdictsBy::Routes(by) => {
                self.execute::<_, _, ALL>(burst, arrival, count, &by, frames, host)
            }
            VerdictsBy::OneWord(by) => {
                self.execute::<_, _, ALL>(burst, arrival, count, &by, frames, host)
            }
            VerdictsBy::TwoWords(by) => {
                self.execute::<_, _, ALL>(burst, arrival, count, &by, frames, host)
            }
        }
    }

    /// Executes packets' verdicts, and from the first packet without one on their rules; counts
    /// both. `ALL` where lookups read more than mini keys.
    #[inline(never)] // one copy for each source of verdicts
    fn execute<'g, V: Verdicts<'g>, H: Host<F>, const ALL: bool>(
        &mut self,
        burst: &Burst<'_, 'g>,
        arrival: Arrival,
        count: usize,
        verdicts: &V,
        frames: &mut Vec<F>,
        host: &mut H,
    ) {
        let (mut done, mut returns) = (0, 0);
        if !H::WATCHES && self.should_batch::<_, ALL>(count, verdicts) {
            done = self.end_those::<_, ALL>(burst, arrival, 0..count, verdicts, frames, host);
            if done == count {
                return (burst.bridge).count_looked_up(0, count, count, burst.guard);
            }
            // Where there is a barrier, packets must not ask for rules before all others of the
            // burst have come to it.
            returns = match burst.barrier {
                0 => V::RETURNS,
                _ => 0,
            };
        }
        let mut room = FoundRules::EMPTY;
        let mut matched = done;
        loop {
            // Go by rules up to the next packet with a verdict, if enough packets remain from there
            // on.
            let mut worth_it = (done + 1..count).filter(|next| count - next >= WORTH_IT);
            let until = match returns {
                0 => None,
                _ => worth_it.find(|at| self.has_verdict::<ALL>(*at, verdicts)),
            };
            let until = until.unwrap_or(count);
            stages::go(Stage::Lookup, until - done);
            let (hot, epoch) = (&self.hot[..until], burst.guard.epoch());
            let rules = if ALL {
                let keys = AllWords::of(hot, &self.more);
                verdicts.rules(done, &keys, epoch, &mut room)
            } else {
                verdicts.rules(done, hot, epoch, &mut room)
            };
            stages::go(Stage::Actions, until - done);
            matched += rules.found[done..until].iter().flatten().count();
            self.meet_found(done..until, burst, arrival, rules, frames, host);
            if until == count {
                break;
            }
            // Walks that still wait may be of the same flows as later packets: finish them first.
            self.drive(burst, host);
            returns -= 1;
            done = self.end_those::<_, ALL>(burst, arrival, until..count, verdicts, frames, host);
            matched += done - until;
            if done == count {
                break;
            }
        }
        (burst.bridge).count_looked_up(0, count, matched, burst.guard);
    }

    /// See [`Verdicts::should_batch`].
    #[inline(always)]
    fn should_batch<'g, V: Verdicts<'g>, const ALL: bool>(
        &self,
        count: usize,
        verdicts: &V,
    ) -> bool {
        let (hot, more) = (&self.hot, &self.more);
        match ALL {
            true => verdicts.should_batch(count, |at| AllWords::one(&hot[at], more, at)),
            false => verdicts.should_batch(count, |at| &hot[at]),
        }
    }

    /// [`Engine::end_first`] by these verdicts.
    #[inline(always)]
    fn end_those<'d, 'g: 'd, H: Host<F>, const ALL: bool>(
        &mut self,
        burst: &Burst<'d, 'g>,
        arrival: Arrival,
        those: Range<usize>,
        verdicts: &impl Verdicts<'g>,
        frames: &mut Vec<F>,
        host: &mut H,
    ) -> usize {
        // Taken out meanwhile, because verdicts are read while mini keys change. Edits do not
        // update these words: later users read them anew from the frame.
        let more = match ALL {
            true => std::mem::take(&mut self.more),
            false => Box::default(),
        };
        let prepare = |hot: &[MiniKey], those: Range<usize>, batch: &mut ActionBatch<'d>| {
            let verdict = |index: usize| match ALL {
                true => verdicts.verdict(index, &AllWords::one(&hot[index], &more, index)),
                false => verdicts.verdict(index, &hot[index]),
            };
            verdicts.batch(those, verdict, burst.counters, batch)
        };
        let done = self.end_first(burst, arrival, those, prepare, frames, host);
        if ALL {
            self.more = more;
        }
        done
    }

    /// Returns whether a packet has a verdict.
    #[inline(always)]
    fn has_verdict<'g, const ALL: bool>(&self, index: usize, verdicts: &impl Verdicts<'g>) -> bool {
        let hot = &self.hot[index];
        let verdict = match ALL {
            true => verdicts.verdict(index, &AllWords::one(hot, &self.more, index)),
            false => verdicts.verdict(index, hot),
        };
        verdict.is_some()
    }

    /// [`Engine::meet`] for the rules that a lookup found.
    #[inline(never)] // one copy for all lookups
    fn meet_found<H: Host<F>>(
        &mut self,
        those: Range<usize>,
        burst: &Burst<'_, '_>,
        arrival: Arrival,
        rules: &FoundRules<'_>,
        frames: &mut Vec<F>,
        host: &mut H,
    ) {
        self.meet(burst, arrival, those, rules, frames, host);
    }

    /// Executes the verdicts of `those` packets, whose frames are the first of `frames`, and sends
    /// them, up to the first one without a verdict or whose TTL would expire. Returns that packet's
    /// index. Where rules are many, each packet meets one of its own, and a search for runs would
    /// cost more than this. All leave at once, so that no later packet overtakes them.
    #[inline(always)]
    fn end_first<'d, H: Host<F>>(
        &mut self,
        burst: &Burst<'_, '_>,
        arrival: Arrival,
        those: Range<usize>,
        prepare: impl Fn(&[MiniKey], Range<usize>, &mut ActionBatch<'d>) -> usize,
        frames: &mut Vec<F>,
        host: &mut H,
    ) -> usize {
        let mut ports = [0; LOOKUP_MAX];
        let (first, mut done) = (those.start, those.start);
        while done < those.end {
            let mut batch = ActionBatch::NONE;
            let (from, most) = (done, STEP.min(those.end - done));
            let known = prepare(&self.hot, from..from + most, &mut batch);
            let rest = frames[from - first..].iter_mut().zip(&mut self.hot[from..]);
            done += carry_out(
                rest,
                &batch,
                known,
                &mut ports[from - first..],
                burst.now_ms,
            );
            if done < from + most {
                break;
            }
        }
        let hot = &self.hot[first..done];
        Lanes::send_first(arrival, host, hot, &ports, done - first, frames);
        done
    }

    /// Executes the rules that `those` packets have met, whose frames are the first of `frames`.
    /// Neighbours that have met the same sending rule are done together.
    #[inline(always)]
    fn meet<'g, H: Host<F>>(
        &mut self,
        burst: &Burst<'_, '_>,
        arrival: Arrival,
        those: Range<usize>,
        rules: &impl Rules<'g>,
        frames: &mut Vec<F>,
        host: &mut H,
    ) {
        self.walks
            .resize_with(self.walks.len().max(those.end), Walk::new);
        let mut frames = frames.drain(..those.len());
        let Arrival { in_port, mirrored } = arrival;
        let (mut index, mut fetched) = (those.start, those.start);
        while index < those.end {
            fetched = fetched.max(index);
            while fetched < those.end.min(index + AHEAD) {
                rules.prefetch(fetched, burst.counters);
                fetched += 1;
            }
            let matched_rule = rules.rule(index);
            let others = index + 1..those.end;
            let others = others.take_while(|at| rules.same(index, *at));
            if let Some((matched_rule, port)) = matched_rule
                .and_then(|matched_rule| Some((matched_rule, matched_rule.only_output()?)))
            {
                let run = 1 + others.count();
                let bytes = self.hot[index..index + run]
                    .iter()
                    .map(|hot| u64::from(hot.len))
                    .sum();
                let counter = matched_rule.counter();
                burst.counters.add(counter, run as u64, bytes, burst.now_ms);
                (0..run).for_each(|_| host.looked_up(0, None, Some(matched_rule.rule)));
                host.output_run(in_port, port, mirrored, &mut frames.by_ref().take(run));
                index += run;
                continue;
            }
            if H::NORMAL_RUNS && matched_rule.is_some_and(|matched_rule| matched_rule.only_normal())
            {
                let run = 1 + others.count();
                self.meet_normal(
                    burst,
                    arrival,
                    host,
                    matched_rule,
                    index..index + run,
                    &mut frames,
                );
                index += run;
                continue;
            }
            if let Some((matched_rule, blocks)) =
                matched_rule.and_then(|matched_rule| Some((matched_rule, matched_rule.blocks()?)))
            {
                let alone = index + 1 == those.end || !rules.same(index, index + 1);
                if alone
                    && let Some(block) = blocks.first()
                    && let Some(port) = goes_to(block, &self.hot[index])
                {
                    // The usual case where rules are many: handling it as a run would cost more
                    // than the edits.
                    if let Some(mut frame) = frames.next() {
                        let (rule, hot) = (Some(matched_rule.rule), &mut self.hot[index]);
                        let counter = matched_rule.counter();
                        edit_alone(burst, host, rule, counter, block, &mut frame, hot);
                        self.lanes.send_one(index, port, frame);
                    }
                    index += 1;
                    continue;
                }
                let rule = matched_rule.rule;
                let run = 1 + others.count();
                let set = LaneSet::run(index, run);
                let run = index..index + run;
                index = run.end;
                if let Some((block, port)) = blocks.only_send()
                    && !run
                        .clone()
                        .any(|at| block.rewrite.expires(&self.hot[at].words))
                {
                    let hot = &self.hot[run.clone()];
                    let bytes = hot.iter().map(|hot| u64::from(hot.len)).sum();
                    let (counter, packets) = (matched_rule.counter(), run.len() as u64);
                    burst.counters.add(counter, packets, bytes, burst.now_ms);
                    for (at, mut frame) in run.zip(frames.by_ref()) {
                        host.looked_up(0, None, Some(rule));
                        let hot = &mut self.hot[at];
                        block.rewrite.run(&mut frame, hot.extent, &mut hot.words);
                        self.lanes.put(at, frame);
                    }
                    self.lanes.send(port, set);
                    continue;
                }
                let read = &self.hot[run.clone()];
                self.lanes.begin_run(run.start, read, &mut frames);
                self.meet_lanes(burst, arrival, host, 0, rule, set);
                continue;
            }
            if let Some(frame) = frames.next() {
                self.begin_walk(burst, index, frame, mirrored);
                self.first_step(
                    burst,
                    host,
                    index,
                    matched_rule.map(|matched_rule| matched_rule.rule),
                );
            }
            index += 1;
        }
        drop(frames);
        self.drive_lanes(burst, arrival, host);
    }

    /// Gives packets that have met one rule whose only step is NORMAL, the next of `frames`, to the
    /// learning switch, and counts them.
    fn meet_normal<H: Host<F>>(
        &mut self,
        burst: &Burst<'_, '_>,
        arrival: Arrival,
        host: &mut H,
        matched_rule: Option<MatchedRule<'_>>,
        run: Range<usize>,
        frames: &mut impl ExactSizeIterator<Item = F>,
    ) {
        let hot = &self.hot[run];
        if let Some(matched_rule) = matched_rule {
            let bytes = hot.iter().map(|hot| u64::from(hot.len)).sum();
            let counter = matched_rule.counter();
            (burst.counters).add(counter, hot.len() as u64, bytes, burst.now_ms);
            (hot.iter()).for_each(|_| host.looked_up(0, None, Some(matched_rule.rule)));
        }
        let frames = &mut frames.take(hot.len());
        host.normal_run(arrival.in_port, arrival.mirrored, hot, frames);
    }

    /// Continues a packet whose walk is ready, after its lookup in the first table.
    fn first_step<H: Host<F>>(
        &mut self,
        burst: &Burst<'_, '_>,
        host: &mut H,
        index: usize,
        rule: Option<&Rule>,
    ) {
        let walk = &mut self.walks[index];
        host.looked_up(0, Some(&walk.key), rule);
        let next = match rule {
            Some(rule) => {
                walk.count(burst, rule);
                Self::hit(walk, burst, host, 0, rule)
            }
            None => Self::missed(walk, burst, host, 0),
        };
        self.go_on(burst, host, index, next);
    }

    /// Prepares the walk of a packet that was looked up by its mini key.
    #[inline(always)]
    pub(crate) fn begin_walk(
        &mut self,
        burst: &Burst<'_, '_>,
        index: usize,
        frame: F,
        mirrored: u32,
    ) {
        let (walk, hot) = (&mut self.walks[index], &self.hot[index]);
        begin_key(&mut walk.key, &hot.words, burst.valid);
        if !hot.extent.is_ipv4() {
            MoreWords::of(frame.head(), hot.extent).fill(&mut walk.key);
        }
        walk.layers = hot.extent.layers();
        walk.start(frame, mirrored);
        walk.tracked = Earlier::default();
    }
}

/// All words of a packet of the common kinds; `more` is not read for IPv4.
struct AllWords<'a> {
    hot: &'a MiniKey,
    more: &'a MoreWords,
}

impl<'a> AllWords<'a> {
    /// The words of one packet of a burst.
    #[inline(always)]
    fn one(hot: &'a MiniKey, more: &'a [MoreWords], index: usize) -> AllWords<'a> {
        let more = &more[index];
        AllWords { hot, more }
    }

    /// The words of all packets of a burst.
    #[inline(always)]
    fn of(hot: &'a [MiniKey], more: &'a [MoreWords]) -> SmallVec<[AllWords<'a>; LOOKUP_MAX]> {
        debug_assert!(more.len() >= hot.len());
        let keys = hot.iter().zip(more);
        keys.map(|(hot, more)| AllWords { hot, more }).collect()
    }
}

impl Words for AllWords<'_> {
    const AT_HAND: u8 = 0;

    #[inline(always)]
    fn word(&self, index: u8) -> u64 {
        match self.hot.words.get(usize::from(index)) {
            Some(word) => *word,
            None => word_beyond(index, self.hot.extent, self.more),
        }
    }
}

/// Executes the rule that all frames have met, if it only sends or its only step is NORMAL; returns
/// whether it did.
#[allow(clippy::too_many_arguments)] // as for `burst`
#[inline(always)]
fn meet_one<F: Frame, H: Host<F>>(
    burst: &Burst<'_, '_>,
    in_port: PortNo,
    rule: Option<&Rule>,
    read: mini_key::Read,
    lengths: Option<Lengths>,
    hot: &[MiniKey],
    frames: &mut Vec<F>,
    mirrored: u32,
    host: &mut H,
) -> bool {
    let Some(rule) = rule else {
        return false;
    };
    let port = rule.only_output();
    if port.is_none() && !(H::NORMAL_RUNS && rule.only_normal() && hot.len() >= read.count) {
        return false;
    }
    let count = read.count as u64;
    (burst.bridge).count_looked_up(0, read.count, read.count, burst.guard);
    (burst.counters).add(rule.spec.counter, count, read.bytes, burst.now_ms);
    (0..count).for_each(|_| host.looked_up(0, None, Some(rule)));
    match port {
        Some(port) => host.output_burst(in_port, port, mirrored, frames, lengths),
        None => host.normal_run(in_port, mirrored, &hot[..read.count], &mut frames.drain(..)),
    }
    true
}

/// Executes the verdicts of the first `known` packets, up to the first whose TTL would expire, and
/// writes each one's port to `ports`. Returns how many were done.
#[inline(never)] // one copy for each batch loop
fn carry_out<'f, F: Frame + 'f>(
    packets: impl Iterator<Item = (&'f mut F, &'f mut MiniKey)>,
    batch: &ActionBatch<'_>,
    known: usize,
    ports: &mut [PortNo],
    now_ms: u64,
) -> usize {
    let mut done = 0;
    for ((frame, hot), ((counter, edits, by), port)) in packets.zip(batch.first(known).zip(ports)) {
        if let Some(block) = edits {
            let Some(to) = goes_to(block, hot) else {
                break;
            };
            *port = to;
            (block.rewrite).run_last(frame, hot.extent, &mut hot.words);
        } else {
            *port = by;
        }
        if let Some(counter) = counter {
            counter.add(1, hot.len.into(), now_ms);
        }
        done += 1;
    }
    done
}

/// Returns the port that edits end in sending to; None where the packet's TTL would expire.
#[inline(always)]
fn goes_to(block: &ActionBlock, hot: &MiniKey) -> Option<PortNo> {
    let port = block.port();
    port.filter(|_| !block.rewrite.expires(&hot.words))
}

/// Edits a packet that is alone in meeting its rule, and counts it.
#[inline(always)]
fn edit_alone<F: Frame, H: Host<F>>(
    burst: &Burst<'_, '_>,
    host: &mut H,
    rule: Option<&Rule>,
    counter: CounterId,
    block: &ActionBlock,
    frame: &mut F,
    hot: &mut MiniKey,
) {
    (burst.counters).add(counter, 1, hot.len.into(), burst.now_ms);
    host.looked_up(0, None, rule);
    (block.rewrite).run_last(frame, hot.extent, &mut hot.words);
}
