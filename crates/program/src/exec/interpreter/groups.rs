//! Runs groups: each bucket as on a copy of the packet.
//!
//! Most buckets need no copy. One that only sends changes nothing, and after the last step of a
//! walk changes have no effect. Only where a bucket changes the packet and something follows is a
//! copy saved before it and restored after it.

use crate::counters::CounterId;
use crate::exec::interpreter::{Aside, Position, Steps, Walk};
use crate::exec::interpreter::{Burst, MAX_DEPTH, MAX_RESUBMITS, Next, Pending, PendingKind};
use crate::group::{Bucket, GroupRef, LOOKS, Selection};
use crate::host::DropReason;
use crate::host::Host;
use packet::Frame;

impl<F: Frame> Walk<F> {
    /// Runs a group.
    pub(crate) fn group<H: Host<F>>(
        &mut self,
        burst: &Burst<'_, '_>,
        host: &mut H,
        to: GroupRef,
    ) -> Option<Next> {
        let Some(group) = burst.bridge.group(to, burst.guard) else {
            self.without_bucket(host, DropReason::NoGroup);
            return None;
        };
        if self.at.depth >= MAX_DEPTH {
            return self.fail(host, DropReason::GroupTooDeep);
        }
        let mut looks = LOOKS;
        let (bucket, level) = match &group.kind {
            Selection::Every(steps) => {
                self.count_at(burst, group.counter);
                self.call(Steps::of(steps), self.at.depth, self.at.level);
                return None;
            }
            Selection::FirstLive(buckets) => {
                let live = |bucket: &&Bucket| is_live(burst, host, bucket, 0, &mut looks);
                (buckets.iter().find(live), self.at.level)
            }
            Selection::Selected { buckets, selector } => {
                if selector.hash.is_datapaths() {
                    self.count_anew(burst);
                    self.packet_out = false; // in Open vSwitch it is received again here
                }
                let hash = selector.hash.hash(&self.key, self.at.level);
                let chosen = selector.choose(hash, |place| {
                    is_live(burst, host, &buckets[place], 0, &mut looks)
                });
                (chosen.map(|place| &buckets[place]), self.at.level + 1)
            }
        };
        let Some(bucket) = bucket else {
            self.without_bucket(host, DropReason::NoLiveBucket);
            return None;
        };
        self.count_at(burst, group.counter);
        self.bucket(burst, host, bucket, level)
    }

    /// Ends a group that ran no bucket; if nothing else was done to the packet, this is the reason
    /// for its drop.
    fn without_bucket<H: Host<F>>(&mut self, host: &mut H, reason: DropReason) {
        if self.pending.is_empty() && !self.sent {
            host.dropped(reason);
            self.sent = true; // already counted
        }
    }

    fn count_at(&self, burst: &Burst<'_, '_>, counter: CounterId) {
        let bytes = self.counted.into();
        burst.counters.add(counter, 1, bytes, burst.now_ms);
    }

    /// Returns whether nothing of the walk but an action set follows the current step.
    fn is_last(&self) -> bool {
        self.at.next == self.at.steps.get().len()
            && self.stack.is_empty()
            && self.at.saved.is_none()
    }

    /// Returns the position at the beginning of steps that run in place of this step.
    fn position(&self, steps: Steps, depth: u32, level: u32) -> Position<F> {
        Position {
            steps,
            next: 0,
            table: self.at.table,
            cookie: self.at.cookie,
            depth,
            level,
            saved: None,
        }
    }

    /// Runs steps and comes back, if anything follows.
    fn call(&mut self, steps: Steps, depth: u32, level: u32) {
        let position = self.position(steps, depth, level);
        let here = std::mem::replace(&mut self.at, position);
        let over = here.next == here.steps.get().len() && here.saved.is_none();
        if !over || !self.stack.is_empty() {
            self.stack.push(here);
        }
    }

    /// Runs a bucket.
    pub(crate) fn bucket<H: Host<F>>(
        &mut self,
        burst: &Burst<'_, '_>,
        host: &mut H,
        bucket: &Bucket,
        level: u32,
    ) -> Option<Next> {
        // Nested groups multiply, so each bucket counts like a resubmit.
        self.resubmits += 1;
        if self.resubmits > MAX_RESUBMITS {
            return self.fail(host, DropReason::TooManyResubmits);
        }
        self.count_at(burst, bucket.counter);
        if let Some(port) = bucket.only_output {
            self.pending.push(Pending {
                kind: PendingKind::Port(port),
                queue: self.queue,
            });
            return None;
        }
        let (steps, depth) = (Steps::of(&bucket.ops), self.at.depth + 1);
        // Rules that a bucket resubmits to may write to the action set, which must run on the
        // unchanged packet.
        let unseen = self.is_last()
            && self.set.is_empty()
            && (!bucket.resubmits || !burst.bridge.writes_sets());
        if !bucket.changes || unseen {
            self.call(steps, depth, level);
            return None;
        }
        self.flush(burst, host);
        let saved = self.put_aside(Aside::Bucket);
        let position = self.position(steps, depth, level);
        let here = std::mem::replace(&mut self.at, position);
        self.stack.push(here);
        self.at.saved = Some(saved);
        None
    }

    /// Returns whether a bucket or a tracked copy is running, which alone `exit` ends.
    pub(crate) fn is_confined(&self) -> bool {
        self.at.confines() || self.stack.iter().any(Position::confines)
    }

    /// Executes `exit` in a bucket or a tracked copy: ends it; what follows the group, or the step
    /// that tracked the packet, runs (as in Open vSwitch).
    pub(crate) fn unwind_confined<H: Host<F>>(&mut self, burst: &Burst<'_, '_>, host: &mut H) {
        self.at.next = self.at.steps.get().len();
        while !self.at.confines() {
            if self.at.saved.is_some() {
                self.set.clear(); // a clone's, which does not run
            }
            self.go_back(burst, host);
            self.at.next = self.at.steps.get().len();
        }
        if !self.at.is(Aside::Bucket) {
            self.set.clear();
        }
    }
}

impl<F> Position<F> {
    fn is(&self, by: Aside) -> bool {
        self.saved.as_ref().is_some_and(|saved| saved.by == by)
    }

    fn confines(&self) -> bool {
        self.is(Aside::Bucket) || self.is(Aside::Fork)
    }

    pub(super) fn is_fork(&self) -> bool {
        self.is(Aside::Fork)
    }
}

/// Returns whether a bucket is live (OpenFlow 1.3.5 section 6.5): what it watches is live, or it
/// watches nothing.
fn is_live<F: Frame, H: Host<F>>(
    burst: &Burst<'_, '_>,
    host: &H,
    bucket: &Bucket,
    depth: u32,
    looks: &mut u32,
) -> bool {
    let Some(watch) = &bucket.watch else {
        return true;
    };
    if *looks == 0 || depth >= MAX_DEPTH {
        return false;
    }
    *looks -= 1;
    if watch.port.is_some_and(|port| host.port_is_live(port)) {
        return true;
    }
    let group = watch
        .group
        .and_then(|group| burst.bridge.group(group, burst.guard));
    match group.map(|group| &group.kind) {
        None => false,
        Some(Selection::Every(steps)) => !steps.is_empty(),
        Some(Selection::FirstLive(buckets)) => buckets
            .iter()
            .any(|bucket| is_live(burst, host, bucket, depth + 1, looks)),
        Some(Selection::Selected { buckets, selector }) => selector
            .weighted()
            .any(|place| is_live(burst, host, &buckets[place], depth + 1, looks)),
    }
}
