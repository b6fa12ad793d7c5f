//! Controllers as configured in the database: connecting again and again, or listening, and
//! reporting their state to the database.

use super::connection::{self, Observer, Terms};
use super::hub::Hub;
use super::session::{ConnectionType, Live, Session};
use crate::clock;
use crate::streams::{Active, Listener, Passive, Stream, Tls, connect};
use crate::turns;
use openflow::message::Role;
use std::cell::{Cell, RefCell};
use std::rc::{Rc, Weak};
use std::time::Duration;

/// First pause between connection attempts, s.
const FIRST_BACKOFF: u32 = 1;
/// Shortest time limit of a connection attempt, s.
const CONNECT_LIMIT: u32 = 10;
/// Pause after an error in `accept`, which is usually temporary (too many open files).
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// A controller's settings from its row.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ControllerSettings {
    /// `tcp:`, `ssl:`, `unix:` to connect to, `ptcp:`, `pssl:`, `punix:` to listen on.
    pub target: String,
    /// Whether it is a service controller; see [`ConnectionType::Service`].
    pub service: bool,
    /// Longest pause between attempts, seconds.
    pub max_backoff: u32,
    /// Silence before a probe, seconds; 0 for never.
    pub inactivity_probe: u32,
    /// Whether asynchronous messages are sent without being asked for.
    pub asynchronous: bool,
    /// Most packet-ins that wait to be sent.
    pub queue_size: u16,
    /// Packet-ins per second; 0 for no limit. More are dropped and counted.
    pub rate_limit: u32,
    /// Packet-ins in a burst above the rate; 0 for a quarter of a second's.
    pub burst_limit: u32,
    /// The DSCP of what is sent to it, 0 to 63 (`Controller.other_config:dscp`).
    pub dscp: u8,
}

impl From<&crate::config::controller::Controller> for ControllerSettings {
    fn from(row: &crate::config::controller::Controller) -> ControllerSettings {
        ControllerSettings {
            target: row.target.clone(),
            service: row.service,
            max_backoff: row.max_backoff,
            inactivity_probe: row.inactivity_probe,
            asynchronous: row.asynchronous,
            queue_size: row.queue_size,
            rate_limit: row.rate_limit,
            burst_limit: row.burst_limit,
            dscp: row.dscp,
        }
    }
}

impl ControllerSettings {
    fn terms(&self) -> Terms {
        let live = Rc::new(Live::new(Duration::ZERO, 1));
        self.apply(&live);
        Terms {
            kind: if self.service {
                ConnectionType::Service
            } else {
                ConnectionType::Primary
            },
            asynchronous: self.asynchronous,
            dscp: self.dscp,
            live,
        }
    }

    /// Returns whether other settings can be applied without a new connection.
    fn is_same_connection(&self, other: &ControllerSettings) -> bool {
        (&self.target, self.service, self.asynchronous, self.dscp)
            == (&other.target, other.service, other.asynchronous, other.dscp)
    }

    /// Applies the settings that may change while a connection is up.
    fn apply(&self, live: &Live) {
        live.probe
            .set(Duration::from_secs(self.inactivity_probe.into()));
        live.max_backoff.set(self.max_backoff);
        live.packet_in_limit.set(self.queue_size.max(1).into());
        live.rate.set(self.rate_limit);
        live.burst.set(self.burst_limit);
        live.changed.notify_waiters();
    }
}

/// State of a controller for the database (`Controller.is_connected`, `role`, `status`).
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ControllerStatus {
    /// The row's target.
    pub target: String,
    /// Whether a connection is up.
    pub is_connected: bool,
    /// `other`, `master` or `slave`; None without a connection.
    pub role: Option<&'static str>,
    /// `state`, `last_error`, `sec_since_connect`, `sec_since_disconnect`, `n_connections`.
    pub status: Vec<(&'static str, String)>,
}

/// State of an active connection, by Open vSwitch's names.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum State {
    #[default]
    Void,
    Backoff,
    Connecting,
    Active,
    Idle,
}

impl State {
    fn name(self) -> &'static str {
        match self {
            State::Void => "VOID",
            State::Backoff => "BACKOFF",
            State::Connecting => "CONNECTING",
            State::Active => "ACTIVE",
            State::Idle => "IDLE",
        }
    }
}

/// State of a controller, updated by its task.
#[derive(Default)]
pub(super) struct Record {
    state: Cell<State>,
    connected_at: Cell<Option<i64>>,
    disconnected_at: Cell<Option<i64>>,
    last_error: RefCell<Option<String>>,
    sessions: RefCell<Vec<Weak<Session>>>,
}

impl Observer for Record {
    fn established(&self, session: &Rc<Session>) {
        self.state.set(State::Active);
        self.connected_at.set(Some(clock::now()));
        let mut sessions = self.sessions.borrow_mut();
        sessions.retain(|other| other.strong_count() > 0);
        sessions.push(Rc::downgrade(session));
    }

    fn idle(&self, idle: bool) {
        self.state
            .set(if idle { State::Idle } else { State::Active });
    }
}

impl Record {
    fn role(&self) -> Option<&'static str> {
        let sessions = self.sessions.borrow();
        let session = sessions.iter().find_map(Weak::upgrade)?;
        Some(match session.role.get() {
            Role::Primary => "master",
            Role::Secondary => "slave",
            Role::Equal | Role::NoChange => "other",
        })
    }

    fn connections(&self) -> usize {
        self.sessions
            .borrow()
            .iter()
            .filter(|session| session.strong_count() > 0)
            .count()
    }

    /// Returns the rate limit's counters for packet-ins, if there is a limit.
    fn packet_ins(&self) -> Vec<(&'static str, String)> {
        let sessions = self.sessions.borrow();
        let counts = sessions
            .iter()
            .find_map(Weak::upgrade)
            .and_then(|session| session.scheduler.counts(&session.live));
        let Some([miss, action]) = counts else {
            return Vec::new();
        };
        let pairs = [
            ("packet-in-miss-backlog", miss.backlog),
            ("packet-in-miss-bypassed", miss.bypassed),
            ("packet-in-miss-queued", miss.queued),
            ("packet-in-miss-dropped", miss.dropped),
            ("packet-in-action-backlog", action.backlog),
            ("packet-in-action-bypassed", action.bypassed),
            ("packet-in-action-queued", action.queued),
            ("packet-in-action-dropped", action.dropped),
        ];
        pairs.map(|(name, count)| (name, count.to_string())).into()
    }

    /// Returns the state for the database.
    pub(super) fn status(&self, target: &str, passive: bool) -> ControllerStatus {
        let connections = self.connections();
        let mut status = Vec::new();
        let since = |moment: Option<i64>| {
            moment.map(|moment| ((clock::now() - moment) / 1000).max(0).to_string())
        };
        status.extend(self.packet_ins());
        if passive {
            if connections > 1 {
                status.push(("n_connections", connections.to_string()));
            }
        } else {
            if let Some(error) = &*self.last_error.borrow() {
                status.push(("last_error", error.clone()));
            }
            status.push(("state", self.state.get().name().to_owned()));
        }
        if let Some(seconds) = since(self.connected_at.get()) {
            status.push(("sec_since_connect", seconds));
        }
        if let Some(seconds) = since(self.disconnected_at.get()) {
            status.push(("sec_since_disconnect", seconds));
        }
        ControllerStatus {
            target: target.to_owned(),
            is_connected: connections > 0,
            role: self.role(),
            status,
        }
    }

    fn ended(&self, reason: &str) {
        self.disconnected_at.set(Some(clock::now()));
        *self.last_error.borrow_mut() = Some(reason.to_owned());
    }
}

/// A controller with its task; dropping it ends the task.
pub(super) struct Controller {
    pub(super) settings: ControllerSettings,
    pub(super) record: Rc<Record>,
    live: Rc<Live>,
    task: tokio::task::JoinHandle<()>,
}

impl Drop for Controller {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Controller {
    /// Starts to connect, or to listen. Must be called inside a `LocalSet`. The error says why the
    /// target cannot be used.
    pub(super) fn start(
        hub: &Rc<Hub>,
        tls: &Rc<Tls>,
        settings: ControllerSettings,
    ) -> Result<Controller, String> {
        let record = Rc::new(Record::default());
        let terms = settings.terms();
        let live = terms.live.clone();
        let default_port = crate::streams::OPENFLOW_PORT;
        let task = if Passive::is_name(&settings.target) {
            let passive = Passive::parse(&settings.target, default_port)
                .map_err(|error| error.to_string())?;
            let listener = Listener::bind(&passive).map_err(|error| {
                format!(
                    "failed to listen on {}: {}",
                    settings.target,
                    crate::plain_error(&error)
                )
            })?;
            let purpose = Purpose::Control(terms, record.clone());
            turns::spawn(
                "OpenFlow",
                listen(hub.clone(), tls.clone(), listener, purpose),
            )
        } else {
            let active =
                Active::parse(&settings.target, default_port).map_err(|error| error.to_string())?;
            turns::spawn(
                "OpenFlow",
                keep_connected(hub.clone(), tls.clone(), active, terms, record.clone()),
            )
        };
        Ok(Controller {
            settings,
            record,
            live,
            task,
        })
    }

    /// Applies other settings if that needs no new connection; returns whether it did.
    pub(super) fn adopt(&mut self, settings: &ControllerSettings) -> bool {
        if !self.settings.is_same_connection(settings) {
            return false;
        }
        if self.settings != *settings {
            self.settings = settings.clone();
            settings.apply(&self.live);
        }
        true
    }

    /// Returns the state for the database.
    pub(super) fn status(&self) -> ControllerStatus {
        let passive = Passive::is_name(&self.settings.target);
        self.record.status(&self.settings.target, passive)
    }
}

/// Kind of the connections to a listening socket.
#[derive(Clone)]
pub(super) enum Purpose {
    /// An OpenFlow connection, of a controller or a management tool.
    Control(Terms, Rc<Record>),
    /// A snooper, which gets copies of others' messages.
    Snoop,
}

/// Accepts connections and runs each in a task of its own; they end with the listener.
pub(super) async fn listen(hub: Rc<Hub>, tls: Rc<Tls>, listener: Listener, purpose: Purpose) {
    let mut connections = tokio::task::JoinSet::new();
    loop {
        tokio::select! {
            incoming = listener.accept() => match incoming {
                Ok(incoming) => {
                    // Connections that have been evicted end in a moment.
                    let most = super::hub::MAX_SESSIONS;
                    let full = connections.len() >= most;
                    if full && (connections.len() >= 2 * most || !hub.end_most_silent()) {
                        super::hub::count_refused();
                        continue;
                    }
                    let (hub, tls, purpose) = (hub.clone(), tls.clone(), purpose.clone());
                    connections.spawn_local(turns::task("OpenFlow", async move {
                        match incoming.establish(&tls).await {
                            Ok(stream) => serve(&hub, stream, &purpose).await,
                            Err(error) => {
                                tracing::warn!(target: "connmgr", "{}: {error}", hub.bridge);
                            }
                        }
                    }));
                }
                Err(error) => {
                    tracing::warn!(target: "connmgr", "{}: accept failed ({})", listener.name(), crate::plain_error(&error));
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            },
            Some(_) = connections.join_next(), if !connections.is_empty() => {}
        }
    }
}

async fn serve(hub: &Rc<Hub>, stream: Stream, purpose: &Purpose) {
    let peer = format!("{}<->{}", hub.bridge, stream.peer());
    match purpose {
        Purpose::Control(terms, record) => {
            mark(&stream, terms, &peer);
            let reason = connection::run(hub, stream, &peer, terms, &**record).await;
            tracing::debug!(target: "rconn", "{peer}: {reason}");
            record.ended(&reason);
        }
        Purpose::Snoop => connection::run_snooper(hub, stream, &peer).await,
    }
}

/// Sets the DSCP of a connection. If that fails the connection works all the same.
fn mark(stream: &Stream, terms: &Terms, peer: &str) {
    if let Err(error) = stream.set_dscp(terms.dscp) {
        tracing::warn!(target: "rconn", "{peer}: DSCP {} cannot be set ({})", terms.dscp, crate::plain_error(&error));
    }
}

/// Logs the end of a connection to a controller, at the same level as Open vSwitch.
fn tell_end(peer: &str, reason: &str) {
    if reason.starts_with("no response") {
        tracing::error!(target: "rconn", "{peer}: {reason}");
    } else if reason.starts_with("connection dropped") {
        tracing::warn!(target: "rconn", "{peer}: {reason}");
    } else {
        tracing::info!(target: "rconn", "{peer}: {reason}");
    }
}

/// Connects, runs the connection, pauses, and starts again. The pause doubles up to the longest,
/// and starts again at one second after a connection that succeeded.
async fn keep_connected(
    hub: Rc<Hub>,
    tls: Rc<Tls>,
    active: Active,
    terms: Terms,
    record: Rc<Record>,
) {
    let peer = format!("{}<->{active}", hub.bridge);
    let mut backoff = 0;
    loop {
        record.state.set(State::Connecting);
        // As in Open vSwitch, attempts are logged until the pause has reached its maximum; from
        // then on only failures are.
        if backoff < terms.live.max_backoff.get().max(1) {
            tracing::info!(target: "rconn", "{peer}: connecting...");
        }
        let limit = Duration::from_secs(backoff.max(CONNECT_LIMIT).into());
        match connect(&active, &tls, limit).await {
            Ok(stream) => {
                let connected = clock::now();
                tracing::info!(target: "rconn", "{peer}: connected");
                mark(&stream, &terms, &peer);
                let reason = connection::run(&hub, stream, &peer, &terms, &*record).await;
                tell_end(&peer, &reason);
                record.ended(&reason);
                if clock::now() - connected >= i64::from(backoff) * 1000 {
                    backoff = 0;
                }
            }
            Err(error) => {
                tracing::warn!(target: "rconn", "{peer}: connection failed ({error})");
                *record.last_error.borrow_mut() = Some(error.to_string());
            }
        }
        let longest = terms.live.max_backoff.get().max(1);
        let before = backoff;
        backoff = if backoff == 0 {
            FIRST_BACKOFF.min(longest)
        } else {
            backoff.saturating_mul(2).min(longest)
        };
        record.state.set(State::Backoff);
        if backoff < longest {
            tracing::info!(target: "rconn", "{peer}: waiting {backoff} seconds before reconnect");
        } else if before < longest {
            tracing::info!(target: "rconn", "{peer}: continuing to retry connections in the background but suppressing further logging");
        }
        clock::sleep(Duration::from_secs(backoff.into())).await;
    }
}
