//! Flow monitors: who is told of which changes of the flow tables, and what happens when one does not read.
//!
//! The hub takes the changes from the switch after each message and gives them to every connection that has monitors. While more than
//! [`PAUSE_LIMIT`] bytes of updates wait for a connection it is told that its monitors pause; then it gets only the removals of what it may know
//! of. When everything has been written it is told what it missed, and that the monitors go on (Open vSwitch's way; OpenFlow 1.4 section 7.4.8 of
//! `OFPFME_PAUSED`).

use super::hub::Hub;
use super::session::Session;
use openflow::message::{Message, MultipartReply};
use openflow::monitor::{
    FlowUpdate, MonitorCommand, MonitorFlags, MonitorRequest, RuleUpdate, UpdateEvent, pause,
};
use openflow::{Error, encode, encode_multipart};
use pipeline::RuleChange;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

/// Bytes of updates that may wait before monitors pause.
const PAUSE_LIMIT: usize = 128 << 10;
/// Monitors that one connection may have.
const MAX_MONITORS: usize = 128;

static PAUSES: crate::coverage::Counter = crate::coverage::Counter::new("ofmonitor_pause");
static RESUMES: crate::coverage::Counter = crate::coverage::Counter::new("ofmonitor_resume");

/// The monitors of one connection.
#[derive(Default)]
pub(super) struct Monitors {
    by_id: RefCell<BTreeMap<u32, MonitorRequest>>,
    /// The pause that holds, by the switch's number.
    paused: Cell<Option<u32>>,
}

impl Monitors {
    pub(super) fn is_empty(&self) -> bool {
        self.by_id.borrow().is_empty()
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

/// An update with or without what the rule does.
fn shown(update: &RuleUpdate, flags: MonitorFlags) -> FlowUpdate {
    let mut update = update.clone();
    if !flags.contains(MonitorFlags::INSTRUCTIONS) {
        update.instructions = Arc::from([]);
    }
    FlowUpdate::Rule(update)
}

impl Session {
    /// Sets monitors up, changes or ends them, all or none, and answers with the rules that are there. One connection cannot be told of a rule
    /// twice: what several monitors let through comes once, with what any of them wants.
    pub(super) fn monitor(
        &self,
        hub: &Hub,
        xid: u32,
        requests: Vec<MonitorRequest>,
    ) -> Result<(), Error> {
        let mut monitors = self.monitors.by_id.borrow().clone();
        for request in &requests {
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
        // Each monitor once, as it is in the end: a message may name one thousands of times.
        let mut named = HashSet::new();
        let initial: Vec<&MonitorRequest> = requests
            .iter()
            .filter(|request| named.insert(request.id))
            .filter_map(|request| monitors.get(&request.id))
            .filter(|monitor| monitor.flags.contains(MonitorFlags::INITIAL))
            .collect();
        let updates = collect(&initial, |monitor| hub.switch().monitored(monitor));
        self.monitors.by_id.replace(monitors);
        hub.tell_watched();
        let reply = MultipartReply::FlowMonitor(updates);
        for part in encode_multipart(self.version, xid, &reply, false) {
            self.outbox.send(part);
        }
        Ok(())
    }

    /// Ends a monitor (before 1.4).
    pub(super) fn cancel_monitor(&self, hub: &Hub, id: u32) -> Result<(), Error> {
        let ended = self.monitors.by_id.borrow_mut().remove(&id);
        hub.tell_watched();
        ended.map(|_| ()).ok_or(Error::UnknownMonitor)
    }

    /// Tells of changes. `own`: the transaction id of this connection's message that made them, if it did.
    pub(super) fn tell_changes(&self, hub: &Hub, changes: &[RuleChange], own: Option<u32>) {
        if self.monitors.is_empty() {
            return;
        }
        let monitors = self.monitors.by_id.borrow();
        let paused = self.monitors.paused.get();
        let mut abbreviated = false;
        let mut updates = Vec::new();
        for change in changes {
            if let Some(pause) = paused {
                let removed = matches!(change.update.event, UpdateEvent::Removed(_));
                if !removed || change.added_pause >= pause {
                    continue;
                }
            }
            let flags = monitors
                .values()
                .filter(|monitor| monitor.flags.contains(wanted_by(change.update.event)))
                .filter(|monitor| change.concerns(monitor))
                .fold(MonitorFlags::empty(), |flags, monitor| {
                    flags | monitor.flags
                });
            if flags.is_empty() {
                continue;
            }
            match own {
                Some(xid) if !flags.own_in_full() && paused.is_none() => {
                    if !std::mem::replace(&mut abbreviated, true) {
                        updates.push(FlowUpdate::Abbreviated(xid));
                    }
                }
                _ => updates.push(shown(&change.update, flags)),
            }
        }
        drop(monitors);
        if updates.is_empty() {
            return;
        }
        self.send_updates(updates);
        if paused.is_none() && self.outbox.update_bytes() > PAUSE_LIMIT {
            PAUSES.increment();
            self.monitors.paused.set(Some(hub.switch().begin_pause()));
            self.outbox
                .send_update(encode(self.version, 0, &pause(self.version, false)));
        }
    }

    fn send_updates(&self, updates: Vec<FlowUpdate>) {
        let reply = MultipartReply::FlowMonitor(updates);
        for part in encode_multipart(self.version, 0, &reply, false) {
            self.outbox.send_update(part);
        }
    }

    /// Tells what was missed in a pause, once everything before has been written.
    pub(super) fn resume_monitors(&self, hub: &Hub) {
        if self.monitors.paused.get().is_none() || self.outbox.update_bytes() > 0 {
            return;
        }
        let Some(pause_number) = self.monitors.paused.take() else {
            return;
        };
        RESUMES.increment();
        let monitors: Vec<MonitorRequest> =
            self.monitors.by_id.borrow().values().cloned().collect();
        let monitors: Vec<&MonitorRequest> = monitors.iter().collect();
        let updates = collect(&monitors, |monitor| {
            let mut missed = hub.switch().missed(monitor, pause_number);
            missed.retain(|update| {
                monitor.flags.contains(wanted_by(update.event))
                    || update.event == UpdateEvent::Added
                        && monitor.flags.contains(MonitorFlags::MODIFY)
            });
            missed
        });
        if !updates.is_empty() {
            self.send_updates(updates);
        }
        self.outbox
            .send_update(encode(self.version, 0, &pause(self.version, true)));
    }
}

/// The rules of several monitors, each once.
fn collect(
    monitors: &[&MonitorRequest],
    rules: impl Fn(&MonitorRequest) -> Vec<RuleUpdate>,
) -> Vec<FlowUpdate> {
    if let [monitor] = monitors {
        let rules = rules(monitor);
        return rules
            .iter()
            .map(|rule| shown(rule, monitor.flags))
            .collect();
    }
    let flags = monitors
        .iter()
        .fold(MonitorFlags::empty(), |flags, monitor| {
            flags | monitor.flags
        });
    let mut known = HashSet::new();
    let mut updates = Vec::new();
    for monitor in monitors {
        for rule in rules(monitor) {
            if known.insert((rule.table, rule.priority, rule.matching.clone())) {
                updates.push(shown(&rule, flags));
            }
        }
    }
    updates
}

impl Hub {
    /// Tells every connection with monitors of the changes since the last call.
    pub(super) fn report_changes(&self) {
        let changes = self.switch().take_changes();
        if changes.is_empty() {
            return;
        }
        let origin = self.origin.borrow().clone();
        for session in self.sessions() {
            let own = origin
                .as_ref()
                .filter(|(who, _)| std::rc::Rc::ptr_eq(who, &session))
                .map(|(_, xid)| *xid);
            session.tell_changes(self, &changes, own);
        }
    }

    /// Says to the switch whether anybody watches.
    pub(super) fn tell_watched(&self) {
        let watched = self
            .sessions()
            .iter()
            .any(|session| !session.monitors.is_empty());
        self.switch().watch(watched);
    }

    /// Forwards a controller's change of a group or a meter to the others that want to know of it (1.4).
    pub(super) fn forward_request(&self, from: &Session, xid: u32, message: &Message) {
        use openflow::Version;
        use openflow::message::AsyncKind;
        let reason = match message {
            Message::GroupMod(_) => 0,
            Message::MeterMod(_) => 1,
            _ => return,
        };
        for session in self.sessions() {
            let wanted = session.version >= Version::V1_4
                && !std::ptr::eq(&*session, from)
                && session.wants(AsyncKind::RequestForward, reason);
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
