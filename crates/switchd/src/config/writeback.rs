//! What the daemon writes to the database: the outcome of a configuration, and from time to time
//! the current state.
//!
//! A [`Writeback`] remembers what it has written, cell by cell, and a [`Batch`] leaves out what
//! would not change. A value is remembered only once the server has confirmed it, so the next
//! transaction writes again what a failed one contained. After a reconnection the memory is invalid
//! ([`Writeback::forget`]): the server may have restarted, without the columns that it keeps in
//! memory only.
//!
//! Tools wait for `cur_cfg` and then read `ofport` and `error`: [`Batch::applied`] belongs into the
//! same batch as the [`Batch::interface`]s and [`Batch::bridge`]s of that configuration.
//!
//! A server may refuse one of the values permanently, and with it the whole transaction. A [`Turn`]
//! then finds out which value it is and writes the others without it.

mod turn;

pub use turn::{Blame, Pending, Refusal, Turn};

use std::collections::{BTreeMap, BTreeSet, HashMap};

use ovsdb::vswitch::Strings;
use ovsdb::{Datum, Uuid};
use predict::spread::Spread;

use super::address::Mac;

type Cell = (&'static str, Uuid, &'static str);
/// Values by table and row, and by column.
type Rows = BTreeMap<(&'static str, Uuid), BTreeMap<&'static str, Datum>>;

/// Memory of what the database holds of the daemon's values, and of what it refuses.
#[derive(Debug, Default)]
pub struct Writeback {
    written: HashMap<Cell, Datum>,
    holds: turn::Holds,
}

impl Writeback {
    /// Starts a batch of values. Nothing is written before [`Batch::finish`].
    pub fn begin(&self) -> Batch<'_> {
        Batch {
            writeback: self,
            values: Values::default(),
        }
    }

    /// Forgets everything, so that the next batches write every value. Call after each new
    /// connection.
    pub fn forget(&mut self) {
        *self = Writeback::default();
    }

    /// Forgets rows that are gone. Call with all rows that the database has when a configuration
    /// has been read.
    pub fn retain(&mut self, rows: &BTreeSet<Uuid>) {
        self.written.retain(|(_, uuid, _), _| rows.contains(uuid));
        self.holds.retain(rows);
    }
}

/// Values to write together.
#[derive(Debug)]
pub struct Batch<'w> {
    writeback: &'w Writeback,
    values: Values,
}

/// The values of a batch, to be written by a [`Turn`].
#[derive(Debug, Default)]
pub struct Values {
    rows: Rows,
    /// Cells that were refused, but now are as the database has them.
    settled: Vec<Cell>,
}

impl Values {
    /// Returns whether there is nothing to write.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }
}

/// State of an interface.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InterfaceState {
    /// Its OpenFlow port number; none when it could not be opened, which tools see as -1.
    pub ofport: Option<u16>,
    /// Why it could not be opened.
    pub error: Option<String>,
    /// Its device's address.
    pub mac_in_use: Option<Mac>,
    /// Its device's index in the kernel; 0 for devices that the kernel does not have.
    pub ifindex: Option<u32>,
    /// Its device's MTU.
    pub mtu: Option<u16>,
    /// Whether its device is administratively up.
    pub admin_up: Option<bool>,
    /// Whether its device has a link.
    pub link_up: Option<bool>,
    /// How many times its link has changed.
    pub link_resets: Option<u64>,
    /// Its link's speed, bit/s.
    pub link_speed: Option<u64>,
    /// Whether its link is full duplex.
    pub full_duplex: Option<bool>,
    /// Its driver's name and details.
    pub status: Strings,
    /// State of the monitor of its connectivity; empty for none.
    pub bfd_status: Strings,
}

impl InterfaceState {
    /// Returns the state of an interface that could not be opened.
    pub fn failed(error: impl Into<String>) -> InterfaceState {
        InterfaceState {
            error: Some(error.into()),
            ..InterfaceState::default()
        }
    }
}

/// A controller's role, by the database's names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Equal.
    Other,
    /// Primary.
    Master,
    /// Secondary.
    Slave,
}

/// State of the connection to a controller.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ControllerState {
    /// Whether it is connected.
    pub connected: bool,
    /// Its role; none while it is not connected.
    pub role: Option<Role>,
    /// `state` (`VOID`, `BACKOFF`, `CONNECTING`, `ACTIVE`, `IDLE`), `last_error`,
    /// `sec_since_connect`, `sec_since_disconnect`, ...
    pub status: Strings,
}

/// What the daemon offers; it changes rarely.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Capabilities {
    /// The interface types that can be opened.
    pub interface_types: BTreeSet<String>,
    /// The datapath types that bridges can have.
    pub datapath_types: BTreeSet<String>,
    /// Whether DPDK has been started.
    pub dpdk_initialized: bool,
    /// DPDK's version, such as `DPDK 22.11.3`; none for a daemon without DPDK.
    pub dpdk_version: Option<String>,
}

impl Batch<'_> {
    fn set(
        &mut self,
        table: &'static str,
        uuid: Uuid,
        column: &'static str,
        value: impl Into<Datum>,
    ) {
        let (value, cell) = (value.into(), (table, uuid, column));
        if self.writeback.written.get(&cell) == Some(&value) {
            if self.writeback.holds.contains(&cell) {
                self.values.settled.push(cell);
            }
            return;
        }
        self.values
            .rows
            .entry((table, uuid))
            .or_default()
            .insert(column, value);
    }

    /// Writes `cur_cfg`: the configuration with this `next_cfg` has been applied.
    pub fn applied(&mut self, root: Uuid, cur_cfg: i64) {
        self.set("Open_vSwitch", root, "cur_cfg", cur_cfg);
    }

    /// Writes what the daemon offers. Not its own version (`ovs_version`): as with `ovs-vswitchd`,
    /// the start script writes that.
    pub fn capabilities(&mut self, root: Uuid, capabilities: &Capabilities) {
        let table = "Open_vSwitch";
        self.set(
            table,
            root,
            "iface_types",
            Datum::set(&capabilities.interface_types),
        );
        self.set(
            table,
            root,
            "datapath_types",
            Datum::set(&capabilities.datapath_types),
        );
        self.set(
            table,
            root,
            "dpdk_initialized",
            capabilities.dpdk_initialized,
        );
        self.set(
            table,
            root,
            "dpdk_version",
            capabilities.dpdk_version.as_deref().unwrap_or("none"),
        );
    }

    /// Writes what a datapath can do, for the controllers that read its row.
    pub fn datapath(&mut self, uuid: Uuid, capabilities: &Strings) {
        let capabilities = Datum::map(capabilities);
        self.set("Datapath", uuid, "capabilities", capabilities);
    }

    /// Writes the system's statistics; empty unless `other_config:enable-statistics` is true.
    pub fn system_statistics(&mut self, root: Uuid, statistics: &Strings) {
        self.set("Open_vSwitch", root, "statistics", Datum::map(statistics));
    }

    /// Writes a bridge that was created. `version` is the datapath's.
    pub fn bridge(&mut self, uuid: Uuid, datapath_id: u64, version: &str) {
        self.set("Bridge", uuid, "datapath_id", format!("{datapath_id:016x}"));
        self.set("Bridge", uuid, "datapath_version", version);
    }

    /// Writes a bridge's status: the predicted cost of its rules (cycles per packet, and millions
    /// of packets per second of a core, the least and the most; none if unknown), and the problems
    /// of its row.
    pub fn bridge_status(
        &mut self,
        uuid: Uuid,
        figure: Option<(Spread, Spread)>,
        wrong: Option<(&'static str, String)>,
    ) {
        let status = figure.into_iter().flat_map(|(cycles, mpps)| {
            [
                ("sluice_cycles_per_packet", format!("{:.1}", cycles.median)),
                ("sluice_mpps", format!("{:.2}", mpps.median)),
                ("sluice_mpps_least", format!("{:.2}", mpps.low)),
                ("sluice_mpps_most", format!("{:.2}", mpps.high)),
            ]
        });
        let status = status.chain(wrong);
        self.set("Bridge", uuid, "status", Datum::map(status));
    }

    /// Clears the columns of a bridge that could not be created.
    pub fn failed_bridge(&mut self, uuid: Uuid) {
        self.set("Bridge", uuid, "datapath_id", Datum::empty());
        self.set("Bridge", uuid, "datapath_version", "");
    }

    /// Writes an interface's state. One that could not be opened loses its statistics.
    pub fn interface(&mut self, uuid: Uuid, state: &InterfaceState) {
        let table = "Interface";
        let up_or_down = |up: Option<bool>| up.map(|up| if up { "up" } else { "down" });
        self.set(table, uuid, "ofport", state.ofport.map_or(-1, i64::from));
        self.set(table, uuid, "error", state.error.as_deref());
        self.set(
            table,
            uuid,
            "mac_in_use",
            state.mac_in_use.map(|mac| mac.to_string()),
        );
        self.set(table, uuid, "ifindex", state.ifindex.map(i64::from));
        self.set(table, uuid, "mtu", state.mtu.map(i64::from));
        self.set(table, uuid, "admin_state", up_or_down(state.admin_up));
        self.set(table, uuid, "link_state", up_or_down(state.link_up));
        self.set(table, uuid, "link_resets", state.link_resets.map(number));
        self.set(table, uuid, "link_speed", state.link_speed.map(number));
        self.set(
            table,
            uuid,
            "duplex",
            state
                .full_duplex
                .map(|full| if full { "full" } else { "half" }),
        );
        self.set(table, uuid, "status", Datum::map(&state.status));
        let bfd_status = Datum::map(&state.bfd_status);
        self.set(table, uuid, "bfd_status", bfd_status);
        if state.ofport.is_none() {
            self.set(table, uuid, "statistics", counter_map([]));
        }
    }

    /// Writes an interface's counters by Open vSwitch's names (`rx_packets`, ...).
    pub fn interface_statistics<'n>(
        &mut self,
        uuid: Uuid,
        counters: impl IntoIterator<Item = (&'n str, u64)>,
    ) {
        self.set("Interface", uuid, "statistics", counter_map(counters));
    }

    /// Writes a port's status.
    pub fn port_status(&mut self, uuid: Uuid, status: &Strings) {
        self.set("Port", uuid, "status", Datum::map(status));
    }

    /// Writes a mirror's counters, `tx_packets` and `tx_bytes`.
    pub fn mirror_statistics<'n>(
        &mut self,
        uuid: Uuid,
        counters: impl IntoIterator<Item = (&'n str, u64)>,
    ) {
        self.set("Mirror", uuid, "statistics", counter_map(counters));
    }

    /// Writes the state of the connection to a controller.
    pub fn controller(&mut self, uuid: Uuid, state: &ControllerState) {
        let table = "Controller";
        let role = state.role.map(|role| match role {
            Role::Other => "other",
            Role::Master => "master",
            Role::Slave => "slave",
        });
        self.set(table, uuid, "is_connected", state.connected);
        self.set(table, uuid, "role", role);
        self.set(table, uuid, "status", Datum::map(&state.status));
    }

    /// Returns the values that have changed.
    pub fn finish(self) -> Values {
        self.values
    }
}

/// Converts a counter to the database's signed integers; larger ones become the largest of these.
fn number(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

fn counter_map<'n>(counters: impl IntoIterator<Item = (&'n str, u64)>) -> Datum {
    Datum::map(
        counters
            .into_iter()
            .map(|(name, value)| (name, number(value))),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use ovsdb::Atom;
    use proptest::prelude::*;
    use serde_json::Value;
    use std::time::Instant;

    /// Returns the rows of the single transaction that would be sent; none when there is nothing to
    /// write.
    fn begun(writeback: &mut Writeback, values: Values) -> (Turn, Option<Pending>, Vec<Value>) {
        let now = Instant::now();
        let mut turn = writeback.turn(values, |_, _| true, now);
        let pending = turn.next(writeback, now);
        let params = (pending.as_ref()).map(|pending| pending.transaction.to_params("D"));
        let params = params.unwrap_or_default();
        assert!(params.is_empty() || params[1]["op"] == "assert");
        let rows = params.iter().skip(2);
        let rows = rows.map(|operation| operation["row"].clone()).collect();
        (turn, pending, rows)
    }

    #[test]
    fn only_changes_are_written_and_only_confirmed_ones_remembered() {
        let mut writeback = Writeback::default();
        let port = InterfaceState {
            ofport: Some(3),
            mtu: Some(1500),
            ..InterfaceState::default()
        };
        let both = |writeback: &Writeback| {
            let mut batch = writeback.begin();
            batch.interface(Uuid(1), &port);
            batch.applied(Uuid(2), 7);
            batch.finish()
        };
        let values = both(&writeback);
        let (mut turn, first, rows) = begun(&mut writeback, values);
        assert_eq!(rows.len(), 2);
        assert_eq!(rows[0]["ofport"], 3);

        let values = both(&writeback);
        assert_eq!(
            begun(&mut writeback, values).2.len(),
            2,
            "not confirmed yet"
        );
        turn.accepted(&mut writeback, first.unwrap());
        assert!(turn.next(&mut writeback, Instant::now()).is_none());
        let values = both(&writeback);
        assert!(values.is_empty() && begun(&mut writeback, values).1.is_none());

        let mut batch = writeback.begin();
        batch.interface(
            Uuid(1),
            &InterfaceState {
                mtu: Some(1400),
                ..port.clone()
            },
        );
        let values = batch.finish();
        let (_, _, rows) = begun(&mut writeback, values);
        assert_eq!(rows, [serde_json::json!({"mtu": 1400})]);

        writeback.retain(&BTreeSet::from([Uuid(2)]));
        let values = both(&writeback);
        assert_eq!(begun(&mut writeback, values).2.len(), 1);
        writeback.forget();
        let mut batch = writeback.begin();
        batch.applied(Uuid(2), 7);
        let values = batch.finish();
        assert_eq!(begun(&mut writeback, values).2.len(), 1);
    }

    #[test]
    fn a_failed_interface_has_port_minus_one_its_error_and_nothing_else() {
        let mut writeback = Writeback::default();
        let mut batch = writeback.begin();
        batch.interface(Uuid(1), &InterfaceState::failed("no such thing"));
        let values = batch.finish();
        let row = &begun(&mut writeback, values).2[0];
        assert_eq!(
            (&row["ofport"], &row["error"]),
            (&Value::from(-1), &Value::from("no such thing"))
        );
        assert_eq!(row["mac_in_use"], serde_json::json!(["set", []]));
        assert_eq!(row["status"], serde_json::json!(["map", []]));
    }

    #[test]
    fn each_datapath_row_gets_the_capabilities_once() {
        let mut writeback = Writeback::default();
        let can = Strings::from([("ct_zero_snat".to_owned(), "true".to_owned())]);
        let both = |writeback: &Writeback, rows: &[u128]| {
            let mut batch = writeback.begin();
            for row in rows {
                batch.datapath(Uuid(*row), &can);
            }
            batch.finish()
        };
        let wanted = [serde_json::json!({"capabilities": ["map", [["ct_zero_snat", "true"]]]})];
        let values = both(&writeback, &[1]);
        let (mut turn, pending, rows) = begun(&mut writeback, values);
        assert_eq!(rows, wanted);
        turn.accepted(&mut writeback, pending.unwrap());
        // A row that somebody adds later is the only one that is written then.
        writeback.retain(&BTreeSet::from([Uuid(1), Uuid(2)]));
        let values = both(&writeback, &[1, 2]);
        let (mut turn, pending, rows) = begun(&mut writeback, values);
        assert_eq!(rows, wanted);
        assert!(
            pending
                .iter()
                .flat_map(Pending::cells)
                .all(|((_, row, _), _)| row.0 == 2)
        );
        turn.accepted(&mut writeback, pending.unwrap());
        assert!(both(&writeback, &[1, 2]).is_empty());
    }

    proptest! {
        #[test]
        fn the_database_holds_what_was_said_last(
            steps in prop::collection::vec((0u128..3, prop::option::of(1u16..4), any::<bool>(), any::<bool>()), 1..40),
        ) {
            let mut writeback = Writeback::default();
            let mut database: HashMap<u128, i64> = HashMap::new();
            let mut said: HashMap<u128, i64> = HashMap::new();
            for (row, ofport, works, restarted) in steps {
                if restarted {
                    writeback.forget();
                    database.clear();
                    said.clear();
                }
                let mut batch = writeback.begin();
                batch.interface(Uuid(row), &InterfaceState { ofport, ..InterfaceState::default() });
                let values = batch.finish();
                let (mut turn, pending, _) = begun(&mut writeback, values);
                let Some(pending) = pending else {
                    prop_assert_eq!(database.get(&row), Some(&ofport.map_or(-1, i64::from)));
                    continue;
                };
                if works {
                    for ((_, uuid, column), value) in pending.cells() {
                        if let (&"ofport", Some(Atom::Integer(number))) = (column, value.scalar()) {
                            database.insert(uuid.0, *number);
                        }
                    }
                    turn.accepted(&mut writeback, pending);
                    said.insert(row, ofport.map_or(-1, i64::from));
                }
                prop_assert_eq!(&database, &said);
            }
        }
    }
}
