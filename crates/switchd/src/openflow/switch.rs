//! What the OpenFlow side of a bridge needs from the switch behind it.

use openflow::ct_flush::CtFlush;
use openflow::flow::{FlowMod, FlowStats, FlowStatsRequest};
use openflow::group::{GroupDescription, GroupMod, GroupStats};
use openflow::message::{Features, Fragments, PacketIn, PacketOut, QueueRequest};
use openflow::meter::{MeterConfig, MeterMod, MeterStats};
use openflow::monitor::MonitorRequest;
use openflow::port::{PortDescription, PortMod, PortNo, PortStats};
use openflow::stats::{
    Aggregate, Description, GroupFeatures, MeterFeatures, QueueDescription, QueueStats,
    TableConfig, TableFeatures, TableStats, TableStatus,
};
use openflow::steering::{
    HostCapabilities, Mode, ModeReply, SteeringMod, SteeringStats, Target, VmStatus,
};
use openflow::tlv::{TlvTable, TlvTableMod};
use openflow::{Error, Message, Version};
use pipeline::{RuleChange, SeenRule};
use std::future::Future;
use std::pin::Pin;

/// A future of the control thread.
pub type LocalFuture<T> = Pin<Box<dyn Future<Output = T>>>;

/// A dump of rules that continues in slices, while rules change.
pub trait FlowDump {
    /// Looks at up to `budget` more rules and passes matching ones to `take`; true when the dump is
    /// complete. Every rule that exists from beginning to end is passed once.
    fn next(&mut self, budget: usize, take: &mut dyn FnMut(&FlowStats)) -> bool;

    /// Looks at up to `budget` more rules and adds matching ones' counters to `sums`; true when
    /// complete.
    fn sum(&mut self, budget: usize, sums: &mut Aggregate) -> bool;
}

/// The rules that match a monitor's filters, in slices like [`FlowDump`]'s.
pub trait WatchedRules {
    /// Looks at up to `budget` more rules and passes matching ones to `take`; true when complete.
    fn next(&mut self, budget: usize, take: &mut dyn FnMut(SeenRule)) -> bool;
}

/// Why a bundle was not carried out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BundleFailure {
    /// Index of the message that failed.
    pub message: usize,
    /// The error of that message.
    pub error: Error,
}

/// A bridge, as controllers see it.
///
/// Calls come from the control thread, one at a time, and never from inside another one's callback;
/// an implementation may keep its state in a `RefCell`. None may block. A call may report what it
/// caused (flow-removed, port status) to connections at once, through [`super::OpenFlow`].
///
/// Changes need not reach the workers before [`Switch::publish`]; requests see them at once.
pub trait Switch {
    /// Returns identity and capabilities. `ports` is filled only if `with_ports`, since most
    /// versions ask for them elsewhere. `auxiliary` is ignored.
    fn features(&self, with_ports: bool) -> Features;

    /// Returns manufacturer, hardware and software.
    fn description(&self) -> Description;

    /// Returns how IP fragments are handled.
    fn fragments(&self) -> Fragments;

    /// Changes how IP fragments are handled.
    fn set_fragments(&self, fragments: Fragments) -> Result<(), Error>;

    /// Changes the flow tables. A long change goes on in slices and returns a future for its end.
    /// It goes on whether or not anybody waits for the future; in the end it is published and
    /// reported. Other requests wait meanwhile ([`Switch::busy`]).
    fn flow_mod(
        &self,
        change: &FlowMod,
        version: Version,
    ) -> Result<Option<LocalFuture<Result<(), Error>>>, Error>;

    /// While rules are being changed in slices, returns a future for the end of that. Until then
    /// nothing that changes or dumps rules may be called.
    fn busy(&self) -> Option<LocalFuture<()>> {
        None
    }

    /// If changes have come faster than deleted rules could be freed, returns a future that ends
    /// when their sender may send more.
    fn make_up(&self) -> Option<LocalFuture<()>> {
        None
    }

    /// Sends a packet, by the rules as changed so far. Publishes them itself if necessary.
    fn packet_out(&self, packet: &PacketOut, version: Version) -> Result<(), Error>;

    /// Resumes a packet that was paused for the controllers.
    fn resume(&self, packet: &PacketIn) -> Result<(), Error> {
        let _ = packet;
        Err(Error::ResumeUnsupported)
    }

    /// Returns the host's capabilities and state for steering.
    fn capabilities(&self) -> Result<LocalFuture<HostCapabilities>, Error> {
        Err(Error::BadExperimenterType)
    }

    /// Sets the steering mode, if one is given; returns the mode in force.
    fn steering_mode(&self, wanted: Option<Mode>) -> Result<ModeReply, Error> {
        let _ = wanted;
        Err(Error::BadExperimenterType)
    }

    /// Changes a steering table.
    fn change_steering(
        &self,
        target: &Target,
        change: &SteeringMod,
    ) -> Result<LocalFuture<Result<(), Error>>, Error> {
        let _ = (target, change);
        Err(Error::BadExperimenterType)
    }

    /// Returns the entries of a steering table.
    fn steering_entries(
        &self,
        target: &Target,
    ) -> Result<LocalFuture<Result<Vec<SteeringStats>, Error>>, Error> {
        let _ = target;
        Err(Error::BadExperimenterType)
    }

    /// Returns the virtual machines behind ports.
    fn vms(&self) -> Vec<VmStatus> {
        Vec::new()
    }

    /// Configures a port. If its device is to be set up or down, returns a future for the end of
    /// that, which comes whether or not anybody waits for it.
    fn port_mod(&self, change: &PortMod) -> Result<Option<LocalFuture<Result<(), Error>>>, Error>;

    /// Configures a table, with the meaning that a version gives the bits.
    fn table_mod(&self, change: &TableConfig, version: Version) -> Result<(), Error>;

    /// Changes tables' features, as far as they can be changed (names only).
    fn change_table_features(&self, wanted: &[TableFeatures]) -> Result<(), Error>;

    /// Removes tracked connections. The future ends when they are gone.
    fn flush_connections(&self, request: &CtFlush) -> LocalFuture<Result<(), Error>>;

    /// Changes the mapping of Geneve options.
    fn tlv_table_mod(&self, change: &TlvTableMod) -> Result<(), Error>;

    /// Returns the mapping of Geneve options.
    fn tlv_table(&self) -> TlvTable;

    /// Changes the groups. Deleting those that many rules use goes on in slices, as with
    /// [`Switch::flow_mod`].
    fn group_mod(
        &self,
        change: &GroupMod,
        version: Version,
    ) -> Result<Option<LocalFuture<Result<(), Error>>>, Error>;

    /// Changes the meters. Deleting those that many rules use goes on in slices, as with
    /// [`Switch::flow_mod`].
    fn meter_mod(&self, change: &MeterMod)
    -> Result<Option<LocalFuture<Result<(), Error>>>, Error>;

    /// Returns errors of a message that must be reported when it is added to a bundle, not at the
    /// commit.
    fn check_bundled(&self, message: &Message, version: Version) -> Result<(), Error> {
        let _ = (message, version);
        Ok(())
    }

    /// Carries out all of the messages (flow mods, port mods, group mods, packet-outs), given in
    /// pieces, or none and returns the first failure. Many messages are carried out in slices like
    /// [`Switch::flow_mod`]. A packet-out sees the changes of the messages before it, but not of
    /// those behind it.
    fn bundle(
        &self,
        pieces: Vec<Vec<Message>>,
        version: Version,
    ) -> Result<Option<LocalFuture<Result<(), BundleFailure>>>, BundleFailure>;

    /// Milliseconds after which an idle bundle is discarded.
    fn bundle_idle_ms(&self) -> i64;

    /// Makes the changes so far visible to the workers. Called once for each batch of messages that
    /// were read together, even if nothing has changed.
    fn publish(&self);

    /// Returns a future that ends when every worker has seen what was published before the call.
    fn barrier(&self) -> LocalFuture<()>;

    /// Begins a dump of the rules that match the request.
    fn flows(&self, request: &FlowStatsRequest) -> Result<Box<dyn FlowDump + '_>, Error>;

    /// Sets whether anybody needs [`Switch::take_changes`].
    fn watch(&self, watched: bool);

    /// Returns up to `limit` rule changes since the last call, in order.
    fn take_changes(&self, limit: usize) -> Vec<RuleChange>;

    /// Begins to read the rules that match a monitor's filters.
    fn watched(&self, monitor: &MonitorRequest) -> Box<dyn WatchedRules + '_>;

    /// Begins a page of changes and returns its number (see [`RuleChange::page`]).
    fn begin_page(&self) -> u32;

    /// Returns tables that have crossed a vacancy threshold since the last call.
    fn take_table_status(&self) -> Vec<TableStatus>;

    /// Returns tables' counters.
    fn table_stats(&self) -> Vec<TableStats>;

    /// Returns tables' features.
    fn table_features(&self) -> Vec<TableFeatures>;

    /// Returns tables' configuration.
    fn table_configs(&self) -> Vec<TableConfig>;

    /// Returns every port, ascending by number.
    fn ports(&self) -> Vec<PortDescription>;

    /// Returns counters of a port, or of all for [`openflow::port::ANY`]; an empty list for a port
    /// that does not exist.
    fn port_stats(&self, port: PortNo) -> Result<Vec<PortStats>, Error>;

    /// Returns counters of queues.
    fn queue_stats(&self, request: QueueRequest) -> Result<Vec<QueueStats>, Error>;

    /// Returns the configuration of queues.
    fn queues(&self, request: QueueRequest) -> Result<Vec<QueueDescription>, Error>;

    /// Returns counters of a group, or of all for [`openflow::group::ALL`].
    fn group_stats(&self, group: u32) -> Result<Vec<GroupStats>, Error>;

    /// Returns buckets of a group, or of all for [`openflow::group::ALL`].
    fn groups(&self, group: u32) -> Result<Vec<GroupDescription>, Error>;

    /// Returns which groups are supported.
    fn group_features(&self) -> GroupFeatures;

    /// Returns counters of a meter, or of all for [`openflow::meter::ALL`].
    fn meter_stats(&self, meter: u32) -> Result<Vec<MeterStats>, Error>;

    /// Returns bands of a meter, or of all for [`openflow::meter::ALL`].
    fn meters(&self, meter: u32) -> Result<Vec<MeterConfig>, Error>;

    /// Returns which meters are supported.
    fn meter_features(&self) -> MeterFeatures;

    /// Reports whether a primary controller is connected, on which `fail_mode` depends. Called
    /// whenever that changes, and whenever it changes whether a connection wants packets that match
    /// no rule (`OpenFlow::wants_misses`).
    fn controllers_connected(&self, connected: bool);
}
