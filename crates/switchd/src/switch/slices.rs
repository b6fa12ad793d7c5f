//! Changes of many rules, in slices: what takes long goes on a little at a time, so that
//! controllers' echo requests, packet-ins and other bridges are served meanwhile.
//!
//! One such change at a time goes on in a bridge. It is a task of its own, which ends whatever
//! becomes of the connection that asked for it. From its beginning to its end nobody else changes
//! the bridge's rules or looks at them: messages that would wait (`openflow::Switch::busy`), and
//! what the switch itself wants to change comes afterwards ([`Bridge::when_idle`]). So others find
//! the rules as they were before or as they are after.
//!
//! Packets meet all of a change at once: what is prepared carries an epoch that is reserved
//! ([`program::epoch::Domain::reserve`]), of which there is one for all bridges, so of several
//! bridges' long changes one goes on after the other. Changes of few rules need none, and wait for
//! none.

use super::{Bridge, Switch};
use crate::coverage::Counter;
use crate::openflow::LocalFuture;
use openflow::Error;
use openflow::Version;
use openflow::flow::{FlowMod, FlowRemoved};
use pipeline::{Begun, FlowModOutcome, Sweep};
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::Future;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::Notify;

/// Rules that a change may look at or change without being cut into slices: well below a
/// millisecond's work.
pub(super) const AT_ONCE: usize = 512;
/// Rules of one step of a slice, after which it is looked whether the slice is over.
pub(super) const STEP: usize = 64;
/// How long a slice takes.
const SLICE: Duration = Duration::from_millis(2);
/// Rules that are taken out together, and told of together.
const TOLD: usize = 256;
/// Rules that are unlinked, and things that are freed, in one slice.
const RECLAIMED: usize = 2048;
/// Rules that have ended and are not unlinked yet; while there are more, who sends more changes is
/// read no further.
pub(super) const BACKLOG: usize = 64 << 10;
/// How long one who sends changes is held for that at most: workers that hold rules back for longer
/// do not stop controllers.
const HELD: Duration = Duration::from_millis(200);
/// How long what a long change has left is waited for.
const RECLAIM_LIMIT: Duration = Duration::from_secs(10);
/// Requests that may wait for a change to end.
const REQUESTS_MAX: usize = 1024;

static LONG: Counter = Counter::new("ofproto_long_change");
static SLICES: Counter = Counter::new("ofproto_slice");
static REQUEST_LOST: Counter = Counter::new("ofproto_learn_busy");
static HELD_BACK: Counter = Counter::new("openflow_held_for_reclaim");

type Later = Box<dyn FnOnce(&Bridge)>;

/// Whether a bridge's rules are being changed in slices.
#[derive(Default)]
pub(super) struct Changing {
    busy: Cell<bool>,
    idle: Rc<Notify>,
    /// What is to be done when they are not, in order. But for requests, one for each change of the
    /// configuration.
    later: RefCell<VecDeque<Later>>,
    requests: Cell<usize>,
    /// Whether the change made last has ended rules.
    ended: Cell<bool>,
}

/// Cuts work into slices.
pub(super) struct Pace {
    begun: Instant,
}

impl Pace {
    pub fn new() -> Pace {
        Pace {
            begun: Instant::now(),
        }
    }

    /// Lets others have their turn when the slice has taken its time.
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

    /// Removes the rules whose time has come, in slices: all that are due now.
    pub async fn expire(&self) {
        let now = self.now();
        let bridges: Vec<Rc<Bridge>> = self.bridges.borrow().values().cloned().collect();
        for bridge in bridges {
            let mut changed = 0;
            while !bridge.is_busy() && bridge.expire(now, &mut changed) {
                tokio::task::yield_now().await;
            }
            if changed > AT_ONCE {
                bridge.reclaim().await;
            }
        }
    }
}

impl Bridge {
    /// Whether its rules are being changed in slices: nobody else changes them then.
    pub fn is_busy(&self) -> bool {
        self.changing.busy.get()
    }

    /// Done when they are not; None when they are not now.
    pub(super) fn idle(&self) -> Option<LocalFuture<()>> {
        if !self.is_busy() {
            return None;
        }
        let idle = Rc::clone(&self.changing.idle);
        // No await lies between the call and the first look, so no notice is lost.
        Some(Box::pin(async move { idle.notified().await }))
    }

    /// Does something to the rules, now or when a change that goes on in slices has ended.
    pub fn when_idle(&self, act: impl FnOnce(&Bridge) + 'static) {
        if self.is_busy() {
            self.changing.later.borrow_mut().push_back(Box::new(act));
        } else {
            act(self);
        }
    }

    /// Likewise, for what packets ask for; false when too many wait.
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

    /// Begins a task that changes rules in slices. Dropping what this returns does not end it.
    pub(super) fn change_slowly<T: 'static, F: Future<Output = T> + 'static>(
        &self,
        act: impl FnOnce(Rc<Bridge>) -> F,
    ) -> LocalFuture<T> {
        LONG.increment();
        let Some(me) = self.me.upgrade() else {
            // It is going, and its rules with it.
            return Box::pin(std::future::pending());
        };
        self.changing.busy.set(true);
        let work = act(Rc::clone(&me));
        let task = tokio::task::spawn_local(async move {
            let done = work.await;
            me.report_slowly().await;
            me.end_change();
            // Whoever asked need not wait for this.
            tokio::task::spawn_local(async move { me.reclaim().await });
            done
        });
        Box::pin(async move {
            match task.await {
                Ok(done) => done,
                Err(error) => match error.try_into_panic() {
                    Ok(panic) => std::panic::resume_unwind(panic),
                    // The process ends.
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
        // Those that waited go on in the order in which they came.
        if !self.is_busy() {
            self.changing.idle.notify_waiters();
        }
    }

    /// Carries out a flow mod: at once, or in slices where it may mean many rules.
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
        match begun {
            Begun::Done(outcome) => {
                self.tell_removed(outcome.removed);
                Ok(None)
            }
            Begun::Long(sweep) => {
                Ok(Some(self.change_slowly(|bridge| async move {
                    bridge.sweep(*sweep).await
                })))
            }
        }
    }

    /// Removes every rule, in slices where there are many. What else is to be done to the rules
    /// waits for it ([`Bridge::when_idle`]).
    pub(super) fn flush(&self) {
        let now = self.switch().now();
        if self.pipeline.borrow().rule_count() <= AT_ONCE {
            let outcome = self.pipeline.borrow_mut().flush(now);
            self.tell_removed(outcome.removed);
            return;
        }
        let sweep = self.pipeline.borrow_mut().begin_flush();
        // A flush is refused by nothing.
        drop(self.change_slowly(|bridge| async move { bridge.sweep(sweep).await }));
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
        if sweep.found() <= AT_ONCE {
            // They were only hard to find.
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
                // An error is that of a rule which is added where none is found, and some have been
                // found.
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
        // Their counters are given back.
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

    /// Makes all that carries the reserved epoch visible at once.
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

    /// Tells controllers of rules that have gone; flow monitors are told in the end.
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

    /// Tells flow monitors of all that has changed.
    async fn report_slowly(&self) {
        let mut pace = Pace::new();
        while let Some(openflow) = self.openflow.get()
            && openflow.report_slow_changes(TOLD)
        {
            pace.step().await;
        }
    }

    /// Removes some rules whose time has come, and publishes that; true when more may be due.
    fn expire(&self, now: pipeline::Clock, changed: &mut usize) -> bool {
        let (outcome, more) = {
            let mut pipeline = self.pipeline.borrow_mut();
            let outcome = pipeline.expire(now);
            let more = pipeline.next_deadline().is_some_and(|next| next <= now);
            (outcome, more)
        };
        if outcome.changed > 0 {
            *changed += outcome.changed;
            self.publish();
        }
        self.tell_removed(outcome.removed);
        more
    }

    /// Unlinks and frees what rules that have gone have left, until nothing is left or workers hold
    /// it for too long.
    pub(super) async fn reclaim(&self) {
        self.reclaim_to(0, RECLAIM_LIMIT).await;
    }

    /// Likewise, for one who sends changes faster than what they leave is freed: until few enough
    /// wait.
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
            // What has ended may wait for its publication only.
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

    /// Removes what rules are left of a bridge that is gone, before it is dropped.
    pub(super) fn bury(self: Rc<Self>) {
        if self.pipeline.borrow().rule_count() <= AT_ONCE {
            return;
        }
        tokio::task::spawn_local(async move {
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
