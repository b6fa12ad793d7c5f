//! What the database is told: the outcome of a configuration, and now and then how things stand.
//!
//! A [`Writeback`] remembers what it has written, cell by cell, and a [`Batch`] leaves out what would not change. Nothing is
//! remembered before the server has confirmed it, so what a failed transaction contained is written again by the next.
//! After every new connection the memory is worth nothing ([`Writeback::forget`]): the server may have started anew,
//! without the columns that it keeps in memory only.
//!
//! Tools wait for `cur_cfg` and then read `ofport` and `error`: [`Batch::applied`] belongs into the same batch as the
//! [`Batch::interface`]s and [`Batch::bridge`]s of that configuration.
//!
//! A server may refuse one of the values for good: its schema is another one, or it bounds what we do not. Then nothing of a transaction happens, so what tools wait for is written without the rest
//! until the rest is tried again, more and more seldom ([`Refusals`]).

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::{Duration, Instant};

use ovsdb::transaction::Refused;
use ovsdb::vswitch::{LOCK, Strings};
use ovsdb::{Datum, Transaction, Uuid};
use predict::spread::Spread;

use super::address::Mac;

type Cell = (&'static str, Uuid, &'static str);

/// How long after the first refusal all is tried again; twice as long after each further one.
const FIRST_WAIT: Duration = Duration::from_secs(1);
/// And at most so long.
const LONGEST_WAIT: Duration = Duration::from_secs(64);
/// How long after what tools wait for has been refused it is tried again: they wait.
const OUTCOME_WAIT: Duration = Duration::from_secs(2);
/// Refusals that are remembered, so that each is told once.
const TOLD_MAX: usize = 64;

/// How much is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// Everything.
    All,
    /// What tools wait for: `cur_cfg`, and `ofport` and `error` of interfaces.
    Outcome,
}

impl Scope {
    fn takes(self, column: &str) -> bool {
        self == Scope::All || matches!(column, "cur_cfg" | "ofport" | "error")
    }
}

/// What the server has refused, and so how much is written.
#[derive(Debug, Default)]
pub struct Refusals {
    last: Option<Refusal>,
    /// What has been told: the RFC's word, the table and the server's explanation.
    told: BTreeSet<(String, String, String)>,
}

#[derive(Debug)]
struct Refusal {
    wait: Duration,
    again: Instant,
}

impl Refusals {
    /// How much to write now.
    pub fn scope(&self, now: Instant) -> Scope {
        match &self.last {
            Some(refusal) if now < refusal.again => Scope::Outcome,
            _ => Scope::All,
        }
    }

    /// When all is to be tried again, where that is not done already.
    pub fn again(&self) -> Option<Instant> {
        self.last.as_ref().map(|refusal| refusal.again)
    }

    /// The server has refused what was written in this scope. Returns how long to wait before anything else is written, and whether this is a refusal that has not been told of.
    pub fn refused(&mut self, refused: &Refused, scope: Scope, now: Instant) -> (Duration, bool) {
        let table = refused.operation.as_ref().map(|failed| &failed.table);
        let table = table.cloned().unwrap_or_default();
        let what = (refused.error.clone(), table, refused.details.clone());
        let is_new = self.told.len() < TOLD_MAX && self.told.insert(what);
        let before = self.last.as_ref().map(|refusal| refusal.wait);
        match (before, scope) {
            // Not even what tools wait for: all is tried when it was to be.
            (Some(_), Scope::Outcome) => return (OUTCOME_WAIT, is_new),
            (before, _) => {
                let wait = before.map_or(FIRST_WAIT, |wait| (wait * 2).min(LONGEST_WAIT));
                let again = now + wait;
                self.last = Some(Refusal { wait, again });
            }
        }
        (Duration::ZERO, is_new)
    }

    /// What was to be written in this scope has been, or there was nothing.
    pub fn written(&mut self, scope: Scope) {
        if scope == Scope::All {
            self.last = None;
        }
    }

    /// Forgets what was refused: what is written next goes to another server, or to one that has become another.
    pub fn forget(&mut self) {
        *self = Refusals::default();
    }
}

/// Remembers what the database holds of what the daemon writes.
#[derive(Debug, Default)]
pub struct Writeback {
    written: HashMap<Cell, Datum>,
}

/// A transaction and what to remember when it has happened.
#[derive(Debug)]
pub struct Pending {
    /// To be sent. It happens only while the daemon holds its lock.
    pub transaction: Transaction,
    cells: Vec<(Cell, Datum)>,
}

impl Writeback {
    /// Collects values, of which those outside of the scope are left out. Nothing happens before [`Batch::finish`].
    pub fn begin(&self, scope: Scope) -> Batch<'_> {
        Batch {
            writeback: self,
            scope,
            rows: BTreeMap::new(),
        }
    }

    /// Remembers what a batch has written. Call when the server has confirmed its transaction.
    pub fn confirm(&mut self, pending: Pending) {
        self.written.extend(pending.cells);
    }

    /// Forgets everything, so that the next batches write every value. Call after each new connection.
    pub fn forget(&mut self) {
        self.written.clear();
    }

    /// Forgets rows that are gone. Call with all rows that the database has when a configuration has been read.
    pub fn retain(&mut self, rows: &BTreeSet<Uuid>) {
        self.written.retain(|(_, uuid, _), _| rows.contains(uuid));
    }
}

/// Values to write together.
#[derive(Debug)]
pub struct Batch<'w> {
    writeback: &'w Writeback,
    scope: Scope,
    rows: BTreeMap<(&'static str, Uuid), BTreeMap<&'static str, Datum>>,
}

/// How an interface turned out.
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
    /// Whether its device is switched on.
    pub admin_up: Option<bool>,
    /// Whether its device has a link.
    pub link_up: Option<bool>,
    /// How often its link changed.
    pub link_resets: Option<u64>,
    /// Its link's speed, bit/s.
    pub link_speed: Option<u64>,
    /// Whether its link carries both directions at once.
    pub full_duplex: Option<bool>,
    /// What its driver says about itself.
    pub status: Strings,
}

impl InterfaceState {
    /// An interface that could not be opened.
    pub fn failed(error: impl Into<String>) -> InterfaceState {
        InterfaceState {
            error: Some(error.into()),
            ..InterfaceState::default()
        }
    }
}

/// A controller's role, in the words of the database.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Equal.
    Other,
    /// Primary.
    Master,
    /// Secondary.
    Slave,
}

/// How the connection to a controller stands.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ControllerState {
    /// Whether it is connected.
    pub connected: bool,
    /// Its role; none while it is not connected.
    pub role: Option<Role>,
    /// `state` (`VOID`, `BACKOFF`, `CONNECTING`, `ACTIVE`, `IDLE`), `last_error`, `sec_since_connect`, `sec_since_disconnect`, ...
    pub status: Strings,
}

/// What the daemon is, which changes seldom.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Capabilities {
    /// The interface types that can be opened.
    pub interface_types: BTreeSet<String>,
    /// The datapath types that bridges can have.
    pub datapath_types: BTreeSet<String>,
    /// Whether DPDK has been started.
    pub dpdk_initialized: bool,
    /// DPDK's version, such as `DPDK 22.11.3`; none when the daemon is without.
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
        if !self.scope.takes(column) {
            return;
        }
        let value = value.into();
        if self.writeback.written.get(&(table, uuid, column)) == Some(&value) {
            return;
        }
        self.rows
            .entry((table, uuid))
            .or_default()
            .insert(column, value);
    }

    /// The configuration `cur_cfg`, which is the `next_cfg` that was read, has been applied.
    pub fn applied(&mut self, root: Uuid, cur_cfg: i64) {
        self.set("Open_vSwitch", root, "cur_cfg", cur_cfg);
    }

    /// What the daemon is. Its own version (`ovs_version`) is not among it: as with `ovs-vswitchd`, the start script writes that.
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

    /// Statistics of the system; empty unless `other_config:enable-statistics` is true.
    pub fn system_statistics(&mut self, root: Uuid, statistics: &Strings) {
        self.set("Open_vSwitch", root, "statistics", Datum::map(statistics));
    }

    /// A bridge that was made. `version` is the datapath's.
    pub fn bridge(&mut self, uuid: Uuid, datapath_id: u64, version: &str) {
        self.set("Bridge", uuid, "datapath_id", format!("{datapath_id:016x}"));
        self.set("Bridge", uuid, "datapath_version", version);
    }

    /// What a bridge's rules were predicted to cost: cycles per packet, and millions of packets per second of a core with the least and the most; none where nothing is known of them.
    pub fn prediction(&mut self, uuid: Uuid, figure: Option<(Spread, Spread)>) {
        let status = figure.into_iter().flat_map(|(cycles, mpps)| {
            [
                ("sluice_cycles_per_packet", format!("{:.1}", cycles.median)),
                ("sluice_mpps", format!("{:.2}", mpps.median)),
                ("sluice_mpps_least", format!("{:.2}", mpps.low)),
                ("sluice_mpps_most", format!("{:.2}", mpps.high)),
            ]
        });
        self.set("Bridge", uuid, "status", Datum::map(status));
    }

    /// A bridge that could not be made.
    pub fn failed_bridge(&mut self, uuid: Uuid) {
        self.set("Bridge", uuid, "datapath_id", Datum::empty());
        self.set("Bridge", uuid, "datapath_version", "");
    }

    /// How an interface turned out, or stands now. One that could not be opened loses its statistics.
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
        if state.ofport.is_none() {
            self.set(table, uuid, "statistics", counter_map([]));
        }
    }

    /// An interface's counters by Open vSwitch's names (`rx_packets`, ...).
    pub fn interface_statistics<'n>(
        &mut self,
        uuid: Uuid,
        counters: impl IntoIterator<Item = (&'n str, u64)>,
    ) {
        self.set("Interface", uuid, "statistics", counter_map(counters));
    }

    /// What a port says about itself.
    pub fn port_status(&mut self, uuid: Uuid, status: &Strings) {
        self.set("Port", uuid, "status", Datum::map(status));
    }

    /// A mirror's counters, `tx_packets` and `tx_bytes`.
    pub fn mirror_statistics<'n>(
        &mut self,
        uuid: Uuid,
        counters: impl IntoIterator<Item = (&'n str, u64)>,
    ) {
        self.set("Mirror", uuid, "statistics", counter_map(counters));
    }

    /// How the connection to a controller stands.
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

    /// The transaction, if anything changed.
    pub fn finish(self) -> Option<Pending> {
        if self.rows.is_empty() {
            return None;
        }
        let mut transaction = Transaction::new();
        transaction.assert_lock(LOCK);
        let mut cells = Vec::new();
        for ((table, uuid), columns) in self.rows {
            let mut row = transaction.update(table, uuid);
            for (column, value) in columns {
                row = row.set(column, value.clone());
                cells.push(((table, uuid, column), value));
            }
        }
        Some(Pending { transaction, cells })
    }
}

/// The database's integers are signed; a counter that outgrows them stays at their end.
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

    fn rows(pending: &Pending) -> Vec<Value> {
        let params = pending.transaction.to_params("D");
        assert_eq!(params[1]["op"], "assert");
        params[2..]
            .iter()
            .map(|operation| operation["row"].clone())
            .collect()
    }

    #[test]
    fn only_changes_are_written_and_only_confirmed_ones_remembered() {
        let mut writeback = Writeback::default();
        let port = InterfaceState {
            ofport: Some(3),
            mtu: Some(1500),
            ..InterfaceState::default()
        };
        let mut batch = writeback.begin(Scope::All);
        batch.interface(Uuid(1), &port);
        batch.applied(Uuid(2), 7);
        let first = batch.finish().unwrap();
        assert_eq!(rows(&first).len(), 2);
        assert_eq!(rows(&first)[0]["ofport"], 3);

        let mut batch = writeback.begin(Scope::All);
        batch.interface(Uuid(1), &port);
        assert!(batch.finish().is_some(), "not confirmed yet");
        writeback.confirm(first);
        let mut batch = writeback.begin(Scope::All);
        batch.interface(Uuid(1), &port);
        batch.applied(Uuid(2), 7);
        assert!(batch.finish().is_none());

        let mut batch = writeback.begin(Scope::All);
        batch.interface(
            Uuid(1),
            &InterfaceState {
                mtu: Some(1400),
                ..port.clone()
            },
        );
        assert_eq!(
            rows(&batch.finish().unwrap()),
            [serde_json::json!({"mtu": 1400})]
        );

        writeback.retain(&BTreeSet::from([Uuid(2)]));
        let mut batch = writeback.begin(Scope::All);
        batch.interface(Uuid(1), &port);
        batch.applied(Uuid(2), 7);
        assert_eq!(rows(&batch.finish().unwrap()).len(), 1);
        writeback.forget();
        let mut batch = writeback.begin(Scope::All);
        batch.applied(Uuid(2), 7);
        assert!(batch.finish().is_some());
    }

    #[test]
    fn a_failed_interface_has_port_minus_one_its_error_and_nothing_else() {
        let writeback = Writeback::default();
        let mut batch = writeback.begin(Scope::All);
        batch.interface(Uuid(1), &InterfaceState::failed("no such thing"));
        let row = &rows(&batch.finish().unwrap())[0];
        assert_eq!(
            (&row["ofport"], &row["error"]),
            (&Value::from(-1), &Value::from("no such thing"))
        );
        assert_eq!(row["mac_in_use"], serde_json::json!(["set", []]));
        assert_eq!(row["status"], serde_json::json!(["map", []]));
    }

    /// A server that refuses each transaction with one of these columns, for an hour in which something is to be written twice a second.
    #[test]
    fn what_a_server_refuses_keeps_nothing_else_from_being_written() {
        let refused = |column: &str| Refused {
            error: "constraint violation".into(),
            operation: Some(Box::new(ovsdb::transaction::FailedOperation {
                table: "Interface".into(),
                columns: vec![column.into()],
                ..Default::default()
            })),
            ..Default::default()
        };
        let start = Instant::now();
        let (mut writeback, mut refusals) = (Writeback::default(), Refusals::default());
        let (mut tried, mut told, mut known) = ([0; 2], 0, 0);
        for turn in 0..7200_u32 {
            let now = start + turn * Duration::from_millis(500);
            let scope = refusals.scope(now);
            let mut batch = writeback.begin(scope);
            let state = InterfaceState {
                ofport: Some(7),
                mtu: Some(1500),
                link_resets: Some(turn.into()),
                ..InterfaceState::default()
            };
            batch.interface(Uuid(1), &state);
            batch.applied(Uuid(2), i64::from(turn / 10));
            let Some(pending) = batch.finish() else {
                refusals.written(scope);
                continue;
            };
            tried[usize::from(scope == Scope::All)] += 1;
            // Repaired in the end.
            let bad = pending
                .cells
                .iter()
                .find(|((_, _, column), _)| *column == "mtu");
            match bad.filter(|_| turn < 7000) {
                Some(((_, _, column), _)) => {
                    told += u32::from(refusals.refused(&refused(column), scope, now).1);
                }
                None => {
                    known = turn / 10;
                    writeback.confirm(pending);
                    refusals.written(scope);
                }
            }
            // Tools wait for the next turn, no longer.
            assert!(
                known + 1 >= turn / 10 && (turn % 10 == 0 || known == turn / 10),
                "{turn}"
            );
        }
        assert_eq!(told, 1);
        assert!((56..=64 + 300).contains(&tried[1]), "{tried:?}");
        assert_eq!(refusals.again(), None);
        let held = writeback.written.get(&("Interface", Uuid(1), "mtu"));
        assert_eq!(held, Some(&Datum::from(Some(1500_i64))));
    }

    #[test]
    fn each_refusal_is_told_of_once_and_tried_more_and_more_seldom() {
        let mut refusals = Refusals::default();
        let refused = |error: &str, details: &str| Refused {
            error: error.into(),
            details: details.into(),
            operation: None,
        };
        let start = Instant::now();
        assert_eq!(
            (refusals.scope(start), refusals.again()),
            (Scope::All, None)
        );
        let mut now = start;
        for (turn, wait) in [1, 2, 4, 8, 16, 32, 64, 64].into_iter().enumerate() {
            let told = refusals.refused(&refused("range error", "mtu"), Scope::All, now);
            assert_eq!(told, (Duration::ZERO, turn == 0));
            // Even the rest may be refused, which puts nothing off for long.
            let told = refusals.refused(&refused("range error", "rest"), Scope::Outcome, now);
            assert_eq!(told, (OUTCOME_WAIT, turn == 0));
            now += Duration::from_secs(wait);
            assert_eq!(refusals.again(), Some(now));
            let before = now - Duration::from_millis(1);
            assert_eq!(
                (refusals.scope(before), refusals.scope(now)),
                (Scope::Outcome, Scope::All)
            );
            refusals.written(Scope::Outcome);
            assert_eq!(refusals.again(), Some(now));
        }
        assert!(
            refusals
                .refused(&refused("resources exhausted", ""), Scope::All, now)
                .1
        );
        refusals.written(Scope::All);
        assert_eq!(refusals.scope(now), Scope::All);
        // Another connection may be to another server.
        refusals.forget();
        assert!(
            refusals
                .refused(&refused("range error", "mtu"), Scope::All, now)
                .1
        );
        // Whatever a server says, the log has an end.
        let many = (0..1000).filter(|number| {
            let refused = refused("range error", &format!("{number} is not in range"));
            refusals.refused(&refused, Scope::Outcome, now).1
        });
        assert_eq!(many.count(), TOLD_MAX - 1);
        assert_eq!(refusals.again(), Some(now + FIRST_WAIT));
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
                let mut batch = writeback.begin(Scope::All);
                batch.interface(Uuid(row), &InterfaceState { ofport, ..InterfaceState::default() });
                let Some(pending) = batch.finish() else {
                    prop_assert_eq!(database.get(&row), Some(&ofport.map_or(-1, i64::from)));
                    continue;
                };
                if works {
                    for ((_, uuid, column), value) in &pending.cells {
                        if let (&"ofport", Some(Atom::Integer(number))) = (column, value.scalar()) {
                            database.insert(uuid.0, *number);
                        }
                    }
                    writeback.confirm(pending);
                    said.insert(row, ofport.map_or(-1, i64::from));
                }
                prop_assert_eq!(&database, &said);
            }
        }
    }
}
