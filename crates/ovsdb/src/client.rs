//! A connection to a database server that is kept alive.
//!
//! [`connect`] starts a task. It connects, checks that the database exists, reads its schema,
//! requests the monitored columns and the lock, and from then on keeps the [`Replica`] equal to the
//! database. If the connection breaks, the server does not answer a probe, or it sends something
//! that is not OVSDB, the task logs the reason and starts again after a pause; the replica keeps
//! its last contents meanwhile.
//!
//! The caller has a [`Client`], which reads the replica and sends transactions, and an [`Events`]
//! queue. Events say *that* something has changed, not what: for a slow caller several changes
//! become one event, so the queue is bounded and the task never waits for the caller.

use std::collections::{HashMap, VecDeque};
use std::convert::Infallible;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde_json::{Map, Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt, ReadHalf, WriteHalf};
use tokio::sync::{Notify, mpsc, oneshot};
use tokio::time::{Instant, sleep_until, timeout};

use crate::replica::Replica;
use crate::schema::Schema;
use crate::stream::{self, Remote, Stream, TlsFiles};
use crate::transaction::{Outcome, Refused, Transaction};
use crate::value::excerpt;
use crate::wire::{self, Framer, Message};

/// Maximum requests waiting for an answer at a time; further ones wait in their callers.
const MAX_PENDING: usize = 256;
/// Maximum bytes waiting to be sent, in addition to one transaction: a server that sends requests
/// but reads no answers is disconnected.
const MAX_UNSENT: usize = 16 << 20;
/// Maximum events waiting for the caller before they are merged.
const MAX_EVENTS: usize = 64;
/// Number of bytes read at a time.
const CHUNK: usize = 64 << 10;

/// A table to monitor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MonitorTable {
    /// The table's name.
    pub table: String,
    /// Columns to keep in the replica. Those that the server's schema lacks are left out.
    pub columns: Vec<String>,
    /// Columns to keep in the replica whose changes alone do not cause an [`Event::Updated`]: those
    /// that the client itself writes.
    pub quiet: Vec<String>,
}

/// The server, and what to request from it.
#[derive(Clone, Debug)]
pub struct Config {
    /// The server.
    pub remote: Remote,
    /// TLS files, required for `ssl:`.
    pub tls: Option<TlsFiles>,
    /// The database's name.
    pub database: String,
    /// The tables to keep in the replica.
    pub monitor: Vec<MonitorTable>,
    /// The lock to request.
    pub lock: Option<String>,
    /// The first pause before reconnecting.
    pub min_backoff: Duration,
    /// The longest pause; each pause is twice the one before.
    pub max_backoff: Duration,
    /// Time without a received byte after which the server is probed.
    pub probe_interval: Duration,
    /// Time within which the server must answer a probe, or a request during the connection's
    /// set-up.
    pub answer_limit: Duration,
}

impl Config {
    /// The usual times: pauses of 1 to 8 s, a probe after 5 s, 30 s to answer.
    pub fn new(remote: Remote, database: &str) -> Config {
        Config {
            remote,
            tls: None,
            database: database.to_owned(),
            monitor: Vec::new(),
            lock: None,
            min_backoff: Duration::from_secs(1),
            max_backoff: Duration::from_secs(8),
            probe_interval: Duration::from_secs(5),
            answer_limit: Duration::from_secs(30),
        }
    }
}

/// Something that the caller may want to act on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// After a new connection, the replica has the database's current contents. What the caller has
    /// written before may be gone: the server may be another one.
    Connected,
    /// A column in the replica has changed that is not quiet.
    Updated,
    /// This client now holds the lock. After a new connection this follows [`Event::Connected`].
    LockAcquired,
    /// This client does not hold the lock: another client has it ([`LockState::Contended`]), or the
    /// connection is gone ([`LockState::Unknown`]). [`Client::lock`] returns the state, which may
    /// have changed since the event.
    LockLost,
    /// The connection is gone. The replica keeps its contents.
    Disconnected,
}

/// Why a request got no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ClientError {
    /// There is no connection, or its set-up is not finished. Nothing was sent.
    #[error("not connected to the database")]
    NotConnected,
    /// The connection broke after sending: it is unknown whether the transaction was carried out.
    #[error("the connection to the database broke")]
    Broken,
    /// The server refused the request.
    #[error("{0}")]
    Refused(Refused),
}

/// The state of the lock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LockState {
    /// Unknown: no lock was requested, the server has not answered, or the connection is gone.
    #[default]
    Unknown,
    /// This client holds it.
    Held,
    /// Another client holds it.
    Contended,
}

struct Request {
    method: &'static str,
    params: Vec<Value>,
    reply: oneshot::Sender<Result<Value, ClientError>>,
}

#[derive(Debug, Default)]
struct State {
    replica: Replica,
    events: VecDeque<Event>,
    connected: bool,
    lock: LockState,
    error: Option<String>,
}

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    wake: Notify,
    closed: AtomicBool,
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        // A caller that panicked while reading has not damaged the state: every change is made as a
        // whole.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn tell(&self, change: impl FnOnce(&mut State) -> Option<Event>) {
        let mut state = self.state();
        if let Some(event) = change(&mut state) {
            enqueue(&mut state, event);
            drop(state);
            self.wake.notify_one();
        }
    }
}

/// Appends an event. A repeated event is left out, and a full queue that nobody empties is replaced
/// by events that lead to the same state.
fn enqueue(state: &mut State, event: Event) {
    if state.events.back() == Some(&event) {
        return;
    }
    if state.events.len() >= MAX_EVENTS {
        state.events.clear();
        state.events.push_back(Event::Disconnected);
        if state.connected {
            state.events.push_back(Event::Connected);
        }
        state.events.push_back(match state.lock {
            LockState::Held => Event::LockAcquired,
            LockState::Unknown | LockState::Contended => Event::LockLost,
        });
        return;
    }
    state.events.push_back(event);
}

/// The caller's handle. Clones share one connection, which is closed when the last is dropped.
#[derive(Clone, Debug)]
pub struct Client {
    database: Arc<str>,
    requests: mpsc::Sender<Request>,
    shared: Arc<Shared>,
}

impl std::fmt::Debug for Request {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Request({})", self.method)
    }
}

impl Client {
    /// Calls `read` with the replica. `read` must not call the client.
    pub fn with_replica<R>(&self, read: impl FnOnce(&Replica) -> R) -> R {
        read(&self.shared.state().replica)
    }

    /// Returns whether the replica is following the database.
    pub fn is_connected(&self) -> bool {
        self.shared.state().connected
    }

    /// Returns whether this client holds the lock that it requested.
    pub fn has_lock(&self) -> bool {
        self.lock() == LockState::Held
    }

    /// Returns the state of the requested lock. A switch continues to forward while this is unknown
    /// because the server is away, and stops when another client has the lock.
    pub fn lock(&self) -> LockState {
        self.shared.state().lock
    }

    /// Returns why the last connection, or the last attempt at one, failed.
    pub fn last_error(&self) -> Option<String> {
        self.shared.state().error.clone()
    }

    /// Sends a transaction and waits for the server's answer, at most until the connection breaks.
    /// Changes of monitored columns are in the replica before this returns.
    pub async fn transact(&self, transaction: &Transaction) -> Result<Outcome, ClientError> {
        let answer = self
            .request("transact", transaction.to_params(&self.database))
            .await?;
        transaction.outcome(&answer).map_err(ClientError::Refused)
    }

    /// Returns the names of the server's databases.
    pub async fn list_dbs(&self) -> Result<Vec<String>, ClientError> {
        Ok(names(&self.request("list_dbs", Vec::new()).await?))
    }

    /// Returns the schema of one of the server's databases.
    pub async fn get_schema(&self, database: &str) -> Result<Schema, ClientError> {
        let answer = self.request("get_schema", vec![json!(database)]).await?;
        Schema::from_json(&answer)
            .map_err(|e| ClientError::Refused(Refused::whole("syntax error", &e.to_string())))
    }

    async fn request(
        &self,
        method: &'static str,
        params: Vec<Value>,
    ) -> Result<Value, ClientError> {
        if !self.is_connected() {
            return Err(ClientError::NotConnected);
        }
        let (reply, answer) = oneshot::channel();
        let request = Request {
            method,
            params,
            reply,
        };
        self.requests
            .send(request)
            .await
            .map_err(|_| ClientError::NotConnected)?;
        answer.await.unwrap_or(Err(ClientError::Broken))
    }
}

/// The queue of events, in order.
#[derive(Debug)]
pub struct Events {
    shared: Arc<Shared>,
}

impl Events {
    /// Returns the next event without waiting.
    pub fn try_next(&mut self) -> Option<Event> {
        self.shared.state().events.pop_front()
    }

    /// Waits for the next event; None once every [`Client`] is gone. No event is lost if the future
    /// is dropped.
    pub async fn next(&mut self) -> Option<Event> {
        loop {
            if let Some(event) = self.try_next() {
                return Some(event);
            }
            if self.shared.closed.load(Ordering::Acquire) {
                return None;
            }
            self.shared.wake.notified().await;
        }
    }
}

/// Starts connecting. Must be called within a tokio runtime.
pub fn connect(config: Config) -> (Client, Events) {
    let shared = Arc::new(Shared::default());
    let (sender, requests) = mpsc::channel(MAX_PENDING);
    let client = Client {
        database: config.database.as_str().into(),
        requests: sender,
        shared: shared.clone(),
    };
    let events = Events {
        shared: shared.clone(),
    };
    tokio::spawn(async move {
        Task {
            config,
            requests,
            shared: shared.clone(),
        }
        .run()
        .await;
        shared.closed.store(true, Ordering::Release);
        shared.wake.notify_one();
    });
    (client, events)
}

/// Why a session ended.
enum End {
    /// Every client has been dropped.
    Closed,
    /// The connection failed.
    Failed(String),
}

impl From<io::Error> for End {
    fn from(error: io::Error) -> End {
        End::Failed(error.to_string())
    }
}

struct Task {
    config: Config,
    requests: mpsc::Receiver<Request>,
    shared: Arc<Shared>,
}

impl Task {
    async fn run(mut self) {
        let mut backoff = self.config.min_backoff;
        let mut away = Away::default();
        loop {
            match self.attempt(away.quiet).await {
                Err(End::Closed) => return,
                Err(End::Failed(reason)) => {
                    let was_connected = self.forget_connection(&reason);
                    if was_connected {
                        away = Away::default();
                        backoff = self.config.min_backoff;
                    }
                    let longest = backoff >= self.config.max_backoff;
                    let said = away.say(&reason, was_connected, backoff, longest, Instant::now());
                    self.report(said);
                }
                Ok(never) => match never {},
            }
            if self.pause(backoff).await.is_none() {
                return;
            }
            backoff = (backoff * 2).min(self.config.max_backoff);
        }
    }

    /// Connects and serves the connection until it ends.
    async fn attempt(&mut self, quiet: bool) -> Result<Infallible, End> {
        let remote = self.config.remote.clone();
        match quiet {
            false => tracing::info!(target: "reconnect", "{remote}: connecting..."),
            true => tracing::debug!(target: "reconnect", "{remote}: connecting..."),
        }
        let tls = self.config.tls.clone();
        let mut connecting = Box::pin(timeout(self.config.answer_limit, async move {
            stream::connect(&remote, tls.as_ref()).await
        }));
        let stream = loop {
            tokio::select! {
                result = &mut connecting => break result.map_err(|_| End::Failed("connection attempt timed out".into()))??,
                request = self.requests.recv() => refuse(request)?,
            }
        };
        tracing::info!(target: "reconnect", "{}: connected", self.config.remote);
        Session::new(self, stream).serve().await
    }

    fn forget_connection(&mut self, reason: &str) -> bool {
        let mut state = self.shared.state();
        state.error = Some(reason.to_owned());
        let had_lock = std::mem::take(&mut state.lock) == LockState::Held;
        let was_connected = std::mem::take(&mut state.connected);
        if had_lock {
            enqueue(&mut state, Event::LockLost);
        }
        if was_connected {
            enqueue(&mut state, Event::Disconnected);
        }
        drop(state);
        self.shared.wake.notify_one();
        was_connected
    }

    /// Logs a failure.
    fn report(&self, said: Said) {
        let remote = &self.config.remote;
        match said.reason {
            Reason::Hidden(text) => tracing::debug!(target: "reconnect", "{remote}: {text}"),
            Reason::Told(text) => tracing::info!(target: "reconnect", "{remote}: {text}"),
            Reason::Reminder(text) => tracing::warn!(target: "reconnect", "{remote}: {text}"),
        }
        if let Some(text) = said.note {
            tracing::info!(target: "reconnect", "{remote}: {text}");
        }
    }

    /// Waits, refusing requests meanwhile; None when every client is gone.
    async fn pause(&mut self, length: Duration) -> Option<()> {
        let end = Instant::now() + length;
        loop {
            tokio::select! {
                () = sleep_until(end) => return Some(()),
                request = self.requests.recv() => refuse(request).ok()?,
            }
        }
    }
}

/// Interval at which a server that stays away is logged once the pauses are at their longest.
const MENTIONED_EVERY: Duration = Duration::from_secs(60);

/// Decides what is logged while the server is away: each attempt until the pauses are at their
/// longest, then one a minute.
#[derive(Debug, Default)]
struct Away {
    /// When the server went away.
    since: Option<Instant>,
    /// When this was last logged.
    mentioned: Option<Instant>,
    /// Attempts since then that were not logged.
    unmentioned: u64,
    /// Whether attempts are no longer logged.
    quiet: bool,
}

/// What is logged about one failure.
#[derive(Debug, PartialEq, Eq)]
struct Said {
    reason: Reason,
    note: Option<String>,
}

/// The reason for the failure, by log level.
#[derive(Debug, PartialEq, Eq)]
enum Reason {
    /// Logged for those who want to see each attempt.
    Hidden(String),
    Told(String),
    /// Logged again after a long time.
    Reminder(String),
}

impl Away {
    fn say(
        &mut self,
        reason: &str,
        was_connected: bool,
        backoff: Duration,
        longest: bool,
        now: Instant,
    ) -> Said {
        let since = *self.since.get_or_insert(now);
        let text = match was_connected {
            true => reason.to_owned(),
            false => format!("connection attempt failed ({reason})"),
        };
        if self.quiet {
            let due = |last: Instant| now.duration_since(last) >= MENTIONED_EVERY;
            let reason = if self.mentioned.is_none_or(due) {
                self.mentioned = Some(now);
                let unmentioned = std::mem::take(&mut self.unmentioned);
                let seconds = now.duration_since(since).as_secs();
                Reason::Reminder(format!(
                    "{text}; away for {seconds} seconds, {unmentioned} more attempts not logged"
                ))
            } else {
                self.unmentioned += 1;
                Reason::Hidden(text)
            };
            return Said { reason, note: None };
        }
        self.mentioned = Some(now);
        self.quiet = longest && !was_connected;
        let note = if was_connected {
            None
        } else if longest {
            let text = "continuing to reconnect in the background but suppressing further logging \
             (but for a line a minute)";
            Some(text.to_owned())
        } else {
            let seconds = backoff.as_secs_f64();
            Some(format!("waiting {seconds} seconds before reconnect"))
        };
        Said {
            reason: Reason::Told(text),
            note,
        }
    }
}

fn refuse(request: Option<Request>) -> Result<(), End> {
    let request = request.ok_or(End::Closed)?;
    // The caller may have stopped waiting.
    let _ = request.reply.send(Err(ClientError::NotConnected));
    Ok(())
}

/// How far the set-up of a connection has come.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    Databases,
    Schema,
    Monitor,
    Running,
}

/// The request that a response answers.
enum Waiting {
    SetUp,
    Lock,
    Caller(oneshot::Sender<Result<Value, ClientError>>),
    Probe,
}

struct Session<'t> {
    task: &'t mut Task,
    reader: ReadHalf<Box<dyn Stream>>,
    writer: WriteHalf<Box<dyn Stream>>,
    framer: Framer,
    unsent: Vec<u8>,
    waiting: HashMap<u64, Waiting>,
    next_id: u64,
    phase: Phase,
    schema: Arc<Schema>,
    heard: Instant,
    probed: bool,
    locked: Option<bool>,
}

impl<'t> Session<'t> {
    fn new(task: &'t mut Task, stream: Box<dyn Stream>) -> Session<'t> {
        let (reader, writer) = tokio::io::split(stream);
        Session {
            task,
            reader,
            writer,
            framer: Framer::default(),
            unsent: Vec::new(),
            waiting: HashMap::new(),
            next_id: 0,
            phase: Phase::Databases,
            schema: Arc::default(),
            heard: Instant::now(),
            probed: false,
            locked: None,
        }
    }

    async fn serve(mut self) -> Result<Infallible, End> {
        let result = self.exchange().await;
        for (_, waiting) in self.waiting.drain() {
            if let Waiting::Caller(reply) = waiting {
                let _ = reply.send(Err(ClientError::Broken));
            }
        }
        result
    }

    async fn exchange(&mut self) -> Result<Infallible, End> {
        self.ask("list_dbs", Vec::new(), Waiting::SetUp);
        let mut chunk = vec![0; CHUNK];
        loop {
            let deadline = self.deadline();
            let has_room = self.waiting.len() < MAX_PENDING && self.unsent.len() < MAX_UNSENT;
            tokio::select! {
                count = self.reader.read(&mut chunk) => match count? {
                    0 => return Err(End::Failed("connection closed by peer".into())),
                    count => self.receive(&chunk[..count])?,
                },
                count = self.writer.write(&self.unsent), if !self.unsent.is_empty() => {
                    self.unsent.drain(..count?);
                }
                request = self.task.requests.recv(), if has_room => self.forward(request)?,
                () = sleep_until(deadline) => self.expire()?,
            }
        }
    }

    fn deadline(&self) -> Instant {
        let config = &self.task.config;
        self.heard
            + if self.probed || self.phase != Phase::Running {
                config.answer_limit
            } else {
                config.probe_interval
            }
    }

    fn expire(&mut self) -> Result<(), End> {
        if self.probed || self.phase != Phase::Running {
            let seconds = self.task.config.answer_limit.as_secs_f32();
            return Err(End::Failed(format!(
                "no response to inactivity probe after {seconds} seconds, disconnecting"
            )));
        }
        self.probed = true;
        self.heard = Instant::now();
        self.ask("echo", Vec::new(), Waiting::Probe);
        Ok(())
    }

    fn ask(&mut self, method: &str, params: Vec<Value>, waiting: Waiting) {
        let id = self.next_id;
        self.next_id += 1;
        self.waiting.insert(id, waiting);
        let message = Message::Request {
            id: json!(id),
            method: method.to_owned(),
            params,
        };
        self.unsent.extend(message.encode());
    }

    fn forward(&mut self, request: Option<Request>) -> Result<(), End> {
        if self.phase != Phase::Running {
            return refuse(request);
        }
        let request = request.ok_or(End::Closed)?;
        self.ask(
            request.method,
            request.params,
            Waiting::Caller(request.reply),
        );
        Ok(())
    }

    fn receive(&mut self, bytes: &[u8]) -> Result<(), End> {
        self.heard = Instant::now();
        self.probed = false;
        self.framer.push(bytes);
        while let Some(frame) = self
            .framer
            .next_frame()
            .map_err(|e| End::Failed(e.to_string()))?
        {
            let message = wire::decode(frame).map_err(|e| End::Failed(e.to_string()))?;
            self.handle(message)?;
        }
        match self.unsent.len() > 2 * MAX_UNSENT + wire::MAX_MESSAGE {
            true => Err(End::Failed(
                "the server does not read what is sent to it".into(),
            )),
            false => Ok(()),
        }
    }

    fn handle(&mut self, message: Message) -> Result<(), End> {
        match message {
            Message::Request { id, method, params } if method == "echo" => {
                self.unsent.extend(
                    Message::Response {
                        id,
                        result: Ok(Value::Array(params)),
                    }
                    .encode(),
                );
                Ok(())
            }
            Message::Request { id, method, .. } => {
                let error = json!({"error": "unknown method", "details": method});
                self.unsent.extend(
                    Message::Response {
                        id,
                        result: Err(error),
                    }
                    .encode(),
                );
                Ok(())
            }
            Message::Notification { method, params } => self.notice(&method, &params),
            Message::Response { id, result } => {
                let waiting = id.as_u64().and_then(|id| self.waiting.remove(&id));
                let waiting = waiting.ok_or_else(|| {
                    End::Failed(format!("an answer to no request: id {}", excerpt(&id)))
                })?;
                self.answered(waiting, result)
            }
        }
    }

    fn notice(&mut self, method: &str, params: &[Value]) -> Result<(), End> {
        match (method, params) {
            ("update", [_, updates]) if self.phase == Phase::Running => self.update(updates),
            ("locked" | "stolen", [name]) if name.as_str() == self.task.config.lock.as_deref() => {
                self.set_lock(method == "locked");
                Ok(())
            }
            _ => Err(End::Failed(format!("unexpected notification {method:.40}"))),
        }
    }

    fn answered(&mut self, waiting: Waiting, result: Result<Value, Value>) -> Result<(), End> {
        match waiting {
            Waiting::Probe => Ok(()),
            Waiting::Caller(reply) => {
                let answer = result.map_err(|error| ClientError::Refused(refusal(&error)));
                // The caller may have stopped waiting.
                let _ = reply.send(answer);
                Ok(())
            }
            Waiting::Lock => {
                let answer =
                    result.map_err(|error| End::Failed(format!("lock: {}", refusal(&error))))?;
                self.set_lock(answer["locked"].as_bool().unwrap_or_default());
                Ok(())
            }
            Waiting::SetUp => {
                let answer = result.map_err(|error| End::Failed(refusal(&error).to_string()))?;
                self.set_up(&answer)
            }
        }
    }

    /// Takes the next step of the connection's set-up.
    fn set_up(&mut self, answer: &Value) -> Result<(), End> {
        let database = self.task.config.database.clone();
        match self.phase {
            Phase::Databases => {
                let names = names(answer);
                if !names.contains(&database) {
                    let names = names.join(", ");
                    return Err(End::Failed(format!(
                        "no database {database} on the server (it has: {names:.200})"
                    )));
                }
                self.phase = Phase::Schema;
                self.ask("get_schema", vec![json!(database)], Waiting::SetUp);
            }
            Phase::Schema => {
                self.schema =
                    Arc::new(Schema::from_json(answer).map_err(|e| End::Failed(e.to_string()))?);
                self.phase = Phase::Monitor;
                // The lock is requested first: when the contents arrive it is known who may act on
                // them.
                if let Some(lock) = self.task.config.lock.clone() {
                    self.ask("lock", vec![json!(lock)], Waiting::Lock);
                }
                let request = monitor_request(&self.task.config.monitor, &self.schema);
                self.ask(
                    "monitor",
                    vec![json!(database), json!("replica"), request],
                    Waiting::SetUp,
                );
            }
            Phase::Monitor => {
                let mut replica = Replica::new(self.schema.clone());
                replica
                    .apply(answer)
                    .map_err(|e| End::Failed(e.to_string()))?;
                self.phase = Phase::Running;
                self.task.shared.tell(|state| {
                    replica.generation = state.replica.generation + 1;
                    state.replica = replica;
                    state.connected = true;
                    state.error = None;
                    Some(Event::Connected)
                });
                self.tell_lock();
            }
            Phase::Running => return Err(End::Failed("an answer out of order".into())),
        }
        Ok(())
    }

    fn update(&mut self, updates: &Value) -> Result<(), End> {
        let monitor = &self.task.config.monitor;
        let quiet = |table: &str, column: &str| {
            monitor
                .iter()
                .any(|m| m.table == table && m.quiet.iter().any(|name| name == column))
        };
        let mut failure = None;
        self.task
            .shared
            .tell(|state| match state.replica.apply(updates) {
                Ok(changes) => changes.any_besides(quiet).then_some(Event::Updated),
                Err(error) => {
                    failure = Some(End::Failed(error.to_string()));
                    None
                }
            });
        failure.map_or(Ok(()), Err)
    }

    /// Records the state of the lock. Its event follows [`Event::Connected`]: whoever gets the lock
    /// may act at once, which requires the database's current contents.
    fn set_lock(&mut self, locked: bool) {
        self.locked = Some(locked);
        if self.phase == Phase::Running {
            self.tell_lock();
        }
    }

    fn tell_lock(&mut self) {
        let Some(locked) = self.locked else { return };
        self.task.shared.tell(|state| {
            // A new connection that does not get the lock reports this once, so that the caller
            // knows that it is waiting.
            let (lock, event) = match locked {
                true => (LockState::Held, Event::LockAcquired),
                false => (LockState::Contended, Event::LockLost),
            };
            state.lock = lock;
            Some(event)
        });
    }
}

fn names(answer: &Value) -> Vec<String> {
    let members = answer.as_array().map(Vec::as_slice).unwrap_or_default();
    members
        .iter()
        .filter_map(|name| name.as_str().map(str::to_owned))
        .collect()
}

/// Converts the error of a response: the RFC's object, or for some requests a bare string.
fn refusal(error: &Value) -> Refused {
    match (error, error["error"].as_str()) {
        (_, Some(word)) => Refused::whole(word, error["details"].as_str().unwrap_or_default()),
        (Value::String(word), _) => Refused::whole(word, ""),
        (other, _) => Refused::whole("unknown error", &excerpt(other)),
    }
}

/// Returns the monitor request, without tables and columns that the server's schema lacks.
fn monitor_request(tables: &[MonitorTable], schema: &Schema) -> Value {
    let mut request = Map::new();
    for wanted in tables {
        let Some(table) = schema.tables.get(&wanted.table) else {
            tracing::warn!(target: "ovsdb_idl", "{} database lacks {} table", schema.name, wanted.table);
            continue;
        };
        let mut columns = Vec::new();
        for column in wanted.columns.iter().chain(&wanted.quiet) {
            if table.columns.contains_key(column) {
                columns.push(json!(column));
            } else {
                tracing::warn!(target: "ovsdb_idl", "{} table in {} database lacks {column} column", wanted.table, schema.name);
            }
        }
        request.insert(wanted.table.clone(), json!([{"columns": columns}]));
    }
    Value::Object(request)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_that_stays_away_is_mentioned_once_a_minute() {
        let (mut away, begin) = (Away::default(), Instant::now());
        let second = Duration::from_secs(1);
        let mut say = |after: u32, backoff: u32| {
            let (backoff, longest) = (second * backoff, backoff >= 8);
            away.say("refused", false, backoff, longest, begin + second * after)
        };
        let failed = || "connection attempt failed (refused)".to_owned();
        for (after, backoff) in [(0, 1), (1, 2), (3, 4)] {
            let said = say(after, backoff);
            assert_eq!(said.reason, Reason::Told(failed()));
            let note = format!("waiting {backoff} seconds before reconnect");
            assert_eq!(said.note, Some(note));
        }
        let said = say(7, 8);
        assert_eq!(said.reason, Reason::Told(failed()));
        assert!(said.note.unwrap().contains("suppressing"));
        let hidden = || Said {
            reason: Reason::Hidden(failed()),
            note: None,
        };
        let reminder = |text: &str| Said {
            reason: Reason::Reminder(format!("{}; {text} more attempts not logged", failed())),
            note: None,
        };
        for after in (15..67).step_by(8) {
            assert_eq!(say(after, 8), hidden());
        }
        assert_eq!(say(71, 8), reminder("away for 71 seconds, 7"));
        assert_eq!(say(79, 8), hidden());
        assert_eq!(say(131, 8), reminder("away for 131 seconds, 1"));
        // The end of a connection is logged at once.
        let said = Away::default().say("closed", true, second, false, begin);
        assert_eq!(said.reason, Reason::Told("closed".into()));
    }

    #[test]
    fn events_that_nobody_reads_are_folded_into_how_things_stand() {
        let mut state = State::default();
        enqueue(&mut state, Event::Updated);
        enqueue(&mut state, Event::Updated);
        assert_eq!(state.events, [Event::Updated]);
        state.connected = true;
        state.lock = LockState::Held;
        for _ in 0..10 * MAX_EVENTS {
            enqueue(&mut state, Event::Disconnected);
            enqueue(&mut state, Event::Connected);
            assert!(state.events.len() <= MAX_EVENTS);
        }
        state.events.clear();
        for _ in 0..MAX_EVENTS / 2 {
            enqueue(&mut state, Event::Updated);
            enqueue(&mut state, Event::LockLost);
        }
        assert_eq!(state.events.len(), MAX_EVENTS);
        enqueue(&mut state, Event::Updated);
        assert_eq!(
            state.events,
            [Event::Disconnected, Event::Connected, Event::LockAcquired]
        );
    }
}
