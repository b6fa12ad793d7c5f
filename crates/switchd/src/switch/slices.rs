//! Changes of many rules, in slices: between the slices of a long change, controllers' echo
//! requests, packet-ins and other bridges are served.
//!
//! A bridge has one such change at a time. It is a task of its own, which completes whatever
//! happens to the connection that requested it. Meanwhile nobody else changes or reads the bridge's
//! rules: messages that would do so wait (`openflow::Switch::busy`), and changes by the switch
//! itself are delayed ([`Bridge::when_idle`]). So others see the rules either before or after the
//! change.
//!
//! Packets see a change all at once: it is prepared under a reserved epoch
//! ([`program::epoch::Domain::reserve`]). There is one such epoch for all bridges, so the long
//! changes of several bridges run one after the other. Changes of few rules need no reserved epoch
//! and do not wait.

use super::{Bridge, Switch};
use crate::coverage::Counter;
use crate::openflow::LocalFuture;
use crate::turns;
use openflow::Error;
use openflow::Version;
use openflow::flow::{FlowMod, FlowRemoved};
use openflow::group::GroupMod;
use openflow::meter::MeterMod;
use pipeline::{Begun, FlowModOutcome, Sweep};
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::Future;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::Notify;

/// Most rules that a change may look at or change without slices: well below a millisecond's work.
pub(super) const AT_ONCE: usize = 512;
/// Rules in one step of a slice; after each step the time is checked.
pub(super) const STEP: usize = 64;
/// Length of a slice.
const SLICE: Duration = Duration::from_millis(2);
/// Rules that are removed, and reported, together.
const TOLD: usize = 256;
/// Most rules unlinked, and most objects freed, in one slice.
const RECLAIMED: usize = 2048;
/// Deleted rules that are not unlinked yet, above which messages from the sender of further changes
/// are not read.
pub(super) const BACKLOG: usize = 64 << 10;
/// Longest time that such a sender is held: workers that delay unlinking for longer do not block
/// controllers.
const HELD: Duration = Duration::from_millis(200);
/// Longest wait for the cleanup after a long change.
const RECLAIM_LIMIT: Duration = Duration::from_secs(10);
/// Most requests that wait for a change to end.
const REQUESTS_MAX: usize = 1024;

static LONG: Counter = Counter::new("ofproto_long_change");
static SLICES: Counter = Counter::new("ofproto_slice");
static REQUEST_LOST: Counter = Counter::new("ofproto_learn_busy");
static HELD_BACK: Counter = Counter::new("openflow_held_for_reclaim");

type Later = Box<dyn FnOnce(&Bridge)>;

/// State of a bridge's changes in slices.
#[derive(Default)]
pub(super) struct Changing {
    busy: Cell<bool>,
    idle: Rc<Notify>,
    /// Actions to run afterwards, in order. Apart from learn requests there is one for each change
    /// of the configuration.
    later: RefCell<VecDeque<Later>>,
    requests: Cell<usize>,
    /// Whether the last change has deleted rules.
    ended: Cell<bool>,
}

/// Timer that cuts work into slices.
pub(super) struct Pace {
    begun: Instant,
}

impl Pace {
    pub fn new() -> Pace {
        Pace {
            begun: Instant::now(),
        }
    }

    /// Yields to other tasks if the slice has used up its time.
    pub async fn step(&mut self) {
        if self.begun.elapsed() >= SLICE {
            SLICES.increment();
            tokio::task::yield_now().await;
            self.begun = Instant::now();
        }
    }
}

impl Switch {
    /// Frees what no worker can see any more, in slices.
    pub async fn collect(&self) {
        let mut before = usize::MAX;
        loop {
            let left = self.program.domain.collect_some(RECLAIMED);
            if left == 0 || left >= before {
                return;
            }
            before = left;
            tokio::task::yield_now().await;
        }
    }

    /// Removes all rules whose timeouts have expired, in slices.
    pub async fn expire(&self) {
        let now = self.now();
        let bridges: Vec<Rc<Bridge>> = self.bridges.borrow().values().cloned().collect();
        for bridge in bridges {
            let Some(mut done) = bridge.expire_due(now).await else {
                continue;
            };
            // Other bridges' timeouts do not wait for that.
            turns::spawn("timeouts", async move {
                loop {
                    // It cannot fail.
                    let _ = done.await;
                    let now = bridge.switch().now();
                    match bridge.expire_due(now).await {
                        Some(next) => done = next,
                        None => break,
                    }
                }
            });
        }
    }
}

/// What a call of [`Bridge::expire`] leaves to be done.
enum Expired {
    /// Nothing.
    All,
    /// More rules are due.
    Some,
    /// The rules that expired ones had learned are being deleted.
    Goes(LocalFuture<Result<(), Error>>),
}

impl Bridge {
    /// Returns whether the bridge's rules are being changed in slices; nobody else may change them
    /// then.
    pub fn is_busy(&self) -> bool {
        self.changing.busy.get()
    }

    /// Returns a future that ends when no change in slices is running; None if none is running now.
    pub(super) fn idle(&self) -> Option<LocalFuture<()>> {
        if !self.is_busy() {
            return None;
        }
        let idle = Rc::clone(&self.changing.idle);
        // There is no await between the call and the first poll, so no notification is lost.
        Some(Box::pin(async move { idle.notified().await }))
    }

    /// Runs `act` on the bridge, now or when the present change in slices has ended.
    pub fn when_idle(&self, act: impl FnOnce(&Bridge) + 'static) {
        if self.is_busy() {
            self.changing.later.borrow_mut().push_back(Box::new(act));
        } else {
            act(self);
        }
    }

    /// Runs a packet's request as [`Bridge::when_idle`] does; returns false when too many wait.
    pub(super) fn request_when_idle(&self, act: impl FnOnce(&Bridge) + 'static) -> bool {
        let waiting = &self.changing.requests;
        if self.is_busy() && waiting.get() >= REQUESTS_MAX {
            REQUEST_LOST.increment();
            return false;
        }
        waiting.set(waiting.get() + 1);
        self.when_idle(move |bridge| {
            let waiting = &bridge.changing.requests;
            waiting.set(waiting.get() - 1);
            act(bridge);
        });
        true
    }

    /// Starts a task that changes rules in slices. Dropping the returned future does not end the
    /// task.
    pub(super) fn change_slowly<T: 'static, F: Future<Output = T> + 'static>(
        &self,
        act: impl FnOnce(Rc<Bridge>) -> F,
    ) -> LocalFuture<T> {
        LONG.increment();
        let Some(me) = self.me.upgrade() else {
            // The bridge is being dropped, and its rules with it.
            return Box::pin(std::future::pending());
        };
        self.changing.busy.set(true);
        let work = act(Rc::clone(&me));
        let task = turns::spawn("long change", async move {
            let done = work.await;
            me.report_slowly().await;
            me.end_change();
            // The requester need not wait for the cleanup.
            turns::spawn("reclaim", async move { me.reclaim().await });
            done
        });
        Box::pin(async move {
            match task.await {
                Ok(done) => done,
                Err(error) => match error.try_into_panic() {
                    Ok(panic) => std::panic::resume_unwind(panic),
                    // The process is ending.
                    Err(_) => std::future::pending().await,
                },
            }
        })
    }

    fn end_change(&self) {
        self.changing.busy.set(false);
        while !self.is_busy() {
            let Some(next) = self.changing.later.borrow_mut().pop_front() else {
                break;
            };
            next(self);
        }
        // Waiters continue in the order in which they came.
        if !self.is_busy() {
            self.changing.idle.notify_waiters();
        }
    }

    /// Carries out a flow mod: at once, or in slices if it may affect many rules.
    pub(super) fn change_flows(
        &self,
        change: &FlowMod,
        version: Version,
    ) -> Result<Option<LocalFuture<Result<(), Error>>>, Error> {
        let now = self.switch().now();
        let begun = {
            let mut pipeline = self.pipeline.borrow_mut();
            let before = pipeline.waiting();
            let begun = pipeline.begin_flow_mod(change, version, now, AT_ONCE)?;
            self.changing.ended.set(pipeline.waiting() > before);
            begun
        };
        Ok(self.go_on(begun))
    }

    /// Tells what a change has done, or starts a task that ends it.
    fn go_on(&self, begun: Begun<'static>) -> Option<LocalFuture<Result<(), Error>>> {
        match begun {
            Begun::Done(outcome) => {
                self.tell_removed(outcome.removed);
                None
            }
            Begun::Long(sweep) => Some(self.sweep_slowly(*sweep)),
        }
    }

    /// Changes groups: at once, or in slices if many rules use those to be deleted.
    pub(super) fn change_groups(
        &self,
        change: &GroupMod,
        version: Version,
    ) -> Result<Option<LocalFuture<Result<(), Error>>>, Error> {
        let now = self.switch().now();
        let mut pipeline = self.pipeline.borrow_mut();
        let begun = pipeline.begin_group_mod(change, version, now, AT_ONCE)?;
        drop(pipeline);
        Ok(self.go_on(begun))
    }

    /// Changes meters: at once, or in slices if many rules use those to be deleted, or must be
    /// searched.
    pub(super) fn change_meters(
        &self,
        change: &MeterMod,
    ) -> Result<Option<LocalFuture<Result<(), Error>>>, Error> {
        let now = self.switch().now();
        let begun = (self.pipeline.borrow_mut()).begin_meter_mod(change, now, AT_ONCE)?;
        Ok(self.go_on(begun))
    }

    /// Starts a task that ends a change of many rules.
    fn sweep_slowly(&self, sweep: Sweep<'static>) -> LocalFuture<Result<(), Error>> {
        if sweep.has_changed() {
            self.publish();
        }
        self.change_slowly(|bridge| async move { bridge.sweep(sweep).await })
    }

    /// Deletes every rule, in slices if there are many. Other changes wait for that
    /// ([`Bridge::when_idle`]).
    pub(super) fn flush(&self) {
        let now = self.switch().now();
        if self.pipeline.borrow().rule_count() <= AT_ONCE {
            let outcome = self.pipeline.borrow_mut().flush(now);
            self.tell_removed(outcome.removed);
            return;
        }
        let sweep = self.pipeline.borrow_mut().begin_flush();
        // A flush cannot be refused.
        drop(self.sweep_slowly(sweep));
    }

    /// Carries out a modify or delete of many rules.
    async fn sweep(&self, mut sweep: Sweep<'static>) -> Result<(), Error> {
        let switch = self.switch();
        let now = switch.now();
        let mut pace = Pace::new();
        loop {
            let found = self.pipeline.borrow_mut().seek(&mut sweep, STEP)?;
            if found {
                break;
            }
            pace.step().await;
        }
        let mut outcome = FlowModOutcome::default();
        if self.pipeline.borrow().is_short(&sweep, AT_ONCE) {
            // There were only many rules to search, but few to change.
            self.pipeline
                .borrow_mut()
                .apply(&mut sweep, usize::MAX, &mut outcome, now)?;
            self.publish();
            self.send_removed(outcome.removed);
            return Ok(());
        }
        {
            let _turn = self.reserve().await;
            self.pipeline.borrow().end_first(&mut sweep);
            loop {
                let applied = self
                    .pipeline
                    .borrow_mut()
                    .apply(&mut sweep, STEP, &mut outcome, now);
                // An error can only come from adding a rule because none matched, but some have
                // matched.
                if applied.unwrap_or(true) {
                    break;
                }
                pace.step().await;
            }
            self.publish_reserved();
        }
        self.send_removed_slowly(outcome.removed, &mut pace).await;
        loop {
            let mut outcome = FlowModOutcome::default();
            let settled = self
                .pipeline
                .borrow_mut()
                .settle(&mut sweep, TOLD, &mut outcome, now);
            self.send_removed(outcome.removed);
            if settled {
                break;
            }
            pace.step().await;
        }
        // Publish, so that their counters are given back.
        self.publish();
        Ok(())
    }

    /// Waits for the reserved epoch; changes carry it from then on, until
    /// [`Bridge::publish_reserved`].
    pub(super) async fn reserve(&self) -> tokio::sync::OwnedMutexGuard<()> {
        let switch = self.switch();
        let turn = Arc::clone(&switch.reservation).lock_owned().await;
        let reserved = switch.program.domain.reserve();
        debug_assert!(reserved.is_some(), "somebody reserves without the turn");
        self.pipeline.borrow_mut().change_in(reserved);
        turn
    }

    /// Makes all changes under the reserved epoch visible at once.
    pub(super) fn publish_reserved(&self) {
        let switch = self.switch();
        {
            let mut pipeline = self.pipeline.borrow_mut();
            pipeline.change_in(None);
            pipeline.commit();
        }
        switch.program.domain.publish_reserved();
        switch.rules_changed.notify_one();
    }

    /// Sends flow-removed messages; flow monitors are told at the end of the change.
    pub(super) fn send_removed(&self, removed: Vec<FlowRemoved>) {
        if let Some(openflow) = self.openflow.get() {
            openflow.flows_removed(&removed);
        }
    }

    pub(super) async fn send_removed_slowly(&self, removed: Vec<FlowRemoved>, pace: &mut Pace) {
        let mut removed = removed.into_iter();
        while removed.len() > 0 {
            self.send_removed(removed.by_ref().take(TOLD).collect());
            pace.step().await;
        }
    }

    /// Reports all changes to flow monitors.
    async fn report_slowly(&self) {
        let mut pace = Pace::new();
        while let Some(openflow) = self.openflow.get()
            && openflow.report_slow_changes(TOLD)
        {
            pace.step().await;
        }
    }

    /// Removes all rules whose timeouts have expired, in slices, unless others change rules. If
    /// rules go that these had learned, returns a future for the end of that; more may be due then.
    async fn expire_due(&self, now: pipeline::Clock) -> Option<LocalFuture<Result<(), Error>>> {
        let mut changed = 0;
        while !self.is_busy() {
            match self.expire(now, &mut changed) {
                Expired::All => break,
                Expired::Some => tokio::task::yield_now().await,
                Expired::Goes(done) => return Some(done),
            }
        }
        if changed > AT_ONCE {
            self.reclaim().await;
        }
        None
    }

    /// Removes some expired rules, and publishes that.
    fn expire(&self, now: pipeline::Clock, changed: &mut usize) -> Expired {
        let begun = self.pipeline.borrow_mut().begin_expire(now);
        let outcome = match begun {
            Begun::Done(outcome) => outcome,
            Begun::Long(sweep) => return Expired::Goes(self.sweep_slowly(*sweep)),
        };
        let next = self.pipeline.borrow().next_deadline();
        let more = next.is_some_and(|next| next <= now);
        if outcome.changed > 0 {
            *changed += outcome.changed;
            self.publish();
        }
        self.tell_removed(outcome.removed);
        if more { Expired::Some } else { Expired::All }
    }

    /// Unlinks and frees deleted rules until none is left, or until workers have held them for too
    /// long.
    pub(super) async fn reclaim(&self) {
        self.reclaim_to(0, RECLAIM_LIMIT).await;
    }

    /// Frees deleted rules for a sender whose changes come faster than that is done: until half of
    /// [`BACKLOG`] is left, or [`HELD`] has passed. None if the sender may go on at once.
    pub(super) fn make_up(&self) -> Option<LocalFuture<()>> {
        let ended = self.changing.ended.replace(false);
        if !ended || self.pipeline.borrow().waiting() <= BACKLOG {
            return None;
        }
        HELD_BACK.increment();
        let me = self.me.upgrade()?;
        Some(Box::pin(async move {
            me.reclaim_to(BACKLOG / 2, HELD).await;
        }))
    }

    async fn reclaim_to(&self, few: usize, limit: Duration) {
        let switch = self.switch();
        let begun = Instant::now();
        while self.pipeline.borrow().waiting() > few && begun.elapsed() < limit {
            // Deleted rules may only be waiting for this publication.
            switch.program.domain.publish();
            let unlinked = self.pipeline.borrow_mut().housekeep(RECLAIMED);
            switch.program.domain.publish();
            switch.program.domain.collect_some(RECLAIMED);
            if unlinked == 0 {
                tokio::time::sleep(Duration::from_millis(1)).await;
            } else {
                tokio::task::yield_now().await;
            }
        }
        switch.rules_changed.notify_one();
        switch.collect().await;
    }

    /// Deletes the remaining rules of a bridge that has been removed, before it is dropped.
    pub(super) fn bury(self: Rc<Self>) {
        if self.pipeline.borrow().rule_count() <= AT_ONCE {
            return;
        }
        turns::spawn("bury", async move {
            while let Some(idle) = self.idle() {
                idle.await;
            }
            self.flush();
            while let Some(idle) = self.idle() {
                idle.await;
            }
            self.reclaim().await;
        });
    }
}
