//! Flow monitors: which connection is told of which rule changes, and what happens when one does
//! not read.
//!
//! After each message the hub takes the changes from the switch and gives them to every connection
//! with monitors. They wait in a list that all share until they have been sent, a page at a time
//! ([`RuleChange::page`]). When more than [`PAUSE_LIMIT`] bytes of updates wait for a connection it
//! is told that its monitors pause; from the next page on it gets only removals of rules that it
//! knows. When everything has been written it is told what it missed, and that the monitors resume
//! (as in Open vSwitch; OpenFlow 1.4 section 7.4.8 on `OFPFME_PAUSED`).
//!
//! Existing rules (for a new monitor, or after a pause) are sent in slices, between which other
//! tasks run and rules change. The numbers of rules that were sent are noted ([`Telling`]), so that
//! the result is as if all had been sent at once.

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

/// Bytes of waiting updates above which monitors pause.
const PAUSE_LIMIT: usize = 128 << 10;
/// Most changes that wait for one connection; with more it is closed.
const MOST_CHANGES: usize = 2 << 20;
/// Most monitors of one connection.
const MAX_MONITORS: usize = 128;
/// Rules read before other tasks run.
const SLICE: usize = 512;

static PAUSES: crate::coverage::Counter = crate::coverage::Counter::new("ofmonitor_pause");
static RESUMES: crate::coverage::Counter = crate::coverage::Counter::new("ofmonitor_resume");

type ById = BTreeMap<u32, MonitorRequest>;

/// The monitors of one connection.
#[derive(Default)]
pub(super) struct Monitors {
    by_id: RefCell<Rc<ById>>,
    /// The page from which on changes are not sent.
    paused: Cell<Option<u32>>,
    /// Changes yet to be sent, in order.
    waiting: RefCell<VecDeque<Waiting>>,
    /// Number of these changes.
    left: Cell<usize>,
    /// Of this connection's messages that were carried out in slices, the last one that was
    /// reported in abbreviated form.
    told_short: Cell<Option<u32>>,
    /// The page whose changes were sent last.
    last_page: Cell<Option<u32>>,
    /// Sending of existing rules, while that goes on.
    telling: RefCell<Option<Telling>>,
    /// Notified when nothing is left to send.
    idle: Notify,
}

/// Changes made by one message.
struct Waiting {
    changes: Rc<Vec<RuleChange>>,
    /// How many have been processed.
    done: usize,
    /// The transaction id of the message, if it was this connection's, and whether it has been
    /// reported in abbreviated form.
    own: Option<u32>,
    abbreviated: bool,
    /// Whether these are only a part of the message's changes.
    partial: bool,
    /// The monitors at the time of the changes.
    monitors: Rc<ById>,
}

/// State while existing rules are being sent.
struct Telling {
    /// The page from which on changes were missed; None for new monitors.
    missed_from: Option<u32>,
    /// The new monitors.
    begun: HashSet<u32>,
    /// Bitmap of the numbers of rules that have been sent.
    told: Vec<u64>,
}

impl Telling {
    fn is_told(&self, rule: u32) -> bool {
        self.told
            .get(rule as usize / 64)
            .is_some_and(|bits| bits >> (rule % 64) & 1 == 1)
    }

    /// Notes that a rule has been sent, or that its number is free.
    fn note(&mut self, rule: u32, told: bool) {
        let place = rule as usize / 64;
        if place >= self.told.len() {
            self.told.resize(place + 1, 0);
        }
        if self.is_told(rule) != told {
            self.told[place] ^= 1 << (rule % 64);
        }
    }

    /// Returns the event by which a change is reported, if it is: no removal of a rule that the
    /// connection does not know yet; a rule that changed before its turn is reported as it is now.
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

    /// Returns whether something was missed or is still to be sent.
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

/// Returns whether a change is sent although monitors have paused at a page: the removal of a rule
/// that the connection knows.
fn is_told_in_pause(change: &RuleChange, paused: u32) -> bool {
    change.page < paused
        || matches!(change.update.event, UpdateEvent::Removed(_)) && change.added_page < paused
}

/// Makes an update of an event, with or without the rule's actions. Peers that do not support
/// steering get notes in place of actions that they would not understand.
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
    /// Adds, changes or ends monitors, all or none, and replies with the existing rules. One
    /// connection is told of a rule once: if several monitors match it, with all details that any
    /// of them wants.
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

    /// Begins to send existing rules. Changes on earlier pages count as sent with them.
    fn begin_telling(&self, hub: &Hub, missed_from: Option<u32>, begun: HashSet<u32>) {
        hub.switch().begin_page();
        self.monitors.telling.replace(Some(Telling {
            missed_from,
            begun,
            told: Vec::new(),
        }));
    }

    /// Changes the set of monitors. Returns those whose rules are to be sent, each once and in its
    /// final form: a message may name one thousands of times.
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

    /// Ends a monitor (message of versions before 1.4).
    pub(super) fn cancel_monitor(&self, hub: &Hub, id: u32) -> Result<(), Error> {
        let ended = Rc::make_mut(&mut self.monitors.by_id.borrow_mut()).remove(&id);
        hub.tell_watched();
        ended.map(|_| ()).ok_or(Error::UnknownMonitor)
    }

    /// Sends the rules that match a monitor's filters, each once. `take` decides on the event and
    /// the details. `answer`: the transaction id of the request, and whether more of the reply
    /// follows.
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
            // Changes of rules already sent go before the next rules.
            loop {
                self.outbox.room().await;
                tokio::task::yield_now().await;
                if self.tell_waiting(hub) {
                    break;
                }
            }
        }
    }

    /// Reports changes. `own`: the transaction id of this connection's message that made them, if
    /// it did. `partial`: they are only some of its changes.
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
            // While paused, most of them are not needed.
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

    /// Sends waiting changes while there is room; returns whether none is left.
    fn tell_waiting(&self, hub: &Hub) -> bool {
        let mut all = self.monitors.waiting.borrow_mut();
        while let Some(first) = all.front_mut() {
            let Some(page) = first.changes.get(first.done).map(|change| change.page) else {
                all.pop_front();
                continue;
            };
            // If some changes of a page have been sent, all must be.
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

    /// Returns whether so many updates wait that the monitors must pause. Never while existing
    /// rules are sent, since that waits for the peer anyway.
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

    /// Returns the updates to send about the changes of a page.
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
                // The number may be reused for another rule.
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

    /// Sends updates, as part of a reply or unrequested.
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

    /// Goes on sending as the peer reads, while the connection lives.
    pub(super) async fn follow_monitors(&self, hub: &Hub) -> std::convert::Infallible {
        loop {
            self.outbox.progress().await;
            let all_told = self.tell_waiting(hub);
            if all_told && self.monitors.paused.get().is_some() && self.outbox.update_bytes() == 0 {
                self.tell_missed(hub).await;
            }
        }
    }

    /// Sends what was missed in a pause, once everything before has been written.
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
    /// Reports up to `limit` changes since the last call to every connection with monitors; false
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

    /// Tells the switch whether there are any monitors.
    pub(super) fn tell_watched(&self) {
        let watched = self
            .sessions()
            .iter()
            .any(|session| !session.monitors.is_empty());
        self.switch().watch(watched);
    }

    /// Forwards a controller's change of a group or a meter to the other connections that want it
    /// and whose version has such a message (for meters, 1.3).
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
