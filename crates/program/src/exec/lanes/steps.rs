//! Executes the results of a table's lookup for lanes: rules that were met by one packet each are
//! executed one after the other, without the overhead of sets.

use crate::actions::block::{ActionBlock, ActionBlocks, End};
use crate::actions::transfer::Transfers;
use crate::burst::{LaneSet, Members, One};
use crate::classifier::lanes::Meeting;
use crate::exec::Engine;
use crate::exec::interpreter::Burst;
use crate::exec::lanes::{Arrival, Lanes, Waiting};
use crate::host::Host;
use crate::prefetch::prefetch;
use crate::rule::Rule;
use packet::Frame;

/// Fewest rules met together whose transfers are fetched ahead.
const FETCHED: usize = 8;

/// What has become of a packet whose rule was to be executed at once.
enum Step {
    /// It is queued for sending.
    Sent,
    /// It waits for a lookup.
    Waits { table: u8, resubmit: bool },
    /// Nothing has been done: its rule is of another kind.
    Not,
}

/// Returns the transfers of a rule's first block.
#[inline(always)]
fn transfers(rule: &Rule) -> Option<&Transfers> {
    rule.blocks()?.first()?.transfers.as_deref()
}

impl<F: Frame> Engine<F> {
    /// Executes a rule that a single lane has met, if it is of the common kind: one block, which
    /// ends at a later table or a port. In most tables after the first each packet meets a rule of
    /// its own, so this is the cost of a packet there.
    #[inline(always)]
    fn step<H: Host<F>>(
        &mut self,
        burst: &Burst<'_, '_>,
        host: &mut H,
        (from, back): (u8, u16),
        rule: &Rule,
        one: One,
    ) -> Step {
        let Some(block) = rule.blocks().and_then(ActionBlocks::only) else {
            return Step::Not;
        };
        let Lanes { lanes, frames, .. } = &mut self.lanes;
        let (lane, frame) = (&mut lanes[one.place()], &mut frames[one.place()]);
        if H::WATCHES
            || !matches!(block.end, End::Output(_) | End::Table { .. })
            || block.leads_off(from, back)
            || block.rewrite.expires(lane.mini_key())
        {
            return Step::Not;
        }
        host.looked_up(from, None, Some(rule));
        let (counters, len) = (burst.counters, lane.len.into());
        counters.add(rule.spec.counter, 1, len, burst.now_ms);
        block.writes().for_each(|write| lane.write(write));
        lane.rewrite(frame, &block.rewrite);
        match block.end {
            End::Output(port) => {
                self.lanes.send(port, one);
                Step::Sent
            }
            End::Table { table, resubmit } => {
                lane.hops += 1;
                Step::Waits { table, resubmit }
            }
            End::Copy(_)
            | End::Multipath
            | End::Track(_)
            | End::Untrack
            | End::Transfer
            | End::Learn
            | End::Nothing => Step::Not,
        }
    }

    /// Prefetches rules' counters, where there are too many for a cache, and what rules do, where
    /// packets meet many that do more than writes of registers.
    #[inline(always)]
    pub(crate) fn fetch(burst: &Burst<'_, '_>, found: &[Meeting<'_>]) {
        if burst.counters.are_many() {
            for rule in found.iter().filter_map(|(rule, _)| *rule) {
                burst.counters.prefetch(rule.spec.counter);
            }
        }
        // Others are mostly like the first.
        if found.len() >= FETCHED && found[0].0.is_some_and(|rule| transfers(rule).is_some()) {
            Self::fetch_transfers(found);
        }
    }

    #[inline(never)]
    fn fetch_transfers(found: &[Meeting<'_>]) {
        let rules = || found.iter().filter_map(|(rule, _)| *rule);
        for block in rules().filter_map(|rule| rule.blocks()?.first()) {
            let from = std::ptr::from_ref(block).cast::<[u8; 64]>();
            let lines = size_of::<ActionBlock>() / 64;
            (0..lines).for_each(|line| prefetch(from.wrapping_add(line)));
        }
        for transfers in rules().filter_map(transfers) {
            let from = std::ptr::from_ref(transfers).cast::<[u8; 64]>();
            (0..2).for_each(|line| prefetch(from.wrapping_add(line)));
        }
    }

    /// Executes the rules that waiting lanes have found.
    #[inline(always)]
    pub(super) fn meet_all<H: Host<F>>(
        &mut self,
        burst: &Burst<'_, '_>,
        arrival: Arrival,
        host: &mut H,
        waited: Waiting,
        found: &[Meeting<'_>],
    ) {
        if waited.table == 0 && burst.bridge.writes_sets() {
            for (rule, set) in found {
                if let Some(rule) = rule {
                    self.lanes.note_first(rule, *set);
                }
            }
        }
        // Most lanes go on to the same table.
        let mut ahead = Waiting {
            set: LaneSet::EMPTY,
            ..waited
        };
        let mut rest = found;
        if found.len() > 1 {
            self.lanes.unmet = waited;
        }
        loop {
            if let [(_, set), ..] = rest
                && set.only().is_some()
            {
                let from = (waited.table, waited.back);
                rest = self.step_by_step(burst, host, from, rest, &mut ahead);
            }
            let [(rule, set), others @ ..] = rest else {
                break;
            };
            rest = others;
            let (rule, set) = (*rule, *set);
            let waited = Waiting { set, ..waited };
            self.lanes.unmet.set = self.lanes.unmet.set.minus(set);
            match (rule, set.only()) {
                (None, _) => self.miss_lanes(burst, arrival, host, waited),
                (Some(rule), Some(one)) => self.meet_after(burst, arrival, host, waited, rule, one),
                (Some(rule), None) => self.meet_after(burst, arrival, host, waited, rule, set),
            }
        }
        self.lanes.unmet.set = LaneSet::EMPTY;
        self.lanes.wait_if_any(ahead);
    }

    /// Executes the first rules found in a table, up to one that several lanes have met or that is
    /// not of the common kind, and returns that one and those behind it. Lanes that go on to the
    /// same table are collected in `ahead`.
    #[inline(never)] // so that what its loop needs stays in registers
    fn step_by_step<'f, 'g, H: Host<F>>(
        &mut self,
        burst: &Burst<'_, '_>,
        host: &mut H,
        from: (u8, u16),
        found: &'f [Meeting<'g>],
        ahead: &mut Waiting,
    ) -> &'f [Meeting<'g>] {
        let (mut rest, mut to, mut set) = (found, (ahead.table, ahead.resubmit), ahead.set);
        while let [(Some(rule), met), others @ ..] = rest
            && let Some(one) = met.only()
            && rule.fused().is_none()
        {
            match self.step(burst, host, from, rule, one) {
                Step::Sent => {}
                Step::Waits { table, resubmit } if to == (table, resubmit) => {
                    set = set.union(one.whole());
                }
                Step::Waits { table, resubmit } => {
                    (ahead.table, ahead.resubmit) = to;
                    ahead.set = set;
                    self.lanes.wait_if_any(*ahead);
                    (to, set) = ((table, resubmit), one.whole());
                }
                Step::Not => break,
            }
            rest = others;
        }
        (ahead.table, ahead.resubmit) = to;
        ahead.set = set;
        rest
    }
}
