//! OpenFlow connections of a bridge.
//!
//! A bridge has one [`OpenFlow`]. It connects to the controllers that the database names, listens
//! where they say so and on the bridge's management and snoop sockets, and carries out what comes
//! in on the bridge's [`Switch`]. What the switch has to tell unasked (packets, ports, rules that
//! went) it hands to the [`OpenFlow`], which knows who wants it in which version and form.
//!
//! Everything runs on the control thread, inside its `LocalSet`. Connections are independent: each
//! has a bounded queue of its own ([`outbox`]), and one that waits for its barrier or does not read
//! keeps nobody else waiting.

mod bundles;
mod connection;
mod controller;
mod dumps;
mod hub;
mod monitors;
mod outbox;
mod removals;
mod scheduler;
mod session;
mod steering;
pub mod switch;

pub use controller::{ControllerSettings, ControllerStatus};
use session::Live;
pub use session::{Kind, Origin};
pub use switch::{BundleFailure, FlowDump, LocalFuture, Switch, WatchedRules};

use crate::streams::{Listener, Passive, Tls};
use connection::Terms;
use controller::{Controller, Purpose, Record};
use hub::Hub;
use openflow::flow::FlowRemoved;
use openflow::message::PacketIn;
use openflow::port::PortStatus;
use openflow::steering::VmStatus;
use std::cell::RefCell;
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

/// Packet-ins that may wait for a connection of the management socket.
const MANAGEMENT_QUEUE: usize = 100;
/// Silence before a connection of the management socket is probed.
const MANAGEMENT_PROBE: Duration = Duration::from_secs(60);

/// The OpenFlow side of one bridge. Dropping it closes every connection.
pub struct OpenFlow {
    hub: Rc<Hub>,
    tls: Rc<Tls>,
    controllers: RefCell<Vec<Controller>>,
    sockets: RefCell<Vec<Socket>>,
}

/// A listening socket of the bridge's own, with its task.
struct Socket(tokio::task::JoinHandle<()>);

impl Drop for Socket {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl OpenFlow {
    /// The connections of bridge `bridge`, none yet. `versions`: bit n allows version number n
    /// ([`openflow::version::ALL_VERSIONS`] for all).
    pub fn new(bridge: &str, switch: Rc<dyn Switch>, tls: Rc<Tls>, versions: u32) -> OpenFlow {
        OpenFlow {
            hub: Rc::new(Hub::new(bridge, switch, versions)),
            tls,
            controllers: RefCell::default(),
            sockets: RefCell::default(),
        }
    }

    /// Listens on `RUNDIR/BRIDGE.mgmt` and `RUNDIR/BRIDGE.snoop`. Errors say which socket and why;
    /// the other one works all the same. Call it inside the control thread's `LocalSet`.
    pub fn open_sockets(&self, rundir: &Path) -> Vec<String> {
        let terms = Terms {
            kind: Kind::Service,
            asynchronous: true,
            dscp: 0,
            live: Rc::new(Live::new(MANAGEMENT_PROBE, MANAGEMENT_QUEUE)),
        };
        let mut errors = Vec::new();
        for (suffix, purpose) in [
            ("mgmt", Purpose::Control(terms, Rc::new(Record::default()))),
            ("snoop", Purpose::Snoop),
        ] {
            let path = rundir.join(format!("{}.{suffix}", self.hub.bridge));
            match Listener::bind(&Passive::Unix(path.clone())) {
                Ok(listener) => {
                    let task =
                        controller::listen(self.hub.clone(), self.tls.clone(), listener, purpose);
                    let socket = Socket(crate::turns::spawn("OpenFlow", task));
                    self.sockets.borrow_mut().push(socket);
                }
                Err(error) => errors.push(format!(
                    "failed to listen on punix:{}: {}",
                    path.display(),
                    crate::plain_error(&error)
                )),
            }
        }
        errors
    }

    /// Says which versions may be negotiated from now on. Connections of another version end.
    pub fn set_versions(&self, versions: u32) {
        if self.hub.versions.replace(versions) != versions {
            self.hub.enforce_versions();
        }
    }

    /// Says which controllers there are. Those that are there already keep their connections and
    /// take new timers and limits over; others begin or end. Errors say which target cannot be
    /// used and why. Call it inside the control thread's `LocalSet`.
    pub fn set_controllers(&self, wanted: &[ControllerSettings]) -> Vec<String> {
        let mut controllers = self.controllers.borrow_mut();
        controllers
            .retain_mut(|controller| wanted.iter().any(|settings| controller.adopt(settings)));
        let mut errors = Vec::new();
        for settings in wanted {
            let known = controllers
                .iter()
                .any(|controller| controller.settings == *settings);
            if known {
                continue;
            }
            match Controller::start(&self.hub, &self.tls, settings.clone()) {
                Ok(controller) => controllers.push(controller),
                Err(error) => errors.push(error),
            }
        }
        errors
    }

    /// What the database is to be told of each controller.
    pub fn controller_status(&self) -> Vec<ControllerStatus> {
        self.controllers
            .borrow()
            .iter()
            .map(Controller::status)
            .collect()
    }

    /// Connections that are up.
    pub fn connection_count(&self) -> usize {
        self.hub.sessions().len()
    }

    /// Ends every connection; those that the switch makes come back (`bridge/reconnect`).
    pub fn reconnect(&self) {
        self.hub.close_all();
    }

    /// Whether some connection may want packets that meet no rule, so that the workers need not
    /// copy them for nobody.
    pub fn wants_packet_in(&self) -> bool {
        use openflow::message::AsyncKind;
        self.hub
            .sessions()
            .iter()
            .any(|session| (0..6).any(|reason| session.wants(AsyncKind::PacketIn, reason)))
    }

    /// Whether packets that meet no rule go to a controller: when a connection that takes packets
    /// speaks a version before 1.3 (Open vSwitch's `connmgr_wants_packet_in_on_miss`). From 1.3
    /// on they are dropped by default (1.3.5 section 5.4).
    pub fn wants_misses(&self) -> bool {
        self.hub.wants_misses()
    }

    /// Ends every connection and stops listening, for good.
    pub fn close(&self) {
        self.controllers.borrow_mut().clear();
        self.sockets.borrow_mut().clear();
        self.hub.close_all();
    }

    /// Gives a packet to the connections with this controller id (0 unless an action names another)
    /// that want it. `packet.format` is ignored: each connection gets its own. `packet.data` is
    /// the whole packet, and goes whole: no buffers are kept.
    pub fn packet_in(&self, packet: &PacketIn, origin: Origin, controller_id: u16) {
        self.hub.packet_in(packet, origin, controller_id);
    }

    /// Tells of a port that came, went or changed.
    pub fn port_status(&self, status: &PortStatus) {
        self.hub.port_status(status);
    }

    /// Tells of a virtual machine, those that have asked what steering can do.
    pub fn vm_status(&self, status: &VmStatus) {
        self.hub.vm_status(status);
    }

    /// Tells of rules that went, for rules that asked for it.
    pub fn flows_removed(&self, removed: &[FlowRemoved]) {
        self.hub.flows_removed(removed);
    }

    /// Tells of up to `limit` changes that a message has made in slices; false when none is left.
    pub fn report_slow_changes(&self, limit: usize) -> bool {
        self.hub.report_slow(limit)
    }

    /// Tells of changes of the rules that nobody has been told of yet: to flow monitors, and of
    /// tables that fill up. Changes that a message of a connection makes are told by
    /// themselves.
    pub fn report_changes(&self) {
        self.hub.report();
    }

    /// Packet-ins that connections which are up now have lost because they did not read.
    pub fn packet_ins_dropped(&self) -> u64 {
        self.hub
            .sessions()
            .iter()
            .map(|session| session.outbox.dropped())
            .sum()
    }
}
