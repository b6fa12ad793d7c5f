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

/// Most tuples that are tried for one connection. Ranges that are nearly full beyond that count as
/// exhausted, so that a packet cannot keep a worker for longer (each try takes a lock or two).
const TRIES: u32 = 4096;
/// First port that is chosen for senders that use one that is not reserved.
const EPHEMERAL: u16 = 1024;

/// Numbers of a range, from one on, wrapping around.
fn around<T>(min: T, max: T, start: T) -> impl Iterator<Item = T>
where
    std::ops::RangeInclusive<T>: Iterator<Item = T>,
    T: Copy + PartialOrd,
{
    (start..=max).chain((min..=max).take_while(move |number| *number < start))
}

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
}

/// Calls `accept` with reply tuples until it returns something. None if the range is exhausted.
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
    let mut tries = TRIES;
    for step in 0..count.min(u64::from(TRIES)) {
        let offset = (start.address % count).wrapping_add(step) % count;
        let address: Address = [min[0], min[1] + offset];
        let mut reply = key.reversed();
        reply.addresses[1 - end] = address;
        if !key.has_ports() {
            if let Some(result) = accept(reply) {
                return Some(result);
            }
            continue;
        }
        let begin = |(min, max): (u16, u16)| {
            min + (start.port % (u64::from(max.saturating_sub(min)) + 1)) as u16
        };
        if let Some((min, max)) = given {
            // Of a reply, the port of the translated end is that of the other index.
            for port in around(min, max, begin((min, max))) {
                tries = tries.checked_sub(1)?;
                reply.ports[1 - end] = port;
                if let Some(result) = accept(reply) {
                    return Some(result);
                }
            }
            if direction == Direction::Source {
                continue;
            }
        }
        // Only the sender's port is left to be chosen, first as it is.
        let sent = key.ports[0];
        let (min, max) = ports_like(sent);
        for port in std::iter::once(sent).chain(around(min, max, begin((min, max)))) {
            tries = tries.checked_sub(1)?;
            reply.ports[1] = port;
            if let Some(result) = accept(reply) {
                return Some(result);
            }
        }
    }
    None
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
