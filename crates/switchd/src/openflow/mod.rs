//! OpenFlow connections of a bridge.
//!
//! A bridge has one [`OpenFlow`]. It connects to the controllers in the database, listens where
//! they say so and on the bridge's management and snoop sockets, and carries out requests on the
//! bridge's [`Switch`]. The switch passes asynchronous messages (packets, ports, removed rules) to
//! the [`OpenFlow`], which knows who wants them in which version and form.
//!
//! Everything runs on the control thread, inside its `LocalSet`. Connections are independent: each
//! has its own bounded queue ([`outbox`]), and one that waits for its barrier or does not read
//! delays no other.

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
pub use session::{ConnectionType, Origin};
pub use switch::{BundleFailure, FlowDump, LocalFuture, Switch, WatchedRules};

use crate::streams::{Listener, Passive, Tls};
use connection::Terms;
use controller::{Controller, Purpose, Record};
use hub::Hub;
use openflow::flow::FlowRemoved;
use openflow::message::PacketIn;
use openflow::port::PortStatus;
use openflow::steering::{HostCapabilities, VmStatus};
use std::cell::RefCell;
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

/// Most packet-ins that wait for a connection of the management socket.
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

/// A listening socket of the bridge, with its task.
struct Socket(tokio::task::JoinHandle<()>);

impl Drop for Socket {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl OpenFlow {
    /// Creates the OpenFlow side of bridge `bridge`, without connections. `versions`: bit n allows
    /// version number n ([`openflow::version::ALL_VERSIONS`] for all).
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
            kind: ConnectionType::Service,
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

    /// Sets which versions may be negotiated. Connections of other versions end.
    pub fn set_versions(&self, versions: u32) {
        if self.hub.versions.replace(versions) != versions {
            self.hub.enforce_versions();
        }
    }

    /// Sets the controllers. Unchanged ones keep their connections and take over new timers and
    /// limits; others are added or removed. Errors say which target cannot be used and why. Call it
    /// inside the control thread's `LocalSet`.
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

    /// Returns the state of each controller for the database.
    pub fn controller_status(&self) -> Vec<ControllerStatus> {
        self.controllers
            .borrow()
            .iter()
            .map(Controller::status)
            .collect()
    }

    /// Returns how many connections are up.
    pub fn connection_count(&self) -> usize {
        self.hub.sessions().len()
    }

    /// Ends every connection; those that the switch itself makes are established again
    /// (`bridge/reconnect`).
    pub fn reconnect(&self) {
        self.hub.close_all();
    }

    /// Returns whether some connection may want packets that match no rule; if not, workers need
    /// not copy them.
    pub fn wants_packet_in(&self) -> bool {
        use openflow::message::AsyncKind;
        self.hub
            .sessions()
            .iter()
            .any(|session| (0..6).any(|reason| session.wants(AsyncKind::PacketIn, reason)))
    }

    /// Returns whether packets that match no rule go to a controller: true when a connection that
    /// takes packet-ins speaks a version before 1.3 (Open vSwitch's
    /// `connmgr_wants_packet_in_on_miss`). From 1.3 on they are dropped by default (1.3.5 section
    /// 5.4).
    pub fn wants_misses(&self) -> bool {
        self.hub.wants_misses()
    }

    /// Ends every connection and stops listening, for good.
    pub fn close(&self) {
        self.controllers.borrow_mut().clear();
        self.sockets.borrow_mut().clear();
        self.hub.close_all();
    }

    /// Sends a packet-in to the connections with this controller id (0 unless an action names
    /// another) that want it. `packet.format` is ignored: each connection gets its own.
    /// `packet.data` is the whole packet and is sent whole, because packets are not buffered.
    pub fn packet_in(&self, packet: &PacketIn, origin: Origin, controller_id: u16) {
        self.hub.packet_in(packet, origin, controller_id);
    }

    /// Reports a port that was added, removed or changed.
    pub fn port_status(&self, status: &PortStatus) {
        self.hub.port_status(status);
    }

    /// Reports a change of a virtual machine to connections that support steering.
    pub fn vm_status(&self, status: &VmStatus) {
        self.hub.vm_status(status);
    }

    /// Returns whether a connection supports steering.
    pub fn knows_steering(&self) -> bool {
        self.hub.knows_steering()
    }

    /// Reports changed capabilities to connections that support steering.
    pub fn capabilities(&self, capabilities: &HostCapabilities) {
        self.hub.capabilities(capabilities);
    }

    /// Reports removed rules that asked for it.
    pub fn flows_removed(&self, removed: &[FlowRemoved]) {
        self.hub.flows_removed(removed);
    }

    /// Reports up to `limit` changes that a message has made in slices; false when none is left.
    pub fn report_slow_changes(&self, limit: usize) -> bool {
        self.hub.report_slow(limit)
    }

    /// Reports rule changes not reported yet: to flow monitors, and vacancy events of tables.
    /// Changes by a connection's message are reported without this.
    pub fn report_changes(&self) {
        self.hub.report();
    }

    /// Returns how many packet-ins the present connections have lost because they did not read.
    pub fn packet_ins_dropped(&self) -> u64 {
        self.hub
            .sessions()
            .iter()
            .map(|session| session.outbox.dropped())
            .sum()
    }
}
