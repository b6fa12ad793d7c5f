//! A slow, obvious tracker, with which the real one is compared: a list that is
//! searched from the beginning, and sequence numbers that do not wrap around.

use conntrack::{Direction, Flow, Nat, Tuple, state};
use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

pub const SYN: u16 = 2;
pub const FIN: u16 = 1;
pub const RST: u16 = 4;
pub const ACK: u16 = 16;

/// Addresses, ports and ICMP types of a packet; ICMP has its identifier as both ports.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ends {
    pub protocol: u8,
    pub src: (IpAddr, u16),
    pub dst: (IpAddr, u16),
    pub kinds: (u8, u8),
}

impl Ends {
    pub fn is_icmp(&self) -> bool {
        matches!(self.protocol, 1 | 58)
    }

    fn has_ports(&self) -> bool {
        matches!(self.protocol, 6 | 17 | 132)
    }

    pub fn reversed(self) -> Ends {
        Ends {
            src: self.dst,
            dst: self.src,
            kinds: (self.kinds.1, self.kinds.0),
            ..self
        }
    }
}

#[derive(Clone, Copy, Debug, Default)]
pub struct Tcp {
    pub flags: u16,
    pub seq: u32,
    pub ack: u32,
    pub window: u16,
    pub length: u32,
    pub scale: Option<u8>,
}

#[derive(Clone, Copy, Debug)]
pub struct Sent {
    /// Of the packet, or of the one that it quotes.
    pub ends: Ends,
    pub tcp: Tcp,
    /// An ICMP error that quotes it.
    pub error: bool,
}

#[derive(Clone, Copy, Debug)]
struct Side {
    stage: Stage,
    sent: i64,
    allowed: i64,
    window: i64,
    /// None: no option; Some(None): the handshake was not seen.
    scale: Option<Option<u32>>,
}

#[derive(Clone, Copy, PartialEq, PartialOrd, Debug)]
enum Stage {
    Silent,
    Sent,
    Acked,
    Fin,
    FinAcked,
    Reset,
}

#[derive(Clone, Copy, Debug)]
enum Progress {
    Tcp([Side; 2]),
    /// Whether there were replies.
    Icmp(bool),
    Other(bool),
}

#[derive(Clone, Debug)]
pub struct Conn {
    pub zone: u16,
    pub original: Ends,
    pub reply: Ends,
    pub mark: u32,
    pub nat: Option<Direction>,
    pub expires: u64,
    progress: Progress,
}

/// What the model expects of the answer.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Expected {
    pub state: u32,
    pub mark: u32,
    pub original: Ends,
    /// The packet's (or quoted packet's, turned round) ends as they are to go out.
    pub out: Ends,
}

/// The part of the real table in which each connection is.
pub type Places = HashMap<(u16, Flow), usize>;

#[derive(Default)]
pub struct Model {
    /// In the order in which they began.
    pub conns: Vec<Conn>,
    /// How many there may be.
    pub limit: Option<usize>,
    /// How many each zone may have.
    pub zone_limits: [Option<usize>; 2],
    /// Which connections the real tracker had before a packet, and has behind it. Needed if there
    /// is a limit.
    pub before: Places,
    pub after: Places,
}

/// The ends that a new connection's packets may have when they go out, in order of nothing.
pub fn choices(ends: Ends, nat: &Nat) -> Vec<Ends> {
    let (Some(direction), Some(range)) = (nat.direction, nat.range) else {
        return vec![ends];
    };
    let own = match direction {
        Direction::Source => ends.src,
        Direction::Destination => ends.dst,
    };
    let addresses: Vec<IpAddr> = match (range.min, range.max) {
        (min, _) if min.is_unspecified() => vec![own.0],
        (IpAddr::V4(min), IpAddr::V4(max)) => (min.to_bits()..=max.to_bits())
            .map(|bits| Ipv4Addr::from_bits(bits).into())
            .collect(),
        (IpAddr::V6(min), IpAddr::V6(max)) => (min.to_bits()..=max.to_bits())
            .map(|bits| Ipv6Addr::from_bits(bits).into())
            .collect(),
        _ => panic!("a range of two families"),
    };
    let ports = match range.ports {
        Some((min, max)) => min..=max,
        None => own.1..=own.1,
    };
    let mut all = Vec::new();
    for address in addresses {
        if address.is_ipv6() != own.0.is_ipv6() {
            continue;
        }
        for port in ports.clone() {
            let port = if ends.has_ports() { port } else { own.1 };
            let mut out = ends;
            match direction {
                Direction::Source => out.src = (address, port),
                Direction::Destination => out.dst = (address, port),
            }
            all.push(out);
        }
    }
    all
}

impl Model {
    fn taken(&self, zone: u16, ends: Ends, now: u64) -> Option<usize> {
        self.conns.iter().position(|conn| {
            conn.zone == zone && conn.expires > now && (conn.original == ends || conn.reply == ends)
        })
    }

    /// `out` is what the real tracker has made of a new connection's packet.
    #[allow(clippy::too_many_arguments)]
    pub fn track(
        &mut self,
        packet: &Sent,
        zone: u16,
        (commit, force): (bool, bool),
        mark: u32,
        nat: Option<&Nat>,
        now: u64,
        out: Ends,
    ) -> Expected {
        self.conns.retain(|conn| conn.expires > now);
        let ends = if packet.error {
            packet.ends.reversed()
        } else {
            packet.ends
        };
        let nothing = |state| Expected {
            state: state | state::TRACKED,
            mark: 0,
            original: ends,
            out: ends,
        };
        if let Some(index) = self.taken(zone, ends, now) {
            let conn = &mut self.conns[index];
            let reply = conn.original != ends;
            let direction = if reply { state::REPLY } else { 0 };
            let found = if commit && force && reply {
                None
            } else if packet.error {
                Some(state::RELATED | direction)
            } else {
                conn.follow(packet, reply, now).map(|state| {
                    if state == state::ESTABLISHED {
                        state | direction
                    } else {
                        state
                    }
                })
            };
            let Some(mut state) = found else {
                self.conns.remove(index);
                return self.begin(packet, zone, commit, mark, nat, now, out, ends);
            };
            if mark != 0 {
                conn.mark = mark;
            }
            let mut out = ends;
            if nat.is_some()
                && let Some(direction) = conn.nat
            {
                out = if reply {
                    conn.original.reversed()
                } else {
                    conn.reply.reversed()
                };
                state |= match (direction, reply) {
                    (Direction::Source, false) | (Direction::Destination, true) => {
                        state::SOURCE_NAT
                    }
                    _ => state::DESTINATION_NAT,
                };
            }
            return Expected {
                state: state | state::TRACKED,
                mark: conn.mark,
                original: conn.original,
                out,
            };
        }
        if packet.error {
            return nothing(state::INVALID);
        }
        self.begin(packet, zone, commit, mark, nat, now, out, ends)
    }

    #[allow(clippy::too_many_arguments)]
    fn begin(
        &mut self,
        packet: &Sent,
        zone: u16,
        commit: bool,
        mark: u32,
        nat: Option<&Nat>,
        now: u64,
        out: Ends,
        ends: Ends,
    ) -> Expected {
        let nothing = |state| Expected {
            state: state | state::TRACKED,
            mark: 0,
            original: ends,
            out: ends,
        };
        let tcp = &packet.tcp;
        let valid = match ends.protocol {
            6 => flags_valid(tcp.flags) && tcp.flags & (SYN | ACK) != SYN | ACK,
            1 => ends.kinds.0 == 8,
            58 => ends.kinds.0 == 128,
            _ => true,
        };
        if packet.error || !valid {
            return nothing(state::INVALID);
        }
        if !commit {
            return nothing(state::NEW);
        }
        let direction = nat.and_then(|nat| nat.direction);
        let mut bits = state::NEW;
        let mut goes = ends;
        if let (Some(nat), Some(direction)) = (nat, direction) {
            bits |= match direction {
                Direction::Source => state::SOURCE_NAT,
                Direction::Destination => state::DESTINATION_NAT,
            };
            let all = choices(ends, nat);
            let free: Vec<Ends> = all
                .iter()
                .copied()
                .filter(|out| self.taken(zone, out.reversed(), now).is_none())
                .collect();
            let falls_back = ends.has_ports()
                && !all.is_empty()
                && (direction == Direction::Destination
                    || nat.range.is_none_or(|range| range.ports.is_none()));
            if free.is_empty() && !falls_back {
                return nothing(state::INVALID);
            }
            if !self.make_room(zone) {
                return nothing(state::NEW);
            }
            // The tracker may choose any free one, or a source port if none is prescribed.
            assert!(
                self.taken(zone, out.reversed(), now).is_none(),
                "taken: {out:?}"
            );
            let prescribed = nat.range.is_some_and(|range| range.ports.is_some());
            if free.is_empty() || !prescribed && !free.contains(&out) {
                let mut like = out;
                like.src.1 = ends.src.1;
                assert!(all.contains(&like), "{out:?}");
                let reserved = [out.src.1 < 1024, ends.src.1 < 1024];
                assert_eq!(reserved[0], reserved[1], "{out:?}");
            } else {
                assert!(free.contains(&out), "{out:?} of {free:?}");
            }
            goes = out;
        } else if self.taken(zone, ends.reversed(), now).is_some() || !self.make_room(zone) {
            return nothing(state::NEW);
        }
        let progress = match ends.protocol {
            6 => Progress::Tcp(first(tcp)),
            1 | 58 => Progress::Icmp(false),
            _ => Progress::Other(false),
        };
        let seconds = if ends.protocol == 6 { 30 } else { 60 };
        self.conns.push(Conn {
            zone,
            original: ends,
            reply: goes.reversed(),
            mark,
            nat: direction,
            expires: now + seconds * 1000,
            progress,
        });
        Expected {
            state: bits | state::TRACKED,
            mark,
            original: ends,
            out: goes,
        }
    }
}

impl Model {
    fn make_room(&mut self, zone: u16) -> bool {
        let in_zone = self.conns.iter().filter(|conn| conn.zone == zone).count();
        let limit = self.zone_limits[usize::from(zone)];
        if limit.is_some_and(|limit| in_zone >= limit)
            && (limit == Some(0) || !self.evict(Some(zone)))
        {
            return false;
        }
        let fits = self.limit.is_none_or(|limit| self.conns.len() < limit);
        fits || self.evict(Some(zone)) || self.evict(None)
    }

    /// Evicts the half-open connection that the real tracker has evicted, which may be any that is
    /// the oldest of its part of the table. Returns false if there is none.
    fn evict(&mut self, zone: Option<u16>) -> bool {
        let candidates: Vec<&Conn> = self
            .conns
            .iter()
            .filter(|conn| zone.is_none_or(|zone| conn.zone == zone) && conn.is_half_open())
            .collect();
        let gone: Vec<&&Conn> = candidates
            .iter()
            .filter(|conn| !self.after.contains_key(&conn.name()))
            .collect();
        let [evicted] = gone[..] else {
            assert!(candidates.is_empty(), "evicted: {gone:?}");
            return false;
        };
        let place = |conn: &Conn| self.before.get(&conn.name()).copied();
        let oldest = candidates.iter().find(|conn| place(conn) == place(evicted));
        let name = evicted.name();
        assert_eq!(oldest.map(|conn| conn.name()), Some(name), "the oldest");
        self.conns.retain(|conn| conn.name() != name);
        true
    }
}

impl Conn {
    /// Returns what tells it from others.
    fn name(&self) -> (u16, Flow) {
        let ends = &self.original;
        let (source_port, destination_port) = match ends.is_icmp() {
            true => (ends.kinds.0.into(), 0),
            false => (ends.src.1, ends.dst.1),
        };
        let tuple = Tuple {
            source: ends.src.0,
            destination: ends.dst.0,
            protocol: ends.protocol,
            source_port,
            destination_port,
        };
        let icmp_id = ends.is_icmp().then_some(ends.src.1);
        (self.zone, Flow { tuple, icmp_id })
    }

    fn is_half_open(&self) -> bool {
        match &self.progress {
            Progress::Tcp(sides) => sides.iter().any(|side| side.stage < Stage::Acked),
            Progress::Icmp(replied) | Progress::Other(replied) => !replied,
        }
    }

    /// Returns the state; None if a new connection begins.
    fn follow(&mut self, packet: &Sent, reply: bool, now: u64) -> Option<u32> {
        let (state, seconds) = match &mut self.progress {
            Progress::Icmp(replied) => {
                *replied |= reply;
                if *replied {
                    (state::ESTABLISHED, 30)
                } else {
                    (state::NEW, 60)
                }
            }
            Progress::Other(replied) => {
                *replied |= reply;
                if *replied {
                    (state::ESTABLISHED, 30)
                } else {
                    (state::NEW, 60)
                }
            }
            Progress::Tcp(sides) => match segment(sides, reply, &packet.tcp) {
                Segment::Fits(seconds) => (state::ESTABLISHED, seconds),
                Segment::Lenient => return Some(state::ESTABLISHED),
                Segment::Again => (state::NEW, 30),
                Segment::Bad => return Some(state::INVALID),
                Segment::Reuse => return None,
            },
        };
        self.expires = now + seconds * 1000;
        Some(state)
    }
}

fn flags_valid(flags: u16) -> bool {
    let [fin, syn, rst, psh, ack, urg] = [0, 1, 2, 3, 4, 5].map(|bit| flags >> bit & 1 == 1);
    let some_purpose = syn || ack || rst;
    let one_purpose = !(syn && (rst || fin));
    some_purpose && one_purpose && (ack || !(fin || psh || urg))
}

enum Segment {
    Fits(u64),
    Lenient,
    Again,
    Bad,
    Reuse,
}

/// The number closest to `near` that is `raw` modulo 2^32.
fn unwrap(raw: u32, near: i64) -> i64 {
    near + i64::from(raw.wrapping_sub(near as u32) as i32)
}

fn ceil(window: i64, shift: u32) -> i64 {
    (window + (1 << shift) - 1) >> shift
}

fn first(tcp: &Tcp) -> [Side; 2] {
    let syn = tcp.flags & SYN != 0;
    let fin = tcp.flags & FIN != 0;
    let sent = i64::from(tcp.seq);
    let scale = if syn {
        tcp.scale.map(|scale| Some(scale.min(14).into()))
    } else {
        Some(None)
    };
    let window = i64::from(tcp.window.max(1));
    [
        Side {
            stage: Stage::Sent,
            sent,
            allowed: sent + i64::from(tcp.length) + 1 + i64::from(syn) + i64::from(fin),
            window: ceil(window, scale.flatten().unwrap_or(0)),
            scale,
        },
        Side {
            stage: Stage::Silent,
            sent: 0,
            allowed: 1,
            window: 1,
            scale: if syn { None } else { Some(None) },
        },
    ]
}

fn segment(sides: &mut [Side; 2], reply: bool, tcp: &Tcp) -> Segment {
    let has = |flag: u16| tcp.flags & flag != 0;
    if !flags_valid(tcp.flags) {
        return Segment::Bad;
    }
    let [mut a, mut b] = *sides;
    if reply {
        std::mem::swap(&mut a, &mut b);
    }
    if has(SYN) && !has(ACK) {
        if a.stage >= Stage::FinAcked && b.stage >= Stage::FinAcked {
            return Segment::Reuse;
        }
        if a.stage <= Stage::Sent {
            a.stage = Stage::Sent;
            *sides = if reply { [b, a] } else { [a, b] };
            return Segment::Again;
        }
    }
    let (mut a_shift, mut b_shift) = (0, 0);
    if !has(SYN) {
        (a_shift, b_shift) = match (a.scale, b.scale) {
            (Some(Some(a)), Some(Some(b))) => (a, b),
            (Some(None), Some(None)) => (14, 14),
            _ => (0, 0),
        };
    }
    let mut window = i64::from(tcp.window);
    let mut seq = unwrap(tcp.seq, a.sent);
    let plain = seq;
    let mut end = seq + i64::from(tcp.length) + i64::from(has(SYN)) + i64::from(has(FIN));
    let mut skew_known = true;
    if a.stage == Stage::Silent {
        if has(SYN)
            && let Some(Some(other)) = b.scale
        {
            match tcp.scale {
                Some(own) => {
                    a.scale = Some(Some(own.min(14).into()));
                    (a_shift, b_shift) = (own.min(14).into(), other);
                    window = ceil(window, a_shift);
                }
                None => {
                    a.scale = None;
                    b.window = (b.window << other).min(0xffff);
                    b.scale = None;
                }
            }
        }
        a.sent = seq;
        a.stage = Stage::Sent;
        let reach = end + (b.window << b_shift).max(1);
        if a.allowed == 1 || reach >= unwrap(a.allowed as u32, reach) {
            a.allowed = reach;
            skew_known = false;
        } else {
            a.allowed = unwrap(a.allowed as u32, reach);
        }
        a.window = a.window.max(window);
    }
    let mut ack = unwrap(tcp.ack, b.sent);
    if !has(ACK) || (has(RST) && tcp.ack == 0) {
        ack = b.sent;
    }
    if seq == end {
        (seq, end) = (a.sent, a.sent);
    }
    let skew = if skew_known { b.sent - ack } else { 0 };
    let allowed = unwrap(a.allowed as u32, end);
    let fits = end <= allowed
        && seq >= a.sent - (b.window << b_shift)
        && skew >= -67035
        && skew <= 67035 << a_shift
        && (!has(RST) || (plain - a.sent).abs() <= 1);
    let lenient =
        (b.stage == Stage::Silent || b.stage >= Stage::FinAcked || a.stage >= Stage::FinAcked)
            && end <= allowed + 67035
            && seq >= a.sent - 67035;
    if !fits && !lenient {
        *sides = if reply { [b, a] } else { [a, b] };
        return Segment::Bad;
    }
    a.window = a.window.max(window);
    a.sent = a.sent.max(end);
    let opened = ack + (window << a_shift);
    if opened >= unwrap(b.allowed as u32, opened) {
        b.allowed = ack + (window << a_shift).max(1);
    }
    if has(FIN) && a.stage < Stage::Fin {
        a.stage = Stage::Fin;
    }
    if fits && has(ACK) {
        b.stage = match b.stage {
            Stage::Sent => Stage::Acked,
            Stage::Fin => Stage::FinAcked,
            other => other,
        };
    }
    if has(RST) {
        (a.stage, b.stage) = (Stage::Reset, Stage::Reset);
    }
    let both = |stage: Stage| a.stage >= stage && b.stage >= stage;
    let any = |stage: Stage| a.stage >= stage || b.stage >= stage;
    let seconds = if both(Stage::FinAcked) {
        30
    } else if both(Stage::Fin) {
        45
    } else if !both(Stage::Acked) {
        30
    } else if any(Stage::Fin) {
        15 * 60
    } else {
        24 * 3600
    };
    *sides = if reply { [b, a] } else { [a, b] };
    if fits {
        Segment::Fits(seconds)
    } else {
        Segment::Lenient
    }
}
