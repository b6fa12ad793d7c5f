//! The loop around the configuration: reads the database, changes devices, and writes the outcome.
//!
//! One task follows the database and applies its contents; another writes back whatever has changed
//! since its last transaction, one transaction at a time, so that a slow database delays only these
//! writes. A third task watches devices ([`devices`]). All end with the daemon.

pub(super) mod devices;

use super::execute::Failures;
use super::{Switch, processors};
use crate::config::writeback::{Blame, Refusal, Values, Writeback};
use crate::config::{Abilities, Desired, Problems, Severity};
use crate::turns;
use ovsdb::client::{Client, ClientError, Config, Event, Events, LockState};
use ovsdb::stream::Remote;
use ovsdb::vswitch::{self, Snapshot};
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::{Duration, Instant};
use tokio::sync::Notify;

/// Time limit of one transaction.
const WRITE_LIMIT: Duration = Duration::from_secs(30);
/// Pause after a transaction that failed as a whole; doubled after each further failure.
const WRITE_PAUSE: Duration = Duration::from_millis(500);
/// Longest such pause: tools wait for the result.
const WRITE_PAUSE_MAX: Duration = Duration::from_secs(8);

/// The link between the database and the switch.
pub struct Database {
    switch: Rc<Switch>,
    client: Client,
    /// The last configuration that was applied, and its failures.
    current: RefCell<Option<(Desired, Failures)>>,
    problems: RefCell<Problems>,
    writeback: RefCell<Writeback>,
    /// Notified when something is to be written.
    dirty: Notify,
    /// Whether statistics are due.
    statistics: Cell<bool>,
    contended: Cell<bool>,
    /// Held while a configuration is being applied, in slices.
    changing: tokio::sync::Mutex<()>,
    /// Notified when the database's contents are unknown, as after a reconnection.
    anew: Notify,
    /// Notified when a configuration has been applied.
    configured: Notify,
    /// State of kernel interfaces: changes, and interfaces that could not be opened.
    devices: devices::Known,
}

impl Database {
    /// Connects to the database at `remote`. Must be called within the control thread's runtime.
    pub fn connect(switch: &Rc<Switch>, remote: &str) -> anyhow::Result<(Rc<Database>, Events)> {
        let remote = remote.parse::<Remote>()?;
        let mut config = Config::new(remote, vswitch::DATABASE);
        config.monitor = vswitch::monitor();
        config.lock = Some(vswitch::LOCK.to_owned());
        config.tls = super::tls_of(&switch.shell);
        let (client, events) = ovsdb::client::connect(config);
        let database = Rc::new(Database {
            switch: Rc::clone(switch),
            client,
            current: RefCell::new(None),
            problems: RefCell::default(),
            writeback: RefCell::default(),
            dirty: Notify::new(),
            statistics: Cell::new(false),
            contended: Cell::new(false),
            changing: tokio::sync::Mutex::new(()),
            anew: Notify::new(),
            configured: Notify::new(),
            devices: devices::Known::default(),
        });
        Ok((database, events))
    }

    fn abilities(&self) -> Abilities {
        Abilities {
            interface_types: self.switch.interface_types(),
            datapath_types: self.switch.datapath_types(),
            cpus: processors::possible().to_vec(),
            machine_cpus: softirq::cpus::present()
                .into_iter()
                .map(|cpu| cpu as usize)
                .collect(),
            rundir: self.switch.shell.options.directories.run.clone(),
        }
    }

    /// Follows the database until the daemon ends.
    pub async fn follow(self: Rc<Self>, mut events: Events) -> anyhow::Result<()> {
        while let Some(event) = events.next().await {
            match event {
                Event::Connected => {
                    self.begin_anew();
                    self.reconfigure().await?;
                }
                Event::Updated => self.reconfigure().await?,
                Event::LockAcquired => {
                    if self.contended.replace(false) {
                        tracing::info!(target: "bridge", "the other ovs-vswitchd is gone, taking over");
                    }
                    // Another daemon may have written other values.
                    self.begin_anew();
                    self.reconfigure().await?;
                }
                // Losing the connection also loses the lock, but then forwarding continues.
                Event::LockLost if self.client.lock() == LockState::Contended => {
                    self.stand_back().await?
                }
                Event::LockLost => {}
                Event::Disconnected => {
                    tracing::warn!(target: "bridge", "{}: the database is gone; forwarding goes on", self.switch.shell.options.database);
                }
            }
        }
        Ok(())
    }

    /// The database's contents are unknown: writes everything again, with statistics, and without
    /// waiting after earlier failures.
    fn begin_anew(&self) {
        self.writeback.borrow_mut().forget();
        self.statistics.set(true);
        self.anew.notify_one();
    }

    /// Stops forwarding while another daemon has the database's lock.
    async fn stand_back(&self) -> anyhow::Result<()> {
        if !self.contended.replace(true) {
            tracing::error!(target: "bridge",
                "another ovs-vswitchd process is running, disabling this process (pid {}) until it goes away", std::process::id());
        }
        let _changing = self.changing.lock().await;
        self.take_down().await
    }

    /// Removes all bridges. A daemon that has had no configuration yet has none, and must not start
    /// DPDK without the database's options for it.
    async fn take_down(&self) -> anyhow::Result<()> {
        self.current.replace(None);
        let global = self.switch.applied.borrow().global.clone();
        if let Some(global) = global {
            let nothing = Desired {
                global,
                ..Desired::default()
            };
            self.switch.apply(&nothing).await?;
        }
        Ok(())
    }

    fn global(&self) -> crate::config::global::Global {
        self.switch
            .applied
            .borrow()
            .global
            .clone()
            .unwrap_or_default()
    }

    /// Reads the configuration and applies it, if this daemon has the lock.
    async fn reconfigure(&self) -> anyhow::Result<()> {
        let _changing = self.changing.lock().await;
        if !self.client.has_lock() {
            return Ok(());
        }
        let snapshot = self.client.with_replica(Snapshot::of);
        let (mut desired, mut problems) = Desired::from_snapshot(&snapshot, &self.abilities());
        {
            let applied = self.switch.applied.borrow();
            desired.refuse_alike(&applied, &mut problems);
            desired.keep(&applied);
        }
        for problem in problems.new_since(&self.problems.borrow()) {
            match problem.severity {
                Severity::Error => tracing::error!(target: "bridge", "{problem}"),
                Severity::Warning => tracing::warn!(target: "bridge", "{problem}"),
                Severity::Note => tracing::info!(target: "bridge", "{problem}"),
            }
        }
        self.problems.replace(problems);
        if desired.root.is_some() {
            return self.apply(desired).await;
        }
        // A database without its root row asks for no bridges; that counts as applied.
        self.dirty.notify_one();
        self.take_down().await
    }

    async fn apply(&self, desired: Desired) -> anyhow::Result<()> {
        let failures = self.switch.apply(&desired).await?;
        self.current.replace(Some((desired, failures)));
        self.configured.notify_one();
        self.dirty.notify_one();
        Ok(())
    }

    /// Asks for what has changed to be written.
    pub fn write_soon(&self) {
        self.dirty.notify_one();
    }

    /// Asks for statistics to be written with the next transaction.
    pub fn want_statistics(&self) {
        self.statistics.set(true);
        self.dirty.notify_one();
    }

    /// Returns the interval at which statistics are written.
    pub fn statistics_interval(&self) -> Duration {
        Duration::from_millis(self.global().statistics_interval.into())
    }

    /// Writes back until the daemon ends. `first` is called when the first configuration has been
    /// applied and that has been written.
    pub async fn write(self: Rc<Self>, first: impl Fn()) {
        let (mut pause, mut told) = (WRITE_PAUSE, None);
        loop {
            self.something_to_write().await;
            if !self.client.is_connected() || !self.client.has_lock() {
                self.writeback.borrow_mut().release();
                continue;
            }
            // Never report a half-applied configuration: a port that is removed and added again
            // would be reported as gone.
            let collected = {
                let _changing = self.changing.lock().await;
                turns::step(|| "values".into(), || self.collect())
            };
            let Some(values) = collected else {
                self.writeback.borrow_mut().release();
                first();
                continue;
            };
            let Err(problem) = self.take_turn(values).await else {
                (pause, told) = (WRITE_PAUSE, None);
                first();
                continue;
            };
            if told.as_ref() != Some(&problem) {
                tracing::warn!(target: "bridge", "{problem}");
            }
            told = Some(problem);
            self.statistics.set(true);
            pause = match tokio::time::timeout(pause, self.anew.notified()).await {
                Ok(()) => WRITE_PAUSE,
                Err(_) => (pause * 2).min(WRITE_PAUSE_MAX),
            };
            self.dirty.notify_one();
        }
    }

    /// Waits until something has changed, or a refused value is to be retried.
    async fn something_to_write(&self) {
        let again = self.writeback.borrow().again();
        match again {
            None => self.dirty.notified().await,
            Some(again) => {
                // Either one ends the wait.
                let _ = tokio::time::timeout_at(again.into(), self.dirty.notified()).await;
            }
        }
    }

    /// Writes what has changed, and refused values that are due. Values that the server refuses are
    /// left out. Fails when nothing can be written now.
    async fn take_turn(&self, values: Values) -> Result<(), String> {
        let schema = self.client.with_replica(|replica| replica.schema.clone());
        let knows = |table: &str, column: &str| schema.column(table, column).is_some();
        let mut turn = (self.writeback.borrow_mut()).turn(values, knows, Instant::now());
        for (table, column) in &turn.lacking {
            tracing::warn!(target: "bridge", "the database lacks column {column} of table {table}, which is not written");
        }
        loop {
            let pending = turn.next(&mut self.writeback.borrow_mut(), Instant::now());
            let Some(pending) = pending else {
                return Ok(());
            };
            let transact = self.client.transact(&pending.transaction);
            match tokio::time::timeout(WRITE_LIMIT, transact).await {
                Ok(Ok(_)) => turn.accepted(&mut self.writeback.borrow_mut(), pending),
                Ok(Err(ClientError::Refused(refused))) => {
                    let mut writeback = self.writeback.borrow_mut();
                    match turn.refused(&mut writeback, pending, &refused, Instant::now()) {
                        Blame::Values => {}
                        Blame::News(refusal) => self.tell(&refusal),
                        Blame::Nothing => {
                            return Err(format!("cannot write to the database: {refused}"));
                        }
                    }
                }
                Ok(Err(error)) => return Err(format!("cannot write to the database: {error}")),
                Err(_) => {
                    self.writeback.borrow_mut().doubt(&pending);
                    let seconds = WRITE_LIMIT.as_secs();
                    return Err(format!("the database has not answered for {seconds} s"));
                }
            }
        }
    }

    /// Logs a value that the database refuses, with its row's name if there is one.
    fn tell(&self, refusal: &Refusal) {
        let name = self.client.with_replica(|replica| {
            let row = replica.row(refusal.table, refusal.row);
            row.map(|row| row.string("name").to_owned())
        });
        let name = name.filter(|name| !name.is_empty());
        let of = name.map(|name| format!(" of {name}")).unwrap_or_default();
        tracing::warn!(target: "bridge", "the database refuses a value{of}, which is tried again now and then: {refusal}");
    }

    /// Returns all that has changed; none when there is no configuration.
    fn collect(&self) -> Option<Values> {
        let current = self.current.borrow();
        let (desired, failures) = current.as_ref()?;
        let rows = self.client.with_replica(rows_of);
        self.writeback.borrow_mut().retain(&rows);
        let writeback = self.writeback.borrow();
        let mut batch = writeback.begin();
        self.switch.report(desired, failures, &mut batch);
        if self.statistics.replace(false) {
            self.switch.report_statistics(desired, &mut batch);
        }
        if let Some(root) = desired.root {
            batch.applied(root, desired.next_cfg);
        }
        Some(batch.finish())
    }
}

fn rows_of(replica: &ovsdb::Replica) -> std::collections::BTreeSet<ovsdb::Uuid> {
    [
        "Open_vSwitch",
        "Bridge",
        "Port",
        "Interface",
        "Controller",
        "Mirror",
        "Datapath",
    ]
    .into_iter()
    .flat_map(|table| {
        replica
            .rows(table)
            .map(|(uuid, _)| uuid)
            .collect::<Vec<_>>()
    })
    .collect()
}
