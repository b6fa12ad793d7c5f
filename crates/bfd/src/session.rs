//! A session: RFC 5880 section 6, with Open vSwitch's additions (decay, traffic as a sign of life,
//! an override by hand).

use crate::wire::{self, Diagnostic, Malformed, Message, State, TTL};

/// Longest interval that can be asked for, ms: as us it must fit into a message's 32 bits.
pub const MOST_INTERVAL_MS: u32 = u32::MAX / 1000;
/// Shortest interval at which a session that is not up sends (RFC 5880 section 6.8.3), ms.
const SLOW_MS: u64 = 1000;
/// Shortest time over which received traffic is judged, ms.
const TRAFFIC_MS: u64 = 2000;
/// How many of its `min_rx` a session that goes by traffic may be without a message.
const TRAFFIC_MESSAGES: u64 = 100;

/// What a session is asked to do: Open vSwitch's column `Interface.bfd`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Settings {
    /// Shortest interval at which messages are taken, ms, 1 to [`MOST_INTERVAL_MS`].
    pub min_rx_ms: u32,
    /// Shortest interval at which messages are sent while the session is up, ms, likewise.
    pub min_tx_ms: u32,
    /// `min_rx_ms` where little else than messages is received; 0 for none. At least `min_rx_ms`.
    pub decay_min_rx_ms: u32,
    /// Whether received traffic counts as a sign of life.
    pub forwarding_if_rx: bool,
    /// Whether to tell the other end that nothing is to be sent here although the session is up.
    pub cpath_down: bool,
    /// After how many missing messages the other end declares the session down; not 0.
    pub multiplier: u8,
    /// Whether only messages with the tunnel key 0 are taken; None: on tunnels that carry many.
    pub check_tnl_key: Option<bool>,
    /// Ethernet address that messages are sent from; None for the port's.
    pub local_src_mac: Option<[u8; 6]>,
    /// Ethernet address that messages are sent to.
    pub local_dst_mac: [u8; 6],
    /// Ethernet address that messages must be sent to which are taken; None for any.
    pub remote_dst_mac: Option<[u8; 6]>,
    /// IPv4 address that messages are sent from.
    pub src_ip: [u8; 4],
    /// IPv4 address that messages are sent to.
    pub dst_ip: [u8; 4],
    /// Whether tunnels mark messages as OAM.
    pub oam: bool,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            min_rx_ms: 1000,
            min_tx_ms: 100,
            decay_min_rx_ms: 0,
            forwarding_if_rx: false,
            cpath_down: false,
            multiplier: 3,
            check_tnl_key: None,
            local_src_mac: None,
            local_dst_mac: wire::ETHERNET,
            remote_dst_mac: None,
            src_ip: [169, 254, 1, 1],
            dst_ip: [169, 254, 1, 0],
            oam: false,
        }
    }
}

/// What the other end has last said of itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Remote {
    /// Its state.
    pub state: State,
    /// Its diagnostic.
    pub diagnostic: Diagnostic,
    /// The flags of its last message.
    pub flags: u8,
    /// Its name for the session; 0 if unknown.
    pub discriminator: u32,
    /// Its `min_tx`, ms; 0 if unknown.
    pub min_tx_ms: u64,
    /// Its `min_rx`, ms.
    pub min_rx_ms: u64,
    /// Its multiplier; 0 if unknown.
    pub multiplier: u8,
}

impl Default for Remote {
    fn default() -> Remote {
        Remote {
            state: State::Down,
            diagnostic: Diagnostic::NONE,
            flags: 0,
            discriminator: 0,
            min_tx_ms: 0,
            min_rx_ms: 1,
            multiplier: 0,
        }
    }
}

/// Why a received message was not taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Rejected {
    /// It has passed a router.
    #[error("TTL {0} instead of {TTL}")]
    Ttl(u8),
    /// It is malformed.
    #[error("{0}")]
    Malformed(#[from] Malformed),
    /// It is for another session.
    #[error("incorrect your_disc {0:#x}")]
    OtherSession(u32),
}

/// A change of a session's state.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Step {
    /// State and diagnostic before.
    pub from: (State, Diagnostic),
    /// State and diagnostic after.
    pub to: (State, Diagnostic),
}

/// Most steps that are kept for [`Session::take_steps`].
const STEPS: usize = 16;

/// One end of a session.
#[derive(Clone, Debug)]
pub struct Session {
    settings: Settings,
    discriminator: u32,
    state: State,
    diagnostic: Diagnostic,
    remote: Remote,
    /// `min_tx` and `min_rx` in force, ms.
    min_tx_ms: u64,
    min_rx_ms: u64,
    /// The same as they will be once the other end has answered a poll.
    poll: Option<(u64, u64)>,
    /// Whether the other end waits for the answer to its poll.
    owes_final: bool,
    last_tx: u64,
    next_tx: u64,
    /// When it is declared down.
    detect_at: u64,
    forced: Option<bool>,
    /// Whether little else than messages is received, so that `decay_min_rx_ms` is wanted.
    in_decay: bool,
    decay_at: u64,
    decay_messages: u64,
    decay_packets: u64,
    rx_packets: u64,
    /// Until when received traffic, and the last message, count as signs of life.
    traffic_until: u64,
    message_until: u64,
    was_forwarding: bool,
    flaps: u64,
    random: u64,
    steps: Vec<Step>,
}

impl Session {
    /// Creates a session that is down. `discriminator` is its name on the wire: not 0, and no other
    /// session's of the machine; it should be random. `rx_packets` is how many packets its port has
    /// received.
    pub fn new(settings: Settings, discriminator: u32, now: u64, rx_packets: u64) -> Session {
        let mut session = Session {
            min_tx_ms: u64::from(settings.min_tx_ms),
            min_rx_ms: u64::from(settings.min_rx_ms),
            settings,
            discriminator,
            state: State::Down,
            diagnostic: Diagnostic::NONE,
            remote: Remote::default(),
            poll: None,
            owes_final: false,
            last_tx: 0,
            next_tx: now,
            detect_at: 0,
            forced: None,
            in_decay: false,
            decay_at: 0,
            decay_messages: 0,
            decay_packets: 0,
            rx_packets,
            traffic_until: 0,
            message_until: 0,
            was_forwarding: false,
            flaps: 0,
            random: u64::from(discriminator) | 1 << 32,
            steps: Vec::new(),
        };
        if session.settings.cpath_down {
            session.diagnostic = Diagnostic::CONCATENATED_PATH_DOWN;
        }
        session
    }

    /// Changes its settings. Where the other end must agree (longer intervals of sending, shorter
    /// ones of receiving) they come into force with its answer to a poll.
    pub fn configure(&mut self, settings: Settings, now: u64, rx_packets: u64) {
        let before = std::mem::replace(&mut self.settings, settings);
        let (tx, rx) = (
            u64::from(self.settings.min_tx_ms),
            u64::from(self.settings.min_rx_ms),
        );
        let is_up = self.state == State::Up;
        if !is_up || self.poll.is_none() && tx < self.min_tx_ms {
            self.min_tx_ms = tx;
        }
        if !is_up || self.poll.is_none() && rx > self.min_rx_ms {
            self.min_rx_ms = rx;
        }
        let decay = |settings: &Settings| (settings.decay_min_rx_ms, settings.min_rx_ms);
        if decay(&before) != decay(&self.settings) {
            self.in_decay = false;
            self.watch_decay(now, rx_packets);
        }
        if before.cpath_down != self.settings.cpath_down {
            let diagnostic = match self.settings.cpath_down {
                true => Diagnostic::CONCATENATED_PATH_DOWN,
                false => Diagnostic::NONE,
            };
            self.enter(self.state, diagnostic, now);
            // The other end is to know at once.
            self.next_tx = self.next_tx.min(now);
        }
        if before.forwarding_if_rx != self.settings.forwarding_if_rx {
            self.traffic_until = 0;
            if self.state == State::Up && self.settings.forwarding_if_rx {
                self.watch_traffic(now);
            }
        }
        if before != self.settings {
            self.begin_poll(now);
        }
        self.look(now);
    }

    /// Takes a message: UDP's payload, and the TTL that it came with.
    ///
    /// # Errors
    ///
    /// Says why it was not taken; it then has no effect.
    pub fn receive(&mut self, ttl: u8, payload: &[u8], now: u64) -> Result<(), Rejected> {
        if ttl != TTL {
            return Err(Rejected::Ttl(ttl));
        }
        let message = Message::decode(payload)?;
        let yours = message.your_discriminator;
        if yours != 0 && yours != self.discriminator {
            return Err(Rejected::OtherSession(yours));
        }
        self.decay_messages += 1;
        let ms = |us: u32| u64::from((us / 1000).max(1));
        let slower = self.remote.min_rx_ms != ms(message.min_rx_us);
        self.remote = Remote {
            state: message.state,
            diagnostic: message.diagnostic,
            flags: message.flags,
            discriminator: message.my_discriminator,
            min_tx_ms: ms(message.min_tx_us),
            min_rx_ms: ms(message.min_rx_us),
            multiplier: message.multiplier,
        };
        if message.is_final()
            && let Some((tx, rx)) = self.poll.take()
        {
            (self.min_tx_ms, self.min_rx_ms) = (tx, rx);
        }
        self.owes_final |= message.is_poll();
        if slower {
            self.plan_next();
        }
        self.detect_at = now + self.rx_interval_ms() * u64::from(message.multiplier);
        if self.settings.forwarding_if_rx {
            let most = TRAFFIC_MESSAGES * u64::from(self.settings.min_rx_ms);
            self.message_until = now + most;
        }
        let next = match (self.state, message.state) {
            (State::AdminDown, _) => None,
            (State::Down, State::AdminDown) => None,
            (_, State::AdminDown) => Some((State::Down, Diagnostic::NEIGHBOUR_DOWN)),
            (State::Down, State::Down) => Some((State::Init, self.diagnostic)),
            (State::Down, State::Init) => Some((State::Up, self.diagnostic)),
            (State::Init, State::Init | State::Up) => Some((State::Up, self.diagnostic)),
            (State::Up, State::Down) => Some((State::Down, Diagnostic::NEIGHBOUR_DOWN)),
            _ => None,
        };
        if let Some((state, diagnostic)) = next {
            self.enter(state, diagnostic, now);
        }
        self.look(now);
        Ok(())
    }

    /// Does what is due by `now`. `rx_packets` is how many packets the port has received.
    pub fn run(&mut self, now: u64, rx_packets: u64) {
        if self.state > State::Down && now >= self.detect_at {
            self.enter(State::Down, Diagnostic::EXPIRED, now);
        }
        let was_in_decay = self.in_decay;
        if self.decays() && now >= self.decay_at {
            // Twice the messages, because the port's count may be ahead of what has been taken.
            let expected = 2 * self.decay_messages.max(1);
            self.in_decay = rx_packets.wrapping_sub(self.decay_packets) <= expected;
            self.watch_decay(now, rx_packets);
        }
        let received = rx_packets > self.rx_packets;
        self.rx_packets = rx_packets;
        if received && self.settings.forwarding_if_rx {
            self.watch_traffic(now);
        }
        let (tx, rx) = self.wanted();
        if (self.min_tx_ms, self.min_rx_ms) != (tx, rx) || was_in_decay != self.in_decay {
            self.begin_poll(now);
        }
        self.look(now);
    }

    /// Returns the message to send now, if one is due.
    pub fn transmit(&mut self, now: u64) -> Option<Message> {
        if !self.owes_final && now < self.next_tx {
            return None;
        }
        let (tx, rx) = self.poll.unwrap_or((self.offered_tx_ms(), self.min_rx_ms));
        let us = |ms: u64| u32::try_from(ms * 1000).unwrap_or(u32::MAX);
        let mut message = Message {
            state: self.state,
            diagnostic: self.diagnostic,
            flags: 0,
            multiplier: self.settings.multiplier,
            my_discriminator: self.discriminator,
            your_discriminator: self.remote.discriminator,
            min_tx_us: us(tx),
            min_rx_us: us(rx),
            min_echo_us: 0,
        };
        message.asks(self.poll.is_some(), std::mem::take(&mut self.owes_final));
        self.last_tx = now;
        self.plan_next();
        Some(message)
    }

    /// Returns when [`Session::run`] and [`Session::transmit`] have something to do next.
    pub fn due(&self) -> u64 {
        if self.owes_final {
            return 0;
        }
        let mut due = self.next_tx;
        if self.state > State::Down {
            due = due.min(self.detect_at);
        }
        if self.decays() {
            due = due.min(self.decay_at);
        }
        if self.settings.forwarding_if_rx && self.was_forwarding && self.state != State::Up {
            due = due.min(self.traffic_until.min(self.message_until));
        }
        due
    }

    /// Forces what [`Session::is_forwarding`] answers, or no longer.
    pub fn force(&mut self, forwarding: Option<bool>) {
        self.forced = forwarding;
    }

    /// Returns whether the port may be used, as of the last call with a time.
    pub fn is_forwarding(&self) -> bool {
        self.forced.unwrap_or(self.was_forwarding)
    }

    /// Returns how often what it finds by itself about forwarding has changed.
    pub fn flaps(&self) -> u64 {
        self.flaps
    }

    /// Returns its state and diagnostic.
    pub fn state(&self) -> (State, Diagnostic) {
        (self.state, self.diagnostic)
    }

    /// Returns what the other end has said.
    pub fn remote(&self) -> &Remote {
        &self.remote
    }

    /// Returns its settings.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Returns its name on the wire.
    pub fn discriminator(&self) -> u32 {
        self.discriminator
    }

    /// Returns the changes of its state since the last call, the last ones where there were many.
    pub fn take_steps(&mut self) -> Vec<Step> {
        std::mem::take(&mut self.steps)
    }

    /// Returns when it is declared down, when it sends next, and when it has sent last.
    pub(crate) fn times(&self) -> (u64, u64, u64) {
        (self.detect_at, self.next_tx, self.last_tx)
    }

    /// Returns the flags that its next message has, as [`Message::flags`].
    pub(crate) fn flags(&self) -> u8 {
        let mut message = Message::default();
        message.asks(self.poll.is_some(), self.owes_final);
        message.flags
    }

    /// Returns the interval at which it is ready to receive, ms.
    pub(crate) fn min_rx_ms(&self) -> u64 {
        self.min_rx_ms
    }

    /// Returns the interval at which it would like to send, ms.
    pub(crate) fn offered_tx_ms(&self) -> u64 {
        match self.state {
            State::Up => self.min_tx_ms,
            _ => self.min_tx_ms.max(SLOW_MS),
        }
    }

    /// Returns the longest interval at which it sends, ms.
    pub fn tx_interval_ms(&self) -> u64 {
        self.offered_tx_ms().max(self.remote.min_rx_ms)
    }

    /// Returns the longest interval at which the other end sends, ms.
    pub fn rx_interval_ms(&self) -> u64 {
        self.min_rx_ms.max(self.remote.min_tx_ms)
    }

    /// Returns `min_tx` and `min_rx` that its settings want, ms.
    fn wanted(&self) -> (u64, u64) {
        let settings = &self.settings;
        let rx = match self.in_decay {
            true => settings.decay_min_rx_ms,
            false => settings.min_rx_ms,
        };
        (u64::from(settings.min_tx_ms), u64::from(rx))
    }

    fn decays(&self) -> bool {
        self.state == State::Up && self.settings.decay_min_rx_ms > 0
    }

    /// Asks the other end to agree to other intervals.
    fn begin_poll(&mut self, now: u64) {
        if self.state == State::Up && self.poll.is_none() {
            self.poll = Some(self.wanted());
            self.next_tx = self.next_tx.min(now);
        }
    }

    fn enter(&mut self, state: State, diagnostic: Diagnostic, now: u64) {
        // In Open vSwitch a session that has once expired never says so again.
        let says = diagnostic == Diagnostic::NONE || state == State::Up;
        let diagnostic = match self.settings.cpath_down && says {
            true => Diagnostic::CONCATENATED_PATH_DOWN,
            false => diagnostic,
        };
        let step = Step {
            from: (self.state, self.diagnostic),
            to: (state, diagnostic),
        };
        if step.from == step.to {
            return;
        }
        if self.steps.len() == STEPS {
            self.steps.remove(0);
        }
        self.steps.push(step);
        let before = self.state;
        (self.state, self.diagnostic) = step.to;
        if before == state {
            return;
        }
        if state <= State::Down {
            self.remote = Remote {
                multiplier: self.remote.multiplier,
                ..Remote::default()
            };
            (self.in_decay, self.poll, self.owes_final) = (false, None, false);
            (self.min_tx_ms, self.min_rx_ms) = self.wanted();
        }
        if state == State::Up {
            self.watch_decay(now, self.rx_packets);
            // The slow interval of a session that is not up ends with this message.
            self.next_tx = self.next_tx.min(now);
        }
        if before == State::Up {
            // The other end is to know at once.
            self.next_tx = self.next_tx.min(now);
        }
    }

    fn watch_decay(&mut self, now: u64, rx_packets: u64) {
        (self.decay_packets, self.decay_messages) = (rx_packets, 0);
        self.decay_at = now + u64::from(self.settings.decay_min_rx_ms).max(TRAFFIC_MS);
    }

    fn watch_traffic(&mut self, now: u64) {
        let time = self.rx_interval_ms() * u64::from(self.settings.multiplier);
        self.traffic_until = now + time.max(TRAFFIC_MS);
    }

    /// Plans the next message: sessions must not send in step (RFC 5880 section 6.8.7), so the
    /// interval is shortened by up to a quarter, and by a tenth at least where the other end misses
    /// every message.
    fn plan_next(&mut self) {
        // Marsaglia's xorshift: even where the name is known nothing depends on secrecy.
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        let interval = self.tx_interval_ms();
        let share = match self.settings.multiplier {
            1 => 10 + self.random % 16,
            _ => self.random % 26,
        };
        self.next_tx = self.last_tx + interval - interval * share / 100;
    }

    /// Finds out whether it forwards, and counts changes.
    fn look(&mut self, now: u64) {
        let alive =
            self.settings.forwarding_if_rx && self.traffic_until > now && self.message_until > now;
        let forwarding = (self.state == State::Up || alive) && !self.remote.diagnostic.forbids();
        if forwarding != self.was_forwarding {
            self.was_forwarding = forwarding;
            self.flaps += 1;
        }
    }
}
