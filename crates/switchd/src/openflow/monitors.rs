//! Flow monitors: who is told of which changes of the flow tables, and what happens when one does
//! not read.
//!
//! The hub takes the changes from the switch after each message and gives them to every connection
//! that has monitors, where they wait in a list that all share until they have been told, a page at
//! a time ([`RuleChange::page`]). When more than [`PAUSE_LIMIT`] bytes of updates wait for a
//! connection it is told that its monitors pause; from the next page on it gets only the removals
//! of what it knows of. When everything has been written it is told what it missed, and that
//! the monitors go on (Open vSwitch's way; OpenFlow 1.4 section 7.4.8 of `OFPFME_PAUSED`).
//!
//! Rules that are there already (of a new monitor, or after a pause) are told in slices, between
//! which others are served and rules change. What has been told is noted by the rules' numbers
//! ([`Telling`]), so that changes in between come out as if all had been told at once.

use super::hub::Hub;
use super::session::Session;
use openflow::message::{Message, MultipartReply};
use openflow::monitor::{
    FlowUpdate, MonitorCommand, MonitorFlags, MonitorRequest, RuleUpdate, UpdateEvent, pause,
};
use openflow::steering::with_notes;
use openflow::{Error, encode, encode_multipart};
use pipeline::{RuleChange, SeenRule};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashSet, VecDeque};
use std::rc::Rc;
use std::sync::Arc;
use tokio::sync::Notify;

/// Bytes of updates that may wait before monitors pause.
const PAUSE_LIMIT: usize = 128 << 10;
/// Changes that may wait to be told to one connection; more close it.
const MOST_CHANGES: usize = 2 << 20;
/// Monitors that one connection may have.
const MAX_MONITORS: usize = 128;
/// Rules looked at before others have their turn.
const SLICE: usize = 512;

static PAUSES: crate::coverage::Counter = crate::coverage::Counter::new("ofmonitor_pause");
static RESUMES: crate::coverage::Counter = crate::coverage::Counter::new("ofmonitor_resume");

type ById = BTreeMap<u32, MonitorRequest>;

/// The monitors of one connection.
#[derive(Default)]
pub(super) struct Monitors {
    by_id: RefCell<Rc<ById>>,
    /// The page from which on changes are not told.
    paused: Cell<Option<u32>>,
    /// Changes that are still to be told, in order.
    waiting: RefCell<VecDeque<Waiting>>,
    /// How many there are.
    left: Cell<usize>,
    /// The message of this connection that was told of in short last, of those that were carried
    /// out in slices.
    told_short: Cell<Option<u32>>,
    /// The page of which changes were told last.
    last_page: Cell<Option<u32>>,
    /// Rules that are being told because they are there.
    telling: RefCell<Option<Telling>>,
    /// Told when nothing is left to be told.
    idle: Notify,
}

/// Changes that one message made.
struct Waiting {
    changes: Rc<Vec<RuleChange>>,
    /// How many have been dealt with.
    done: usize,
    /// The transaction id of the message, if it was this connection's, and whether it has been
    /// told in short.
    own: Option<u32>,
    abbreviated: bool,
    /// Whether they are a part of those that the message made.
    partial: bool,
    /// The monitors that there were when the changes were made.
    monitors: Rc<ById>,
}

/// Rules that are being told because they are there.
struct Telling {
    /// The page from which on changes have been missed; None when monitors begin.
    missed_from: Option<u32>,
    /// The monitors that begin.
    begun: HashSet<u32>,
    /// Numbers of the rules that have been told, as bits.
    told: Vec<u64>,
}

impl Telling {
    fn is_told(&self, rule: u32) -> bool {
        self.told
            .get(rule as usize / 64)
            .is_some_and(|bits| bits >> (rule % 64) & 1 == 1)
    }

    /// Notes that a rule has been told, or that its number is free.
    fn note(&mut self, rule: u32, told: bool) {
        let place = rule as usize / 64;
        if place >= self.told.len() {
            self.told.resize(place + 1, 0);
        }
        if self.is_told(rule) != told {
            self.told[place] ^= 1 << (rule % 64);
        }
    }

    /// As what a change is to be told, if it is: of what the connection does not know yet nothing
    /// is taken away, and what has changed before its turn came is told now.
    fn event(&self, change: &RuleChange, monitors: &ById) -> Option<UpdateEvent> {
        let event = change.update.event;
        if matches!(event, UpdateEvent::Added) || self.is_told(change.rule) {
            return Some(event);
        }
        let removed = matches!(event, UpdateEvent::Removed(_));
        let Some(from) = self.missed_from else {
            let known = monitors.iter().any(|(id, monitor)| {
                !self.begun.contains(id)
                    && monitor.flags.contains(wanted_by(event))
                    && change.concerns(monitor)
            });
            return match (known, removed) {
                (true, _) => Some(event),
                (false, true) => None,
                (false, false) => Some(UpdateEvent::Initial),
            };
        };
        match (change.added_page >= from, removed) {
            (false, _) => Some(event),
            (true, true) => None,
            (true, false) => Some(UpdateEvent::Added),
        }
    }
}

impl Monitors {
    pub(super) fn is_empty(&self) -> bool {
        self.by_id.borrow().is_empty()
    }

    /// Whether something has been missed or is still to be told.
    fn is_behind(&self) -> bool {
        self.paused.get().is_some()
            || self.telling.borrow().is_some()
            || !self.waiting.borrow().is_empty()
    }
}

fn wanted_by(event: UpdateEvent) -> MonitorFlags {
    match event {
        UpdateEvent::Initial => MonitorFlags::INITIAL,
        UpdateEvent::Added => MonitorFlags::ADD,
        UpdateEvent::Removed(_) => MonitorFlags::REMOVED,
        UpdateEvent::Modified => MonitorFlags::MODIFY,
    }
}

/// Whether a change is told although the connection's monitors have paused at a page: a rule went
/// that it knows of.
fn is_told_in_pause(change: &RuleChange, paused: u32) -> bool {
    change.page < paused
        || matches!(change.update.event, UpdateEvent::Removed(_)) && change.added_page < paused
}

/// An update as an event, with or without what the rule does.
/// Peers that do not know steering are told notes in place of what they would not understand.
fn shown(update: &RuleUpdate, event: UpdateEvent, flags: MonitorFlags, plain: bool) -> FlowUpdate {
    let mut update = update.clone();
    update.event = event;
    if !flags.contains(MonitorFlags::INSTRUCTIONS) {
        update.instructions = Arc::from([]);
    } else if let Some(instructions) = plain.then(|| with_notes(&update.instructions)).flatten() {
        update.instructions = instructions.into();
    }
    FlowUpdate::Rule(update)
}

impl Session {
    /// Sets monitors up, changes or ends them, all or none, and answers with the rules that are
    /// there. One connection cannot be told of a rule twice: what several monitors let through
    /// comes once, with what any of them wants.
    pub(super) async fn monitor(
        &self,
        hub: &Hub,
        xid: u32,
        requests: &[MonitorRequest],
    ) -> Result<(), Error> {
        while self.monitors.is_behind() {
            self.monitors.idle.notified().await;
        }
        let begun = self.change_monitors(hub, requests)?;
        let Some(last) = begun.last().map(|monitor| monitor.id) else {
            self.send_updates(Some(xid), Vec::new(), false);
            return Ok(());
        };
        let ids = begun.iter().map(|monitor| monitor.id).collect();
        self.begin_telling(hub, None, ids);
        let flags = begun.iter().fold(MonitorFlags::empty(), |flags, monitor| {
            flags | monitor.flags
        });
        for monitor in &begun {
            let take = |seen: &SeenRule| Some((seen.update.event, flags));
            let answer = (xid, monitor.id != last);
            self.tell_rules(hub, Some(answer), monitor, &take).await;
        }
        self.monitors.telling.replace(None);
        self.monitors.idle.notify_waiters();
        Ok(())
    }

    /// Begins to tell of rules that are there. What is noted on earlier pages counts as told with
    /// them.
    fn begin_telling(&self, hub: &Hub, missed_from: Option<u32>, begun: HashSet<u32>) {
        hub.switch().begin_page();
        self.monitors.telling.replace(Some(Telling {
            missed_from,
            begun,
            told: Vec::new(),
        }));
    }

    /// Changes the set of monitors; returns those of the request whose rules are to be told, each
    /// once, as it is in the end: a message may name one thousands of times.
    fn change_monitors(
        &self,
        hub: &Hub,
        requests: &[MonitorRequest],
    ) -> Result<Vec<MonitorRequest>, Error> {
        let mut monitors = ById::clone(&self.monitors.by_id.borrow());
        for request in requests {
            let known = monitors.contains_key(&request.id);
            match request.command {
                MonitorCommand::Add if known => return Err(Error::MonitorExists),
                MonitorCommand::Add if monitors.len() >= MAX_MONITORS => {
                    return Err(Error::MonitorUnknown);
                }
                MonitorCommand::Modify | MonitorCommand::Delete if !known => {
                    return Err(Error::UnknownMonitor);
                }
                MonitorCommand::Delete => {
                    monitors.remove(&request.id);
                }
                MonitorCommand::Add | MonitorCommand::Modify => {
                    monitors.insert(request.id, request.clone());
                }
            }
        }
        let mut named = HashSet::new();
        let begun = requests
            .iter()
            .filter(|request| named.insert(request.id))
            .filter_map(|request| monitors.get(&request.id).cloned())
            .filter(|monitor| monitor.flags.contains(MonitorFlags::INITIAL))
            .collect();
        self.monitors.by_id.replace(Rc::new(monitors));
        hub.tell_watched();
        Ok(begun)
    }

    /// Ends a monitor (before 1.4).
    pub(super) fn cancel_monitor(&self, hub: &Hub, id: u32) -> Result<(), Error> {
        let ended = Rc::make_mut(&mut self.monitors.by_id.borrow_mut()).remove(&id);
        hub.tell_watched();
        ended.map(|_| ()).ok_or(Error::UnknownMonitor)
    }

    /// Tells of the rules that a monitor's filters let through, each once, as `take` says: as what,
    /// and with what of it. `answer`: the transaction id of the request that this answers, and
    /// whether the answer goes on behind it.
    async fn tell_rules(
        &self,
        hub: &Hub,
        answer: Option<(u32, bool)>,
        monitor: &MonitorRequest,
        take: &dyn Fn(&SeenRule) -> Option<(UpdateEvent, MonitorFlags)>,
    ) {
        let mut rules = hub.switch().watched(monitor);
        let mut ended = false;
        while !ended {
            hub.idle().await;
            let mut updates = Vec::new();
            {
                let mut telling = self.monitors.telling.borrow_mut();
                let Some(telling) = &mut *telling else { return };
                ended = rules.next(SLICE, &mut |seen| {
                    if !telling.is_told(seen.rule)
                        && let Some((event, flags)) = take(&seen)
                    {
                        telling.note(seen.rule, true);
                        updates.push(shown(
                            &seen.update,
                            event,
                            flags,
                            !self.knows_steering.get(),
                        ));
                    }
                });
            }
            let more = answer.is_some_and(|(_, goes_on)| goes_on || !ended);
            if !updates.is_empty() || answer.is_some() && !more {
                self.send_updates(answer.map(|(xid, _)| xid), updates, more);
            }
            // Changes of the rules that have been told go before those that come next.
            loop {
                self.outbox.room().await;
                tokio::task::yield_now().await;
                if self.tell_waiting(hub) {
                    break;
                }
            }
        }
    }

    /// Tells of changes. `own`: the transaction id of this connection's message that made them, if
    /// it did. `partial`: they are some of those that it made.
    pub(super) fn tell_changes(
        &self,
        hub: &Hub,
        changes: &Rc<Vec<RuleChange>>,
        own: Option<u32>,
        partial: bool,
    ) {
        if self.monitors.is_empty() {
            return;
        }
        let changes = match self.monitors.paused.get() {
            // Most of them need not be kept.
            Some(page) => {
                let told = changes
                    .iter()
                    .filter(|change| is_told_in_pause(change, page));
                Rc::new(told.cloned().collect())
            }
            None => Rc::clone(changes),
        };
        self.monitors
            .left
            .set(self.monitors.left.get() + changes.len());
        self.monitors.waiting.borrow_mut().push_back(Waiting {
            changes,
            done: 0,
            own,
            abbreviated: false,
            partial,
            monitors: Rc::clone(&self.monitors.by_id.borrow()),
        });
        if !self.tell_waiting(hub) && self.monitors.left.get() > MOST_CHANGES {
            self.outbox.overflow();
        }
    }

    /// Tells of changes that wait, as long as there is room; whether none is left.
    fn tell_waiting(&self, hub: &Hub) -> bool {
        let mut all = self.monitors.waiting.borrow_mut();
        while let Some(first) = all.front_mut() {
            let Some(page) = first.changes.get(first.done).map(|change| change.page) else {
                all.pop_front();
                continue;
            };
            // Of a page some of which has been told all must be.
            if self.monitors.last_page.get() != Some(page) && self.is_too_slow() {
                self.pause_monitors(page);
            }
            if !self.outbox.has_room() {
                return false;
            }
            self.monitors.last_page.set(Some(page));
            let before = first.done;
            let updates = self.updates_of_page(first, page);
            let done = first.done - before;
            self.monitors.left.set(self.monitors.left.get() - done);
            if !updates.is_empty() {
                self.send_updates(None, updates, false);
            }
        }
        drop(all);
        if self.is_too_slow() {
            self.pause_monitors(hub.switch().begin_page());
        }
        if !self.monitors.is_behind() {
            self.monitors.idle.notify_waiters();
        }
        true
    }

    /// Whether so much waits that the monitors are to pause. They do not while rules are being
    /// told, which waits for the peer by itself.
    fn is_too_slow(&self) -> bool {
        self.monitors.paused.get().is_none()
            && self.monitors.telling.borrow().is_none()
            && self.outbox.update_bytes() > PAUSE_LIMIT
    }

    fn pause_monitors(&self, page: u32) {
        PAUSES.increment();
        self.monitors.paused.set(Some(page));
        self.outbox
            .send_update(encode(self.version, 0, &pause(self.version, false)));
    }

    /// What is told of the changes of a page.
    fn updates_of_page(&self, waiting: &mut Waiting, page: u32) -> Vec<FlowUpdate> {
        let paused = self.monitors.paused.get();
        let mut telling = self.monitors.telling.borrow_mut();
        let mut updates = Vec::new();
        let changes = waiting.changes[waiting.done..].iter();
        for change in changes.take_while(|change| change.page == page) {
            waiting.done += 1;
            if paused.is_some_and(|paused| !is_told_in_pause(change, paused)) {
                continue;
            }
            let event = match &*telling {
                Some(telling) => telling.event(change, &waiting.monitors),
                None => Some(change.update.event),
            };
            let removed = matches!(change.update.event, UpdateEvent::Removed(_));
            if let Some(telling) = &mut *telling
                && removed
            {
                // Another rule may get its number.
                telling.note(change.rule, false);
            }
            let Some(event) = event else { continue };
            let flags = waiting
                .monitors
                .values()
                .filter(|monitor| monitor.flags.contains(wanted_by(event)))
                .filter(|monitor| change.concerns(monitor))
                .fold(MonitorFlags::empty(), |flags, monitor| {
                    flags | monitor.flags
                });
            if flags.is_empty() {
                continue;
            }
            if let Some(telling) = &mut *telling
                && !removed
            {
                telling.note(change.rule, true);
            }
            match waiting.own {
                Some(xid) if !flags.own_in_full() && paused.is_none() => {
                    let short = std::mem::replace(&mut waiting.abbreviated, true)
                        || waiting.partial
                            && self.monitors.told_short.replace(Some(xid)) == Some(xid);
                    if !short {
                        updates.push(FlowUpdate::Abbreviated(xid));
                    }
                }
                _ => updates.push(shown(
                    &change.update,
                    event,
                    flags,
                    !self.knows_steering.get(),
                )),
            }
        }
        updates
    }

    /// Sends updates, as part of the answer to a request or unasked.
    fn send_updates(&self, answer: Option<u32>, updates: Vec<FlowUpdate>, more: bool) {
        let reply = MultipartReply::FlowMonitor(updates);
        for part in encode_multipart(self.version, answer.unwrap_or(0), &reply, more) {
            if answer.is_some() {
                self.outbox.send(part);
            } else {
                self.outbox.send_update(part);
            }
        }
    }

    /// Goes on telling as the peer reads, as long as the connection lives.
    pub(super) async fn follow_monitors(&self, hub: &Hub) -> std::convert::Infallible {
        loop {
            self.outbox.progress().await;
            let all_told = self.tell_waiting(hub);
            if all_told && self.monitors.paused.get().is_some() && self.outbox.update_bytes() == 0 {
                self.tell_missed(hub).await;
            }
        }
    }

    /// Tells what was missed in a pause, once everything before has been written.
    async fn tell_missed(&self, hub: &Hub) {
        let Some(from) = self.monitors.paused.take() else {
            return;
        };
        RESUMES.increment();
        self.begin_telling(hub, Some(from), HashSet::new());
        let monitors = Rc::clone(&self.monitors.by_id.borrow());
        let flags = monitors
            .values()
            .fold(MonitorFlags::empty(), |flags, monitor| {
                flags | monitor.flags
            });
        for monitor in monitors.values() {
            let take = |seen: &SeenRule| {
                let event = if seen.added_page >= from {
                    UpdateEvent::Added
                } else {
                    UpdateEvent::Modified
                };
                let wanted = monitor.flags.contains(wanted_by(event))
                    || event == UpdateEvent::Added && monitor.flags.contains(MonitorFlags::MODIFY);
                (seen.changed_page >= from && wanted).then_some((event, flags))
            };
            self.tell_rules(hub, None, monitor, &take).await;
        }
        self.monitors.telling.replace(None);
        self.outbox
            .send_update(encode(self.version, 0, &pause(self.version, true)));
        self.monitors.idle.notify_waiters();
    }
}

impl Hub {
    /// Tells every connection with monitors of up to `limit` changes since the last call; false
    /// when there were none.
    pub(super) fn report_changes(&self, limit: usize) -> bool {
        let changes = Rc::new(self.switch().take_changes(limit));
        if changes.is_empty() {
            return false;
        }
        let origin = self.origin.borrow().clone();
        for session in self.sessions() {
            let own = origin
                .as_ref()
                .filter(|(who, _)| Rc::ptr_eq(who, &session))
                .map(|(_, xid)| *xid);
            session.tell_changes(self, &changes, own, limit < usize::MAX);
        }
        true
    }

    /// Says to the switch whether anybody watches.
    pub(super) fn tell_watched(&self) {
        let watched = self
            .sessions()
            .iter()
            .any(|session| !session.monitors.is_empty());
        self.switch().watch(watched);
    }

    /// Forwards a controller's change of a group or a meter to the others that want to know of it
    /// and whose version has such a message (of meters, 1.3).
    pub(super) fn forward_request(&self, from: &Session, xid: u32, message: &Message) {
        use openflow::message::AsyncKind;
        let reason = match message {
            Message::GroupMod(_) => 0,
            Message::MeterMod(_) => 1,
            _ => return,
        };
        for session in self.sessions() {
            let wanted =
                !std::ptr::eq(&*session, from) && session.wants(AsyncKind::RequestForward, reason);
            if wanted {
                let forwarded = Message::RequestForward {
                    xid,
                    message: Box::new(message.clone()),
                };
                session
                    .outbox
                    .send_unasked(encode(session.version, 0, &forwarded));
            }
        }
    }
}
