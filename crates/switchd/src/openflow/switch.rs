//! What the OpenFlow side of a bridge needs from the switch behind it.

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

/// A dump of rules that goes on in slices, while rules change.
pub trait FlowDump {
    /// Looks at up to `budget` more rules and gives those that are meant to `take`; true when it
    /// has come to its end. Every rule that is there from beginning to end comes once.
    fn next(&mut self, budget: usize, take: &mut dyn FnMut(&FlowStats)) -> bool;

    /// Likewise, adding the counters of those that are meant to `sums`.
    fn sum(&mut self, budget: usize, sums: &mut Aggregate) -> bool;
}

/// The rules that a monitor's filters let through, in slices like [`FlowDump`]'s.
pub trait WatchedRules {
    /// Looks at up to `budget` more rules and gives those that are meant to `take`; true when it
    /// has come to its end.
    fn next(&mut self, budget: usize, take: &mut dyn FnMut(SeenRule)) -> bool;
}

/// Why a bundle was not carried out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BundleFailure {
    /// The message that failed: how many were before it.
    pub message: usize,
    /// What is wrong with it.
    pub error: Error,
}

/// A bridge, as controllers see it.
///
/// Calls come from the control thread, one at a time, and never from inside another one's callback;
/// an implementation may keep its state in a `RefCell`. None may block. A call may tell the
/// connections at once what it caused (flow-removed, port status) through [`super::OpenFlow`].
///
/// Changes need not reach the workers before [`Switch::publish`]; questions see them at once.
pub trait Switch {
    /// Identity and abilities. `ports` is filled only when `with_ports`, since most versions ask
    /// for them elsewhere. `auxiliary` is ignored.
    fn features(&self, with_ports: bool) -> Features;

    /// Who made the switch.
    fn description(&self) -> Description;

    /// What is done with IP fragments.
    fn fragments(&self) -> Fragments;

    /// Changes what is done with IP fragments.
    fn set_fragments(&self, fragments: Fragments) -> Result<(), Error>;

    /// Changes the flow tables. What takes long goes on in slices: then this gives what is done
    /// when it has ended. It goes on whether or not that is waited for, is published and told of in
    /// the end, and others wait meanwhile ([`Switch::busy`]).
    fn flow_mod(
        &self,
        change: &FlowMod,
        version: Version,
    ) -> Result<Option<LocalFuture<Result<(), Error>>>, Error>;

    /// While rules are being changed in slices, what is done when they may not be any more. Until
    /// then nothing else that changes rules or asks for them is called.
    fn busy(&self) -> Option<LocalFuture<()>> {
        None
    }

    /// Where changes have come faster than what they left could be freed, what is done when who
    /// sent them may send more.
    fn make_up(&self) -> Option<LocalFuture<()>> {
        None
    }

    /// Sends a packet: the changes before it hold for it too. The switch publishes them itself when
    /// it must.
    fn packet_out(&self, packet: &PacketOut, version: Version) -> Result<(), Error>;

    /// Goes on with a packet that has stopped for the controllers.
    fn resume(&self, packet: &PacketIn) -> Result<(), Error> {
        let _ = packet;
        Err(Error::ResumeUnsupported)
    }

    /// What the host can do for steering, and does.
    fn capabilities(&self) -> Result<LocalFuture<HostCapabilities>, Error> {
        Err(Error::BadExperimenterType)
    }

    /// Takes a choice of mode, where it is one; the mode in force.
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

    /// The entries of a steering table.
    fn steering_entries(
        &self,
        target: &Target,
    ) -> Result<LocalFuture<Result<Vec<SteeringStats>, Error>>, Error> {
        let _ = target;
        Err(Error::BadExperimenterType)
    }

    /// The virtual machines behind ports.
    fn vms(&self) -> Vec<VmStatus> {
        Vec::new()
    }

    /// Configures a port.
    fn port_mod(&self, change: &PortMod) -> Result<(), Error>;

    /// Configures a table, in the words of a version.
    fn table_mod(&self, change: &TableConfig, version: Version) -> Result<(), Error>;

    /// Changes what tables can do, as far as that can be changed (their names).
    fn change_table_features(&self, wanted: &[TableFeatures]) -> Result<(), Error>;

    /// Changes the map of tunnel options.
    fn tlv_table_mod(&self, change: &TlvTableMod) -> Result<(), Error>;

    /// The map of tunnel options.
    fn tlv_table(&self) -> TlvTable;

    /// Changes the groups.
    fn group_mod(&self, change: &GroupMod, version: Version) -> Result<(), Error>;

    /// Changes the meters.
    fn meter_mod(&self, change: &MeterMod) -> Result<(), Error>;

    /// What is to be refused of a message when it is added to a bundle, and not when that is
    /// committed.
    fn check_bundled(&self, message: &Message, version: Version) -> Result<(), Error> {
        let _ = (message, version);
        Ok(())
    }

    /// Does all of the messages (flow mods, port mods, group mods, packet-outs), which come in
    /// pieces, or none: then it says which failed first, and why. In slices like
    /// [`Switch::flow_mod`] where there are many. A packet-out goes by what the messages before
    /// it have changed, and not by what those behind it change.
    fn bundle(
        &self,
        pieces: Vec<Vec<Message>>,
        version: Version,
    ) -> Result<Option<LocalFuture<Result<(), BundleFailure>>>, BundleFailure>;

    /// Milliseconds after which a bundle that nobody touches is thrown away.
    fn bundle_idle_ms(&self) -> i64;

    /// Makes the changes so far visible to the workers. Called once for each batch of messages that
    /// were read together, also when nothing changed.
    fn publish(&self);

    /// Done when every worker has seen what was published before the call.
    fn barrier(&self) -> LocalFuture<()>;

    /// Begins a dump of the rules that the request means.
    fn flows(&self, request: &FlowStatsRequest) -> Result<Box<dyn FlowDump + '_>, Error>;

    /// Says whether anybody wants [`Switch::take_changes`].
    fn watch(&self, watched: bool);

    /// The changes of rules since the last call, in order, up to `limit`.
    fn take_changes(&self, limit: usize) -> Vec<RuleChange>;

    /// Begins to look at the rules that a monitor's filters let through.
    fn watched(&self, monitor: &MonitorRequest) -> Box<dyn WatchedRules + '_>;

    /// Begins a page of changes; its number (see [`RuleChange::page`]).
    fn begin_page(&self) -> u32;

    /// Tables that have filled up or emptied past a threshold since the last call.
    fn take_table_status(&self) -> Vec<TableStatus>;

    /// Tables' counters.
    fn table_stats(&self) -> Vec<TableStats>;

    /// What tables can do.
    fn table_features(&self) -> Vec<TableFeatures>;

    /// Tables' configuration.
    fn table_configs(&self) -> Vec<TableConfig>;

    /// Every port, ascending by number.
    fn ports(&self) -> Vec<PortDescription>;

    /// Counters of a port, or of all for [`openflow::port::ANY`]. None for a port that is not
    /// there.
    fn port_stats(&self, port: PortNo) -> Result<Vec<PortStats>, Error>;

    /// Counters of queues.
    fn queue_stats(&self, request: QueueRequest) -> Result<Vec<QueueStats>, Error>;

    /// Configuration of queues.
    fn queues(&self, request: QueueRequest) -> Result<Vec<QueueDescription>, Error>;

    /// Counters of a group, or of all for [`openflow::group::ALL`].
    fn group_stats(&self, group: u32) -> Result<Vec<GroupStats>, Error>;

    /// Buckets of a group, or of all for [`openflow::group::ALL`].
    fn groups(&self, group: u32) -> Result<Vec<GroupDescription>, Error>;

    /// What groups are possible.
    fn group_features(&self) -> GroupFeatures;

    /// Counters of a meter, or of all for [`openflow::meter::ALL`].
    fn meter_stats(&self, meter: u32) -> Result<Vec<MeterStats>, Error>;

    /// Bands of a meter, or of all for [`openflow::meter::ALL`].
    fn meters(&self, meter: u32) -> Result<Vec<MeterConfig>, Error>;

    /// What meters are possible.
    fn meter_features(&self) -> MeterFeatures;

    /// A primary controller came or the last one went: `fail_mode` depends on it. Called on every
    /// change of whether one is connected, and of whether one wants packets that meet no rule
    /// (`OpenFlow::wants_misses`).
    fn controllers_connected(&self, connected: bool);
}
