//! All OpenFlow connections of one bridge, their roles, and which asynchronous messages they get.

use super::bundles::Bundled;
use super::session::{ConnectionType, Origin, Session};
use super::switch::Switch;
use crate::clock;
use crate::coverage::Counter;
use openflow::message::{
    AsyncKind, Message, PacketIn, PacketInReason, Role, RoleReason, RoleStatus,
};
use openflow::port::{PortReason, PortStatus};
use openflow::steering::{HostCapabilities, Steering, VmStatus};
use openflow::{Error, Version, encode};
use std::cell::{Cell, RefCell};
use std::rc::Rc;

/// Most connections of one bridge, of all kinds. Further ones are closed at once and counted.
pub(super) const MAX_SESSIONS: usize = 256;

/// Silence in ms after which a tool's connection may be closed to make room, if the bridge has
/// [`MAX_SESSIONS`].
const SILENT_MS: i64 = 5000;

static DISPLACED: Counter = Counter::new("openflow_connection_displaced");
static REFUSED: Counter = Counter::new("openflow_connection_refused");

/// Counts a connection that was closed because there are too many.
pub(super) fn count_refused() {
    REFUSED.increment();
}

/// The connections of a bridge.
pub(super) struct Hub {
    pub(super) bridge: String,
    switch: Rc<dyn Switch>,
    /// OpenFlow versions that may be negotiated.
    pub(super) versions: Cell<u32>,
    sessions: RefCell<Vec<Rc<Session>>>,
    /// Connections that want copies of all messages between primary controllers and the switch.
    snoopers: RefCell<Vec<Rc<Session>>>,
    /// Generation id of the last election of a primary.
    generation: Cell<Option<u64>>,
    /// What the switch was last told: whether a primary controller is connected, and whether some
    /// connection wants packets that match no rule.
    told: Cell<(bool, bool)>,
    /// The connection whose message is being carried out, and the message's transaction id.
    pub(super) origin: RefCell<Option<(Rc<Session>, u32)>>,
    /// The same for the message that is carried out in slices; there is one at a time.
    slow_origin: RefCell<Option<(Rc<Session>, u32)>>,
    /// Totals over all bundles.
    pub(super) bundled: Rc<Bundled>,
}

impl Hub {
    pub(super) fn new(bridge: &str, switch: Rc<dyn Switch>, versions: u32) -> Hub {
        Hub {
            bridge: bridge.to_owned(),
            switch,
            versions: Cell::new(versions),
            sessions: RefCell::default(),
            snoopers: RefCell::default(),
            generation: Cell::new(None),
            told: Cell::new((false, false)),
            origin: RefCell::default(),
            slow_origin: RefCell::default(),
            bundled: Rc::default(),
        }
    }

    pub(super) fn switch(&self) -> &dyn Switch {
        &*self.switch
    }

    /// Adds a connection; false when there are too many. A tool's silent connection may be closed
    /// for it.
    pub(super) fn add(&self, session: &Rc<Session>) -> bool {
        if self.is_full() && !self.end_most_silent() {
            REFUSED.increment();
            return false;
        }
        self.sessions.borrow_mut().push(session.clone());
        self.tell_connected();
        true
    }

    /// Removes a connection.
    pub(super) fn remove(&self, session: &Rc<Session>) {
        self.sessions
            .borrow_mut()
            .retain(|other| !Rc::ptr_eq(other, session));
        self.tell_connected();
        if !session.monitors.is_empty() {
            self.tell_watched();
        }
    }

    /// Carries out a message of a connection, and reports its changes to all.
    pub(super) fn caused_by<R>(
        &self,
        session: &Rc<Session>,
        xid: u32,
        act: impl FnOnce() -> R,
    ) -> R {
        *self.origin.borrow_mut() = Some((Rc::clone(session), xid));
        let done = act();
        self.report();
        *self.origin.borrow_mut() = None;
        done
    }

    /// Notes whose message is being carried out in slices.
    pub(super) fn goes_on_slowly(&self, session: &Rc<Session>, xid: u32) {
        *self.slow_origin.borrow_mut() = Some((Rc::clone(session), xid));
    }

    /// Reports up to `limit` changes that were made in slices; false when none is left.
    pub(super) fn report_slow(&self, limit: usize) -> bool {
        let origin = self.slow_origin.borrow().clone();
        *self.origin.borrow_mut() = origin;
        let more = self.report_changes(limit);
        if !more {
            self.report();
            *self.slow_origin.borrow_mut() = None;
        }
        *self.origin.borrow_mut() = None;
        more
    }

    /// Waits until rules may be changed and dumped.
    pub(super) async fn idle(&self) {
        while let Some(idle) = self.switch().busy() {
            idle.await;
        }
    }

    /// Reports all changes not reported yet: to flow monitors, and vacancy events of tables.
    pub(super) fn report(&self) {
        self.report_changes(usize::MAX);
        for status in self.switch.take_table_status() {
            for session in self.sessions.borrow().iter() {
                let wanted = session.version >= Version::V1_4
                    && session.wants(AsyncKind::TableStatus, status.reason as u8);
                if wanted {
                    let bytes = encode(session.version, 0, &Message::TableStatus(status));
                    session.outbox.send_unasked(bytes);
                }
            }
        }
    }

    /// Ends the connection that has been silent longest, among those of tools and not of
    /// controllers that the bridge depends on; false if none has been silent for [`SILENT_MS`].
    pub(super) fn end_most_silent(&self) -> bool {
        let since = clock::now().saturating_sub(SILENT_MS);
        let most_silent = (self.sessions.borrow().iter())
            .filter(|other| {
                other.kind == ConnectionType::Service && other.last_heard.get() <= since
            })
            .min_by_key(|other| other.last_heard.get())
            .cloned();
        let Some(victim) = most_silent else {
            return false;
        };
        DISPLACED.increment();
        tracing::info!(target: "connmgr", "{}: too many connections, ending {}", self.bridge, victim.peer);
        self.remove(&victim);
        victim.closing.notify_one();
        true
    }

    fn is_full(&self) -> bool {
        self.sessions.borrow().len() + self.snoopers.borrow().len() >= MAX_SESSIONS
    }

    /// Returns whether packets that match no rule go to a controller: true when a connection that
    /// takes packet-ins speaks a version before 1.3 (Open vSwitch's
    /// `connmgr_wants_packet_in_on_miss`, which also counts tools that take none).
    pub(super) fn wants_misses(&self) -> bool {
        self.sessions.borrow().iter().any(|session| {
            session.version < Version::V1_3
                && session.controller_id.get() == 0
                && session.wants(AsyncKind::PacketIn, PacketInReason::NoMatch as u8)
        })
    }

    /// Tells the switch whether controllers are connected and whether any wants packets that match
    /// no rule, if that has changed.
    pub(super) fn tell_connected(&self) {
        let connected = self
            .sessions
            .borrow()
            .iter()
            .any(|session| session.kind == ConnectionType::Primary);
        let now = (connected, self.wants_misses());
        if self.told.replace(now) != now {
            self.switch.controllers_connected(connected);
        }
    }

    /// Adds a snooper; false when there are too many.
    pub(super) fn add_snooper(&self, session: &Rc<Session>) -> bool {
        if self.is_full() {
            REFUSED.increment();
            return false;
        }
        self.snoopers.borrow_mut().push(session.clone());
        true
    }

    /// Removes a snooper.
    pub(super) fn remove_snooper(&self, session: &Rc<Session>) {
        self.snoopers
            .borrow_mut()
            .retain(|other| !Rc::ptr_eq(other, session));
    }

    /// Copies bytes between the switch and a primary controller to snoopers. A snooper that does
    /// not read misses some.
    pub(super) fn snoop(&self, session: &Session, bytes: &[u8]) {
        if session.kind != ConnectionType::Primary {
            return;
        }
        for snooper in self.snoopers.borrow().iter() {
            snooper
                .outbox
                .send_packet_in(bytes.to_vec(), snooper.live.packet_in_limit.get());
        }
    }

    /// Ends connections whose version is no longer allowed.
    pub(super) fn enforce_versions(&self) {
        for session in self.sessions.borrow().iter() {
            if session.version.bit() & self.versions.get() == 0 {
                session.closing.notify_one();
            }
        }
    }

    /// Ends every connection; those that the switch itself makes are established again.
    pub(super) fn close_all(&self) {
        for session in self.sessions.borrow().iter() {
            session.closing.notify_one();
        }
    }

    /// Returns all present connections.
    pub(super) fn sessions(&self) -> Vec<Rc<Session>> {
        self.sessions.borrow().clone()
    }

    /// Returns the generation id of the last election, if there was one.
    pub(super) fn generation(&self) -> Option<u64> {
        self.generation.get()
    }

    /// Stores an election's generation id, but refuses one that is older than the last (compared
    /// with wrap-around, OpenFlow 1.3.5 section 6.3.6).
    pub(super) fn accept_generation(&self, generation: u64) -> Result<(), Error> {
        let stale = self
            .generation
            .get()
            .is_some_and(|last| (generation.wrapping_sub(last) as i64) < 0);
        if stale {
            return Err(Error::RoleStale);
        }
        self.generation.set(Some(generation));
        Ok(())
    }

    /// Gives a connection a role. A new primary makes the old one secondary, and that one is
    /// notified (since 1.3).
    pub(super) fn set_role(&self, session: &Rc<Session>, role: Role) {
        if role == Role::Primary {
            for other in self.sessions.borrow().iter() {
                if !Rc::ptr_eq(other, session) && other.role.get() == Role::Primary {
                    other.role.set(Role::Secondary);
                    self.send_role_status(other);
                }
            }
        }
        session.role.set(role);
        self.tell_connected();
    }

    fn send_role_status(&self, session: &Session) {
        let reason = RoleReason::PrimaryRequest;
        let wanted =
            !session.role_status_asked.get() || session.wants(AsyncKind::RoleStatus, reason as u8);
        if wanted && session.version >= Version::V1_3 {
            let status = RoleStatus {
                role: session.role.get(),
                reason,
                generation: self.generation.get(),
            };
            let bytes = encode(session.version, 0, &Message::RoleStatus(status));
            session.outbox.send_unasked(bytes);
        }
    }

    /// Sends a packet-in to the connections that want it: those with this controller id, by reason
    /// and role.
    pub(super) fn packet_in(&self, packet: &PacketIn, origin: Origin, controller_id: u16) {
        for session in self.sessions.borrow().iter() {
            if session.controller_id.get() == controller_id {
                session.send_packet_in(packet, origin);
            }
        }
    }

    /// Reports a change of a virtual machine to connections that support steering and want to be
    /// told of changed ports.
    pub(super) fn vm_status(&self, status: &VmStatus) {
        let reason = PortReason::Modify as u8;
        for session in self.sessions.borrow().iter() {
            if session.knows_steering.get() && session.wants(AsyncKind::PortStatus, reason) {
                let message = Message::Steering(Steering::VmStatus(*status));
                let bytes = encode(session.version, 0, &message);
                session.outbox.send_unasked(bytes);
            }
        }
    }

    /// Returns whether a connection supports steering.
    pub(super) fn knows_steering(&self) -> bool {
        let sessions = self.sessions.borrow();
        sessions.iter().any(|session| session.knows_steering.get())
    }

    /// Reports capabilities that have changed to connections that have asked for them and want to
    /// be told of changed ports.
    pub(super) fn capabilities(&self, capabilities: &HostCapabilities) {
        let reason = PortReason::Modify as u8;
        for session in self.sessions.borrow().iter() {
            if session.knows_steering.get() && session.wants(AsyncKind::PortStatus, reason) {
                let reply = Steering::CapabilitiesReply(capabilities.clone());
                let bytes = encode(session.version, 0, &Message::Steering(reply));
                session.outbox.send_unasked(bytes);
            }
        }
    }

    /// Reports a change of a port.
    pub(super) fn port_status(&self, status: &PortStatus) {
        for session in self.sessions.borrow().iter() {
            if session.wants(AsyncKind::PortStatus, status.reason as u8) {
                let bytes = encode(session.version, 0, &Message::PortStatus(status.clone()));
                session.outbox.send_unasked(bytes);
            }
        }
    }
}
