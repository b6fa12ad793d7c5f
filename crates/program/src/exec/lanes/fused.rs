//! Runs lanes on fused paths (`rule::fused`).

use crate::actions::block::End;
use crate::burst::{LaneSet, Members};
use crate::exec::Engine;
use crate::exec::interpreter::Burst;
use crate::exec::lanes::{Arrival, NOWHERE, Waiting};
use crate::host::Host;
use crate::rule::Rule;
use crate::rule::fused::{FusedPath, FusedPaths};
use packet::Frame;

impl<F: Frame> Engine<F> {
    /// Returns the fused path of a rule, and which of these packets may take it. Judged for each
    /// packet by itself, so that those of one flow go the same way.
    #[inline(always)]
    pub(super) fn fused<'r, H: Host<F>>(
        &self,
        burst: &Burst<'_, '_>,
        rule: &'r Rule,
        &Waiting { table, back, .. }: &Waiting,
        set: impl Members,
    ) -> Option<(&'r FusedPaths, LaneSet)> {
        // A path would lead past where lanes wait until those before them have asked for rules.
        if H::WATCHES || table < burst.barrier {
            return None;
        }
        let fused = rule.fused()?;
        if !fused.holds(&burst.bridge.unwildcarded, burst.guard) || fused.sends && back != NOWHERE {
            return None;
        }
        // Fused paths are made for IPv4 only. Packets that have been tracked or have tunnel
        // metadata take those on which nothing looks at that.
        let lanes = &self.lanes;
        let kept_off = match fused.reads_beyond {
            true => lanes.wide,
            false => lanes.others,
        };
        let mut taken = set.whole().minus(kept_off);
        if fused.may_expire {
            let rewrite = &rule.blocks()?.get().first()?.rewrite;
            let lanes = &self.lanes.lanes;
            taken = taken.those(|lane| !rewrite.expires(lanes[lane].mini_key()));
        }
        (!taken.is_empty()).then_some((fused, taken))
    }

    /// Executes a rule that lanes have met and the rules behind it by its fused path.
    #[inline(always)]
    pub(super) fn run_fused<H: Host<F>>(
        &mut self,
        burst: &Burst<'_, '_>,
        arrival: Arrival,
        host: &mut H,
        fused: &FusedPaths,
        waited: Waiting,
        set: impl Members,
    ) {
        let mut rest = set.whole();
        if let Some(one) = rest.only() {
            if let Some(own) = fused.way(&self.lanes.lanes[one.place()]) {
                self.carry(burst, arrival, host, own, waited, one);
            }
            return;
        }
        for own in &fused.ways {
            let lanes = &self.lanes.lanes;
            let taken = match &*own.words {
                [] => rest,
                _ => rest.those(|lane| own.takes(&lanes[lane])),
            };
            if !taken.is_empty() {
                rest = rest.minus(taken);
                self.carry(burst, arrival, host, own, waited, taken);
            }
            if rest.is_empty() {
                return;
            }
        }
    }

    /// Runs lanes to the end of a fused path.
    #[inline(always)]
    fn carry<H: Host<F>>(
        &mut self,
        burst: &Burst<'_, '_>,
        arrival: Arrival,
        host: &mut H,
        own: &FusedPath,
        waited: Waiting,
        set: impl Members,
    ) {
        let lanes = &mut self.lanes;
        let mut bytes = 0;
        set.each(|at| {
            let lane = &mut lanes.lanes[at];
            bytes += u64::from(lane.len);
            lane.hops += own.hops;
        });
        let counters = burst.counters;
        counters.add(own.counter, set.len() as u64, bytes, burst.now_ms);
        lanes.edit(&own.block, set);
        for rewrite in &own.rewrites {
            lanes.rewrite(rewrite, set);
        }
        match own.block.end {
            End::Output(port) => lanes.send(port, set),
            End::Table { table, resubmit } => {
                let backs = own.backs.iter();
                let back = backs.fold(waited.back, |up, here| lanes.note(*here, up));
                lanes.wait(Waiting {
                    table,
                    resubmit,
                    back,
                    set: set.whole(),
                });
            }
            // Fused paths do not go past copies, a choice, the tracker or transfers of metadata.
            End::Copy(_)
            | End::Multipath
            | End::Track(_)
            | End::Untrack
            | End::Transfer
            | End::Learn
            | End::Nothing => self.come_back(burst, arrival, host, waited.back, set),
        }
    }

    /// Continues lanes where they are to return to.
    #[inline(never)]
    pub(crate) fn come_back<H: Host<F>>(
        &mut self,
        burst: &Burst<'_, '_>,
        arrival: Arrival,
        host: &mut H,
        back: u16,
        set: impl Members,
    ) {
        match self.lanes.backs.get(usize::from(back)) {
            Some(after) => {
                let (here, up) = (after.here, after.up);
                self.pass(burst, arrival, host, here, up, set);
            }
            None => self.lose(host, set.whole()),
        }
    }
}
