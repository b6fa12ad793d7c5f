//! Translation of addresses and ports: what is asked for, and rewriting of quoted packets.

use crate::extract::{QUOTE, network};
use crate::key::{Address, ICMPV6, Key, TCP, UDP, fold, from_ip};
use packet::Frame;
use packet::checksum::{self, Delta};
use packet::parse::Layers;
use std::net::IpAddr;

/// Which end of a new connection's packets is translated.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Direction {
    /// The source (SNAT).
    Source,
    /// The destination (DNAT).
    Destination,
}

/// Addresses and ports to choose from.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Range {
    /// The first address. Unspecified (all zero): the address is kept, and only a port that is
    /// taken is changed.
    pub min: IpAddr,
    /// The last address, of the same family, not below the first. Of IPv6 addresses, only the low
    /// 64 bits may differ.
    pub max: IpAddr,
    /// First and last port. None: the port is kept unless it is taken.
    pub ports: Option<(u16, u16)>,
}

/// The argument of a `ct` action's `nat`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Nat {
    /// What is done to new connections; None translates only packets of connections that were
    /// committed with a direction.
    pub direction: Option<Direction>,
    /// What new connections are translated to; None keeps the address, as an unspecified one does.
    pub range: Option<Range>,
    /// Choose the same address for all connections of a source.
    pub persistent: bool,
    /// Begin the search at a port that depends on the connection; so it is without `random`, too.
    pub hash: bool,
    /// Begin the search at a random port.
    pub random: bool,
}

/// What is to be written into the headers of a packet that an ICMP error quotes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Inner {
    /// Source address and port; port 0: protocols without ports.
    pub source: Option<(IpAddr, u16)>,
    /// Destination address and port; port 0: protocols without ports.
    pub destination: Option<(IpAddr, u16)>,
}

/// What is to be written into a packet's headers. A port is 0 if the packet has none: then only the
/// address is written. None: that end stays as it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Translation {
    /// Source address and port.
    pub source: Option<(IpAddr, u16)>,
    /// Destination address and port.
    pub destination: Option<(IpAddr, u16)>,
    /// ICMP errors: the quoted packet's; written by
    /// [`translate_inner`](crate::Tracker::translate_inner).
    pub inner: Option<Inner>,
}

impl Translation {
    /// Whether nothing is to be written.
    pub fn is_empty(&self) -> bool {
        let inner = self.inner.unwrap_or_default();
        self.source.is_none()
            && self.destination.is_none()
            && inner.source.is_none()
            && inner.destination.is_none()
    }
}

/// Most tuples that are tried for one packet, so that a full range does not keep a worker (each try
/// takes a lock).
const TRIES: u32 = 256;
/// Of those, the ones with prescribed destination ports, if the source port may change, too.
const PRESCRIBED: u32 = 128;
/// The runs in which more tuples than that are searched, as shifts of their number: a half, a
/// quarter and so on. All but the first begin anywhere, so that a range is called exhausted only if
/// it is nearly full.
const RUNS: [u32; 5] = [1, 2, 3, 4, 4];
/// First port that is chosen for senders that use one that is not reserved.
const EPHEMERAL: u16 = 1024;

/// Numbers below `total`, `budget` of them at most: all once, in order, if that is enough, else in
/// [`RUNS`]. The first is 0, and the first three runs begin below `near`, unless that is less than
/// a run.
fn spread(total: u128, near: u128, budget: u32, seed: u64) -> impl Iterator<Item = u128> {
    let whole = total <= u128::from(budget);
    let near = if near > u128::from(budget.div_ceil(1 << RUNS[0])) {
        near.min(total)
    } else {
        total
    };
    let runs = RUNS
        .into_iter()
        .enumerate()
        .flat_map(move |(number, shift)| {
            let begin = match number {
                0 => 0,
                _ => {
                    let random =
                        |salt: u64| fold(seed ^ salt, MIX.wrapping_mul(2 * number as u64 + 1));
                    let wide = u128::from(random(MIX)) << 64 | u128::from(random(!MIX));
                    wide % if number < 3 { near } else { total }
                }
            };
            (0..u128::from(budget.div_ceil(1 << shift)))
                .map(move |step| (begin + step) % total.max(1))
        });
    let (all, some) = if whole {
        (total, 0)
    } else {
        (0, budget as usize)
    };
    (0..all).chain(runs.take(some))
}

/// An odd number without a pattern.
const MIX: u64 = 0x9e37_79b9_7f4a_7c15;

/// The ports that may replace a source port when none are given: of the same kind, as reserved
/// ports say something of the sender.
fn ports_like(port: u16) -> (u16, u16) {
    match port {
        0..512 => (1, 511),
        512..EPHEMERAL => (600, 1023),
        _ => (EPHEMERAL, u16::MAX),
    }
}

/// Where a search for a free tuple begins.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Start {
    pub address: u64,
    pub port: u64,
    /// Keep to the first address as long as possible.
    pub persistent: bool,
}

/// The ports of a range in order, beginning somewhere.
#[derive(Clone, Copy)]
struct Ports {
    min: u16,
    span: u32,
    begin: u32,
}

impl Ports {
    fn new((min, max): (u16, u16), start: u64) -> Ports {
        let span = u32::from(max.saturating_sub(min)) + 1;
        Ports {
            min,
            span,
            begin: (start % u64::from(span)) as u32,
        }
    }

    fn get(self, step: u32) -> u16 {
        self.min + ((self.begin + step) % self.span) as u16
    }

    /// The step at which a port comes.
    fn step_of(self, port: u16) -> Option<u32> {
        let offset = u32::from(port.checked_sub(self.min)?);
        (offset < self.span).then(|| (offset + self.span - self.begin) % self.span)
    }
}

/// Calls `accept` with at most [`TRIES`] reply tuples until it returns something. None if it does
/// not: the range is exhausted, or nearly.
pub(crate) fn search<R>(
    key: &Key,
    direction: Direction,
    range: Option<&Range>,
    start: Start,
    mut accept: impl FnMut(Key) -> Option<R>,
) -> Option<R> {
    let end = match direction {
        Direction::Source => 0,
        Direction::Destination => 1,
    };
    let own = key.addresses[end];
    let (min, count) = match range {
        Some(range) if !range.min.is_unspecified() => {
            if range.min.is_ipv6() != key.v6 || range.max.is_ipv6() != key.v6 {
                return None;
            }
            let (min, max) = (from_ip(range.min), from_ip(range.max));
            (min, max[1].saturating_sub(min[1]).saturating_add(1))
        }
        _ => (own, 1),
    };
    let given = range
        .and_then(|range| range.ports)
        .filter(|_| key.has_ports());
    let seed = start.address.rotate_left(32) ^ start.port;
    let indices = |per: u32, budget: u32| {
        let (per, count) = (u128::from(per), u128::from(count));
        let near = if start.persistent { per } else { per * count };
        spread(per * count, near, budget, seed).map(move |index| {
            let (offset, step) = (index / per, (index % per) as u32);
            let offset = (u128::from(start.address) + offset) % count;
            let address: Address = [min[0], min[1].wrapping_add(offset as u64)];
            (address, step)
        })
    };
    // Of a reply, the address and port of the translated end are those of the other index.
    let mut reply = key.reversed();
    if !key.has_ports() {
        return indices(1, TRIES).find_map(|(address, _)| {
            reply.addresses[1 - end] = address;
            accept(reply)
        });
    }
    let mut tries = TRIES;
    if let Some(range) = given {
        let ports = Ports::new(range, start.port);
        let mut accept_prescribed = |(address, step)| {
            reply.addresses[1 - end] = address;
            reply.ports[1 - end] = ports.get(step);
            accept(reply)
        };
        if direction == Direction::Source {
            return indices(ports.span, TRIES).find_map(accept_prescribed);
        }
        // All ports of the first address, then other source ports.
        let span = u128::from(ports.span);
        let first: Address = [min[0], min[1].wrapping_add(start.address % count)];
        let found = spread(span, span, PRESCRIBED, seed)
            .find_map(|step| accept_prescribed((first, step as u32)));
        if found.is_some() {
            return found;
        }
        tries -= ports.span.min(PRESCRIBED);
        reply.ports[1 - end] = ports.get(0);
    }
    // Only the sender's port is left to be chosen, first as it is.
    let sent = key.ports[0];
    let ports = Ports::new(ports_like(sent), start.port);
    let own_step = ports.step_of(sent);
    let per = 1 + ports.span - u32::from(own_step.is_some());
    indices(per, tries).find_map(|(address, step)| {
        reply.addresses[1 - end] = address;
        reply.ports[1] = match step.checked_sub(1) {
            None => sent,
            Some(step) => ports.get(step + u32::from(own_step.is_some_and(|own| step >= own))),
        };
        accept(reply)
    })
}

/// Returns where to begin, from the connection's hash.
pub(crate) fn start(key: &Key, nat: &Nat, hash: u64, secret: u64, random: u64) -> Start {
    let [high, low] = key.addresses[0];
    Start {
        address: if nat.persistent {
            fold(high ^ fold(low ^ secret, secret | 1), secret | 1)
        } else {
            hash >> 16
        },
        port: if nat.random { random } else { hash },
        persistent: nat.persistent,
    }
}

/// A copy of a quoted packet that is being rewritten.
struct Quote {
    bytes: [u8; QUOTE],
    length: usize,
    /// Change of the sum over all of it.
    delta: Delta,
}

impl Quote {
    fn word(&self, at: usize) -> Option<u16> {
        (at + 2 <= self.length).then(|| u16::from_be_bytes([self.bytes[at], self.bytes[at + 1]]))
    }

    /// Overwrites 16-bit words, and adds their change to `sums`, if they are there.
    fn write(&mut self, at: usize, bytes: &[u8], sums: &mut [&mut Delta]) {
        if at + bytes.len() > self.length {
            return;
        }
        for (index, new) in bytes.chunks_exact(2).enumerate() {
            let at = at + 2 * index;
            let old = u16::from_be_bytes([self.bytes[at], self.bytes[at + 1]]);
            let new = u16::from_be_bytes([new[0], new[1]]);
            self.bytes[at..at + 2].copy_from_slice(&new.to_be_bytes());
            self.delta.word(old, new);
            for sum in sums.iter_mut() {
                sum.word(old, new);
            }
        }
    }
}

/// See [`crate::Tracker::translate_inner`].
pub(crate) fn translate_inner<F: Frame>(
    frame: &mut F,
    layers: &Layers,
    translation: &Translation,
) -> bool {
    let Some(inner) = translation.inner else {
        return true;
    };
    let (l4, end) = (usize::from(layers.l4), layers.end as usize);
    let begin = l4 + 8;
    if l4 == 0 || end > frame.len() || begin >= end {
        return false;
    }
    let mut quote = Quote {
        bytes: [0; QUOTE],
        length: (end - begin).min(QUOTE),
        delta: Delta::new(),
    };
    let length = quote.length;
    if !frame.read_at(begin, &mut quote.bytes[..length]) {
        return false;
    }
    let Ok(ip) = network(&quote.bytes[..length]) else {
        return false;
    };
    let transport = ip.length;
    // Changes that the quoted transport's checksum and IPv4 header's checksum cover.
    let (mut covered, mut header) = (Delta::new(), Delta::new());
    let place = if ip.v6 { [8, 24] } else { [12, 16] };
    let ends = [inner.source, inner.destination];
    for (end, new) in ends.into_iter().enumerate() {
        let Some((address, port)) = new else {
            continue;
        };
        let sums = &mut [&mut covered, &mut header];
        match address {
            IpAddr::V4(address) if !ip.v6 => quote.write(place[end], &address.octets(), sums),
            IpAddr::V6(address) if ip.v6 => quote.write(place[end], &address.octets(), sums),
            _ => return false,
        }
        if port != 0 {
            quote.write(
                transport + 2 * end,
                &port.to_be_bytes(),
                &mut [&mut covered],
            );
        }
    }
    if !ip.v6
        && let Some(old) = quote.word(10)
    {
        quote.write(10, &header.applied_to(old).to_be_bytes(), &mut []);
    }
    // An error need not quote the checksum of TCP.
    let field = transport
        + match (ip.protocol, ip.v6) {
            (TCP, _) => 16,
            (UDP, _) => 6,
            (ICMPV6, true) => 2,
            _ => QUOTE,
        };
    match quote.word(field) {
        Some(0) if ip.protocol == UDP => {}
        Some(old) => {
            let new = match covered.applied_to(old) {
                0 if ip.protocol == UDP => 0xffff,
                new => new,
            };
            quote.write(field, &new.to_be_bytes(), &mut []);
        }
        None => {}
    }
    if !checksum::write_at(frame, begin, &quote.bytes[..length]) {
        return false;
    }
    let offload = frame.offload();
    if offload.partial_checksum && usize::from(offload.csum_start) == l4 {
        // It is computed later, over what was written.
        return true;
    }
    let mut old = [0; 2];
    if !frame.read_at(l4 + 2, &mut old) {
        return false;
    }
    let new = quote.delta.applied_to(u16::from_be_bytes(old));
    checksum::write_at(frame, l4 + 2, &new.to_be_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key() -> Key {
        Key {
            addresses: [[0, 1], [0, 2]],
            ports: [5000, 80],
            kinds: [0, 0],
            zone: 0,
            protocol: UDP,
            v6: false,
        }
    }

    /// All tuples that are tried if none is free.
    fn tried(direction: Direction, addresses: (u32, u32), ports: Option<(u16, u16)>) -> Vec<Key> {
        let address = |bits: u32| IpAddr::V4(std::net::Ipv4Addr::from_bits(bits));
        let range = Range {
            min: address(addresses.0),
            max: address(addresses.1),
            ports,
        };
        let start = start(&key(), &Nat::default(), 0x1234_5678_9abc_def1, 7, 0);
        let mut all = Vec::new();
        let found = search(&key(), direction, Some(&range), start, |reply| {
            all.push(reply);
            None::<()>
        });
        assert_eq!(found, None);
        all
    }

    fn distinct(all: &[Key]) -> usize {
        let parts = all.iter().map(|key| (key.addresses, key.ports));
        parts.collect::<std::collections::HashSet<_>>().len()
    }

    #[test]
    fn small_ranges_are_tried_once_each() {
        for (addresses, ports, choices) in [
            ((9, 9), (100, 100), 1),
            ((9, 12), (100, 163), 256),
            ((9, 9), (1000, 1254), 255),
        ] {
            let all = tried(Direction::Source, addresses, Some(ports));
            assert_eq!((all.len(), distinct(&all)), (choices, choices));
        }
    }

    #[test]
    fn large_ranges_are_sampled() {
        for (direction, addresses, ports) in [
            (Direction::Source, (9, 9), Some((1024, 65535))),
            (Direction::Source, (9, 0xffff_fff0), Some((1, 65535))),
            (Direction::Source, (9, 9), None),
            (Direction::Destination, (9, 9), Some((1, 65535))),
            (Direction::Destination, (9, 9), Some((80, 80))),
            (Direction::Destination, (9, 20), None),
        ] {
            let all = tried(direction, addresses, ports);
            assert_eq!(all.len(), TRIES as usize);
            assert!(distinct(&all) > 200);
            // The runs lie apart: the ports are not all from one stretch.
            let chosen = |key: &Key| match direction {
                Direction::Source => key.ports[1],
                Direction::Destination => key.ports[1].max(key.ports[0]),
            };
            let ports: Vec<u16> = all.iter().map(chosen).collect();
            let jumps = ports
                .windows(2)
                .filter(|pair| pair[1].abs_diff(pair[0]) > 256);
            assert!(jumps.count() >= 3);
        }
    }
}
