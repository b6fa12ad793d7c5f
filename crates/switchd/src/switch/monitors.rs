//! Monitors of interfaces (`Interface.bfd`): the sessions, and the thread that drives them.
//!
//! The thread `bfd` takes what workers have received for sessions, lets time pass for those that
//! are due, and has workers send. It waits for nobody: the control thread, however long its turns
//! are, only adds sessions, removes them and reads their state, each under a lock that is held for
//! one session's work. So a session's packets are late by a turn of this thread and a worker's:
//! some ms with a thousand sessions, if the machine has processors to spare.

use super::{Bridge, Switch};
use crate::switch::database::Database;
use bfd::wire::{self, Addresses};
use bfd::{Diagnostic, Session, Settings, State};
use datapath::clock::Clock;
use datapath::monitor::{INBOX, Inbox, Keys, Monitor, Probe, Probes};
use datapath::{BridgeId, PortId};
use openflow::port::{PortNo, PortReason};
use ovsdb::vswitch::Strings;
use ports::{Mac, Mbuf};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

/// Longest sleep of the thread.
const SLEEP_LIMIT_MS: u64 = 1000;
/// How often received traffic is looked at where it counts as a sign of life.
const TRAFFIC_MS: u64 = 100;
/// Shortest time between two reports of changed sessions.
const REPORT_PAUSE: Duration = Duration::from_millis(20);

/// What is told of a session.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Status {
    state: (State, Diagnostic),
    remote: (State, Diagnostic),
    forwarding: bool,
    flaps: u64,
}

impl Status {
    fn of(session: &Session) -> Status {
        let remote = session.remote();
        Status {
            state: session.state(),
            remote: (remote.state, remote.diagnostic),
            forwarding: session.is_forwarding(),
            flaps: session.flaps(),
        }
    }
}

/// Has a worker send a packet.
type Sender<'a> = &'a dyn Fn(Probe) -> Result<(), datapath::Error>;

/// A session and where its packets go.
struct Watched {
    name: String,
    session: Session,
    monitor: Arc<Monitor>,
    bridge: BridgeId,
    number: PortNo,
    mac: Mac,
    udp_src: u16,
    told: Status,
    /// When it has last sent.
    sent_at: Option<u64>,
}

impl Watched {
    /// Logs what has changed and tells workers; returns whether something has.
    fn look(&mut self, now: u64) -> bool {
        for step in self.session.take_steps() {
            let (from, to) = (step.from, step.to);
            tracing::info!(
                target: "bfd",
                "{}: BFD state change: {}->{} \"{}\"->\"{}\".\n{}",
                self.name,
                from.0.name(),
                to.0.name(),
                from.1.name(),
                to.1.name(),
                bfd::text::details(&self.session, now).trim_end()
            );
        }
        let status = Status::of(&self.session);
        self.monitor.set_live(status.forwarding);
        std::mem::replace(&mut self.told, status) != status
    }

    /// Returns when it has something to do.
    fn next(&self, now: u64) -> u64 {
        let due = match self.sent_at == Some(now) {
            true => self.session.due().max(now + 1),
            false => self.session.due(),
        };
        match self.session.settings().forwarding_if_rx {
            true => due.min(now + TRAFFIC_MS),
            false => due,
        }
    }

    /// Sends what is due: one message in a ms, so that a flood of polls, each of which is to be
    /// answered at once, takes no room that other sessions' messages need.
    fn send(&mut self, send: Sender<'_>, now: u64) {
        if self.sent_at == Some(now) {
            return;
        }
        if let Some(message) = self.session.transmit(now) {
            self.sent_at = Some(now);
            let settings = self.session.settings();
            let addresses = Addresses {
                eth_src: settings.local_src_mac.unwrap_or(self.mac),
                eth_dst: settings.local_dst_mac,
                ip_src: settings.src_ip,
                ip_dst: settings.dst_ip,
                udp_src: self.udp_src,
            };
            let probe = Probe {
                bridge: self.bridge,
                port: self.number,
                oam: settings.oam,
                data: wire::frame(&message, &addresses),
            };
            if let Err(error) = send(probe) {
                tracing::warn!(target: "bfd", "{}: a control message is not sent: {error}", self.name);
            }
        }
    }
}

/// What control and the thread share.
struct Shared {
    sessions: Mutex<BTreeMap<u64, Watched>>,
    inbox: Arc<Inbox>,
    clock: Arc<Clock>,
    /// When the first of the sessions has something to do; 0 after control has changed one.
    due: AtomicU64,
    ends: AtomicBool,
    /// Notified when something that is told has changed.
    news: tokio::sync::Notify,
}

impl Shared {
    fn sessions(&self) -> MutexGuard<'_, BTreeMap<u64, Watched>> {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has the thread look at all sessions. Called after one has been changed.
    fn call(&self) {
        self.due.store(0, Ordering::Release);
        self.inbox.call();
    }

    /// Does something with each session, or with those of one interface; each under a lock of its
    /// own, so that the thread waits for one at most.
    fn each(&self, name: Option<&str>, mut act: impl FnMut(&mut Watched)) {
        let keys: Vec<u64> = self.sessions().keys().copied().collect();
        for key in keys {
            let mut sessions = self.sessions();
            let watched = sessions.get_mut(&key);
            if let Some(watched) = watched.filter(|of| name.is_none_or(|name| name == of.name)) {
                act(watched);
            }
        }
    }

    /// The thread's body.
    fn run(&self, probes: &Probes<Mbuf>) {
        self.inbox.read_by(std::thread::current());
        while !self.ends.load(Ordering::Acquire) {
            let next = self.turn(self.clock.now_ms(), &|probe| probes.send(probe));
            let wait_ms = next.saturating_sub(self.clock.now_ms());
            if wait_ms > 0 {
                std::thread::park_timeout(Duration::from_millis(wait_ms));
            }
        }
    }

    /// Does what is due; returns when there is more to do.
    fn turn(&self, now: u64, send: Sender<'_>) -> u64 {
        let (mut changed, mut taken) = (false, 0);
        // What control stores from here on is for the next turn.
        let mut due = self.due.swap(u64::MAX, Ordering::Acquire);
        // All that are there, before any session is found to have heard nothing: this thread may
        // have been away for longer than a detection time. No more than the queue holds, so that
        // sessions come to their turns under a flood.
        while let Some(received) = (taken < INBOX).then(|| self.inbox.take()).flatten() {
            taken += 1;
            let mut sessions = self.sessions();
            // One that came just before its session ended has none.
            let Some(watched) = sessions.get_mut(&received.monitor) else {
                continue;
            };
            let session = &mut watched.session;
            if let Err(error) = session.receive(wire::TTL, received.payload(), now) {
                tracing::warn!(target: "bfd", "{}: a control message is ignored: {error}", watched.name);
            }
            changed |= watched.look(now);
            due = due.min(watched.next(now));
        }
        if due <= now {
            due = now + SLEEP_LIMIT_MS;
            changed |= self.run_all(now, send, &mut due);
        }
        if changed {
            self.news.notify_one();
        }
        let due = due.min(self.due.fetch_min(due, Ordering::AcqRel));
        if taken < INBOX { due } else { now }
    }

    /// Does what is due in all sessions, and lowers `due` to when the first has something to do.
    /// Returns whether something has changed.
    fn run_all(&self, now: u64, send: Sender<'_>, due: &mut u64) -> bool {
        let mut changed = false;
        let mut after = None;
        // One by one, so that control waits for one at most.
        loop {
            let mut sessions = self.sessions();
            let range = match after {
                None => sessions.range_mut(..),
                Some(key) => sessions.range_mut(key + 1..),
            };
            let Some((key, watched)) = range.into_iter().next() else {
                break;
            };
            after = Some(*key);
            let by_traffic = watched.session.settings().forwarding_if_rx;
            if watched.session.due() <= now || by_traffic {
                watched.session.run(now, watched.monitor.rx_packets());
                watched.send(send, now);
                changed |= watched.look(now);
            }
            *due = (*due).min(watched.next(now).max(now + 1));
        }
        changed
    }
}

/// All monitors, as control sees them.
#[derive(Default)]
pub struct Monitors {
    running: RefCell<Option<Running>>,
}

struct Running {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
    /// How many sessions there have been.
    count: u64,
    random: RandomState,
}

/// A port's session; ends when dropped.
pub struct Handle {
    key: u64,
    shared: Arc<Shared>,
    monitor: Arc<Monitor>,
    /// Whether controllers have last been told that the port is live.
    told_live: bool,
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.shared.sessions().remove(&self.key);
    }
}

impl Handle {
    /// Returns whether the port may be used.
    pub fn is_live(&self) -> bool {
        self.monitor.is_live()
    }

    /// Returns the session's status by Open vSwitch's names.
    pub fn status(&self) -> Strings {
        let sessions = self.shared.sessions();
        let Some(watched) = sessions.get(&self.key) else {
            return Strings::new();
        };
        let status = Status::of(&watched.session);
        let pairs = [
            ("state", status.state.0.name().to_owned()),
            ("diagnostic", status.state.1.name().to_owned()),
            ("remote_state", status.remote.0.name().to_owned()),
            ("remote_diagnostic", status.remote.1.name().to_owned()),
            ("forwarding", status.forwarding.to_string()),
            ("flap_count", status.flaps.to_string()),
        ];
        let pair = |(key, value): (&str, String)| (key.to_owned(), value);
        pairs.into_iter().map(pair).collect()
    }

    /// Says from which address the port sends.
    fn set_mac(&self, mac: Mac) {
        if let Some(watched) = self.shared.sessions().get_mut(&self.key) {
            watched.mac = mac;
        }
    }
}

/// Sessions that are named in [`Monitored`].
const NOT_UP: usize = 20;

/// How all sessions stand.
#[derive(Default)]
pub struct Monitored {
    /// Their number by state, in the order of [`State`].
    pub states: [u64; 4],
    /// The number of those whose interfaces may be used.
    pub forwarding: u64,
    /// How often those that there are have changed that.
    pub flaps: u64,
    /// Those that are not up, at most [`NOT_UP`]: the interface, its state and why, and the other
    /// end's state.
    pub not_up: Vec<(String, (State, Diagnostic), State)>,
}

impl Monitored {
    /// Returns the number of sessions.
    pub fn count(&self) -> u64 {
        self.states.iter().sum()
    }

    /// Returns the states' names and how many sessions are in each.
    pub fn by_state(&self) -> [(&'static str, u64); 4] {
        let states = [State::AdminDown, State::Down, State::Init, State::Up];
        states.map(|state| (state.name(), self.states[state as usize]))
    }
}

/// What a session must know of its port.
pub struct MonitoredPort<'a> {
    /// The interface's name.
    pub name: &'a str,
    /// Its bridge.
    pub bridge: BridgeId,
    /// Its OpenFlow number.
    pub number: PortNo,
    /// Its port in the datapath.
    pub id: PortId,
    /// Its address.
    pub mac: Mac,
}

impl Switch {
    /// Begins, changes or ends a port's session.
    ///
    /// # Errors
    ///
    /// There is no thread for sessions, or the datapath has no such port.
    pub fn monitor(
        &self,
        handle: &mut Option<Handle>,
        place: &MonitoredPort<'_>,
        settings: Option<&Settings>,
    ) -> Result<(), String> {
        let Some(settings) = settings else {
            return match handle.take() {
                None => Ok(()),
                Some(_) => self.set_monitor(place.id, None),
            };
        };
        let mut running = self.monitors.running.borrow_mut();
        if running.is_none() {
            let probes = self.with_datapath(|datapath| datapath.probes());
            let probes = probes.map_err(|error| error.to_string())?;
            let begun = Running::start(Arc::clone(&self.clock), probes);
            *running = Some(begun.map_err(|error| format!("no thread for BFD: {error}"))?);
            self.monitors_begun.notify_one();
        }
        let Some(running) = running.as_mut() else {
            return Ok(());
        };
        let shared = Arc::clone(&running.shared);
        let now = self.clock.now_ms();
        if let Some(handle) = handle {
            let mut sessions = shared.sessions();
            let Some(watched) = sessions.get_mut(&handle.key) else {
                return Ok(());
            };
            (watched.number, watched.mac) = (place.number, place.mac);
            let before = watched.session.settings().clone();
            if before == *settings {
                return Ok(());
            }
            let packets = watched.monitor.rx_packets();
            watched.session.configure(settings.clone(), now, packets);
            let filter = |settings: &Settings| (settings.remote_dst_mac, settings.check_tnl_key);
            let same = filter(&before) == filter(settings);
            if !same {
                watched.monitor = Arc::new(monitor(handle.key, settings, &shared.inbox));
                handle.monitor = Arc::clone(&watched.monitor);
            }
            watched.look(now);
            drop(sessions);
            shared.call();
            shared.news.notify_one();
            return match same {
                true => Ok(()),
                false => self.set_monitor(place.id, Some(Arc::clone(&handle.monitor))),
            };
        }
        let key = running.count;
        running.count += 1;
        let new = Arc::new(monitor(key, settings, &shared.inbox));
        self.set_monitor(place.id, Some(Arc::clone(&new)))?;
        let mut sessions = shared.sessions();
        let discriminator = discriminator(&running.random, key, &sessions);
        let session = Session::new(settings.clone(), discriminator, now, new.rx_packets());
        let watched = Watched {
            name: place.name.to_owned(),
            told: Status::of(&session),
            sent_at: None,
            session,
            monitor: Arc::clone(&new),
            bridge: place.bridge,
            number: place.number,
            mac: place.mac,
            // RFC 5881 section 4: one for each session, as far as there are enough.
            udp_src: wire::FIRST_SOURCE + (key % 0x4000) as u16,
        };
        sessions.insert(key, watched);
        drop(sessions);
        *handle = Some(Handle {
            key,
            shared: Arc::clone(&shared),
            monitor: new,
            told_live: false,
        });
        shared.call();
        shared.news.notify_one();
        Ok(())
    }

    fn set_monitor(&self, id: PortId, monitor: Option<Arc<Monitor>>) -> Result<(), String> {
        match self.with_datapath(|datapath| datapath.set_monitor(id, monitor)) {
            Ok(done) => done.map_err(|error| error.to_string()),
            Err(error) => Err(error.to_string()),
        }
    }

    /// Tells controllers and the database of changed sessions, until the daemon ends.
    pub async fn follow_monitors(self: Rc<Self>, database: Rc<Database>) -> anyhow::Result<()> {
        loop {
            let shared = {
                let running = self.monitors.running.borrow();
                running.as_ref().map(|running| Arc::clone(&running.shared))
            };
            let Some(shared) = shared else {
                self.monitors_begun.notified().await;
                continue;
            };
            shared.news.notified().await;
            let bridges: Vec<Rc<Bridge>> = self.bridges.borrow().values().cloned().collect();
            for bridge in bridges {
                bridge.tell_monitored();
            }
            database.write_soon();
            tokio::time::sleep(REPORT_PAUSE).await;
        }
    }

    /// Returns the sessions' text, or that of one interface; None if it has no session.
    pub fn show_monitors(&self, name: Option<&str>) -> Option<String> {
        let running = self.monitors.running.borrow();
        let now = self.clock.now_ms();
        let mut text = String::new();
        let mut found = name.is_none();
        if let Some(running) = running.as_ref() {
            running.shared.each(name, |watched| {
                match name {
                    None => text += &format!("---- {} ----\n", watched.name),
                    Some(_) => found = true,
                }
                text += &bfd::text::details(&watched.session, now);
            });
        }
        found.then_some(text)
    }

    /// Returns how the sessions stand; None where there are none.
    pub fn monitored(&self) -> Option<Monitored> {
        let running = self.monitors.running.borrow();
        let mut all = Monitored::default();
        running.as_ref()?.shared.each(None, |watched| {
            let status = Status::of(&watched.session);
            all.states[status.state.0 as usize] += 1;
            all.forwarding += u64::from(status.forwarding);
            all.flaps += status.flaps;
            if status.state.0 != State::Up && all.not_up.len() < NOT_UP {
                let (name, remote) = (watched.name.clone(), status.remote.0);
                all.not_up.push((name, status.state, remote));
            }
        });
        (all.count() > 0).then_some(all)
    }

    /// Forces whether an interface counts as live, or all do; returns whether there is one.
    pub fn force_monitors(&self, name: Option<&str>, forwarding: Option<bool>) -> bool {
        let running = self.monitors.running.borrow();
        let mut found = name.is_none();
        if let Some(running) = running.as_ref() {
            let now = self.clock.now_ms();
            running.shared.each(name, |watched| {
                found = true;
                watched.session.force(forwarding);
                watched.look(now);
            });
            running.shared.news.notify_one();
        }
        found
    }

    /// Ends the thread. Waits for its present turn.
    pub(super) fn end_monitors(&self) {
        self.monitors.running.borrow_mut().take();
    }
}

impl Bridge {
    /// Tells controllers of monitored ports that are now live, or no longer; and sessions of their
    /// ports' addresses.
    fn tell_monitored(&self) {
        let mut changed = Vec::new();
        for port in self.ports.borrow_mut().values_mut() {
            let Some(monitor) = &mut port.monitor else {
                continue;
            };
            monitor.set_mac(port.info.mac);
            let live = monitor.is_live();
            if std::mem::replace(&mut monitor.told_live, live) != live {
                changed.push(port.number);
            }
        }
        for number in changed {
            self.tell_port(number, PortReason::Modify);
        }
    }
}

impl Running {
    fn start(clock: Arc<Clock>, probes: Probes<Mbuf>) -> std::io::Result<Running> {
        let shared = Arc::new(Shared {
            sessions: Mutex::default(),
            inbox: Arc::default(),
            clock,
            due: AtomicU64::new(0),
            ends: AtomicBool::new(false),
            news: tokio::sync::Notify::new(),
        });
        let of_thread = Arc::clone(&shared);
        let thread = std::thread::Builder::new()
            .name("bfd".into())
            .spawn(move || of_thread.run(&probes))?;
        Ok(Running {
            shared,
            thread: Some(thread),
            count: 0,
            random: RandomState::new(),
        })
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.shared.ends.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            // Not by the inbox, which a thread that has just started may not have reached.
            thread.thread().unpark();
            if thread.join().is_err() {
                tracing::error!(target: "bfd", "the thread of BFD had failed");
            }
        }
    }
}

fn monitor(key: u64, settings: &Settings, inbox: &Arc<Inbox>) -> Monitor {
    let keys = match settings.check_tnl_key {
        Some(true) => Keys::Zero,
        Some(false) => Keys::Any,
        None => Keys::ZeroOfMany,
    };
    Monitor::new(key, settings.remote_dst_mac, keys, Arc::clone(inbox))
}

/// Returns a random name for a session that none of the others has.
fn discriminator(random: &RandomState, key: u64, others: &BTreeMap<u64, Watched>) -> u32 {
    let is_taken = |name: u32| {
        let mut names = others
            .values()
            .map(|watched| watched.session.discriminator());
        name == 0 || names.any(|other| other == name)
    };
    let names = (0_u64..).map(|attempt| random.hash_one((key, attempt)) as u32);
    names.into_iter().find(|name| !is_taken(*name)).unwrap_or(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use bfd::wire::Message;
    use packet::HeapFrame;

    const START: u64 = 1000;

    /// Sessions with the keys 0 and on, and what they send.
    struct Bed {
        shared: Shared,
        sent: RefCell<Vec<Vec<u8>>>,
    }

    impl Bed {
        fn new(sessions: u64) -> Bed {
            let inbox = Arc::new(Inbox::default());
            let settings = Settings::default();
            let watched = |key: u64| {
                let session = Session::new(settings.clone(), key as u32 + 1, START, 0);
                let watched = Watched {
                    name: format!("p{key}"),
                    told: Status::of(&session),
                    sent_at: None,
                    session,
                    monitor: Arc::new(monitor(key, &settings, &inbox)),
                    bridge: BridgeId::default(),
                    number: 1,
                    mac: Mac::default(),
                    udp_src: wire::FIRST_SOURCE,
                };
                (key, watched)
            };
            Bed {
                shared: Shared {
                    sessions: Mutex::new((0..sessions).map(watched).collect()),
                    inbox,
                    clock: Arc::default(),
                    due: AtomicU64::new(0),
                    ends: AtomicBool::new(false),
                    news: tokio::sync::Notify::new(),
                },
                sent: RefCell::default(),
            }
        }

        /// Has a session's port receive a message of the other end.
        fn receive(&self, key: u64, state: State, flags: u8) {
            let message = Message {
                state,
                flags,
                multiplier: 3,
                my_discriminator: 7,
                your_discriminator: key as u32 + 1,
                min_tx_us: 100_000,
                min_rx_us: 100_000,
                ..Message::default()
            };
            let addresses = Addresses {
                eth_src: [2, 0, 0, 0, 0, 9],
                eth_dst: wire::ETHERNET,
                ip_src: [169, 254, 1, 1],
                ip_dst: [169, 254, 1, 0],
                udp_src: wire::FIRST_SOURCE,
            };
            let frame = HeapFrame::new(&wire::frame(&message, &addresses));
            let monitor = Arc::clone(&self.shared.sessions()[&key].monitor);
            assert_eq!(monitor.take(&frame), Some(Ok(())));
        }

        fn turn(&self, now: u64) -> u64 {
            let send = |probe: Probe| {
                self.sent.borrow_mut().push(probe.data);
                Ok(())
            };
            self.shared.turn(now, &send)
        }

        /// Returns the flags of what has been sent.
        fn flags(&self) -> Vec<u8> {
            let read = |frame: Vec<u8>| {
                let payload = wire::carried(&frame).unwrap().payload;
                Message::decode(payload).unwrap().flags
            };
            self.sent.take().into_iter().map(read).collect()
        }

        fn all_are(&self, state: State) -> bool {
            let sessions = self.shared.sessions();
            sessions
                .values()
                .all(|watched| watched.session.state().0 == state)
        }
    }

    /// The thread was away for longer than the detection time, while workers went on.
    #[test]
    fn received_messages_are_processed_before_sessions_expire() {
        let bed = Bed::new(400);
        bed.turn(START);
        let hear = |state, flags| {
            for key in 0..400 {
                bed.receive(key, state, flags);
            }
        };
        hear(State::Init, 0);
        bed.turn(START + 10);
        assert!(bed.all_are(State::Up));
        hear(State::Up, 0);
        bed.turn(START + 100_000);
        assert!(bed.all_are(State::Up));
        // Without messages they do expire.
        bed.turn(START + 200_000);
        assert!(bed.all_are(State::Down));
    }

    /// A session that has just begun, and one that has heard something, get their turns at once.
    #[test]
    fn turns_between_come_when_something_happens() {
        let bed = Bed::new(2);
        let next = bed.turn(START);
        assert_eq!(bed.flags().len(), 2);
        assert!(next > START + 1);
        assert_eq!(bed.turn(START + 1), next, "with nothing to do");
        assert_eq!(bed.flags().len(), 0);
        // The answer to what the other end says, and what is then due for itself.
        bed.receive(1, State::Init, 0);
        bed.turn(START + 2);
        assert_eq!(bed.flags().len(), 1);
        let more = Bed::new(3).shared.sessions().remove(&2).unwrap();
        bed.shared.sessions().insert(2, more);
        bed.shared.call();
        bed.turn(START + 3);
        assert_eq!(bed.flags().len(), 1);
    }

    #[test]
    fn a_flood_of_polls_is_answered_once_in_a_ms() {
        const POLL: u8 = 0x20;
        const FINAL: u8 = 0x10;
        let bed = Bed::new(1);
        bed.turn(START);
        bed.sent.take();
        for now in START + 1..START + 4 {
            // Two turns in the same ms.
            for wanted in [&[FINAL][..], &[]] {
                for _ in 0..8 {
                    bed.receive(0, State::AdminDown, POLL);
                }
                let next = bed.turn(now);
                assert_eq!(bed.flags(), wanted, "at {now}");
                assert!(!wanted.is_empty() || next == now + 1, "{next} after {now}");
            }
        }
    }
}
