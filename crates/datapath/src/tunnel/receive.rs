//! Finds the tunnel port that a packet came for, by its outer headers.
//!
//! Ports are tried in the order of Open vSwitch (`tnl_find` in `ofproto/tunnel.c`): a fixed key
//! before `key=flow`; among these a fixed `remote_ip` before `flow`; among these a fixed
//! `local_ip`, then none, then `flow`. Each such combination has a hash table, and only those with
//! ports are looked up.

use super::{Carries, LocalAddress, TunnelKey, TunnelSpec};
use packet::keyed::Keyed;
use packet::tunnel::{Addresses, TunnelInfo, TunnelKind};
use std::collections::{HashMap, HashSet};
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};

/// Returns a protocol without the options in which two ports of it may differ.
fn family(kind: TunnelKind) -> TunnelKind {
    match kind {
        TunnelKind::Vxlan { .. } => TunnelKind::Vxlan { gbp: false },
        other => other,
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct Wanted {
    family: TunnelKind,
    port: u16,
    key: Option<u64>,
    remote: Option<IpAddr>,
    local: Option<IpAddr>,
    carries: Carries,
}

/// What ports of STT want of a packet's outer headers: the key comes in the first of a frame's
/// segments only.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct Ends {
    port: u16,
    remote: Option<IpAddr>,
    local: Option<IpAddr>,
}

/// A protocol of some receivers' ports.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Protocol {
    /// Which of theirs it is, also by what it is over.
    pub number: u32,
    pub kind: TunnelKind,
}

/// What a tunnel's protocol is over.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Over {
    /// UDP to this port.
    Udp(u16),
    /// TCP to this port (STT).
    Tcp(u16),
    /// IP itself: GRE.
    Gre,
}

impl Over {
    /// Returns what a tunnel with these options is over.
    fn of(spec: &TunnelSpec) -> Over {
        match spec.kind {
            TunnelKind::Stt => Over::Tcp(spec.dst_port),
            kind if kind.is_udp() => Over::Udp(spec.dst_port),
            _ => Over::Gre,
        }
    }

    /// Returns the port; 0 for GRE.
    pub fn port(self) -> u16 {
        match self {
            Over::Udp(port) | Over::Tcp(port) => port,
            Over::Gre => 0,
        }
    }
}

/// Combinations: key fixed or `flow`, remote endpoint fixed or `flow`, local address fixed, any or
/// `flow`.
const COMBINATIONS: usize = 2 * 2 * 3;

/// All tunnel ports of the switch, for lookup.
#[derive(Clone, Debug, Default)]
pub(crate) struct Receivers {
    ports: [HashMap<Wanted, u32, Keyed>; COMBINATIONS],
    /// Those of STT, by the same combinations without the key.
    ends: [HashSet<Ends, Keyed>; COMBINATIONS / 2],
    /// Protocols by what they are over.
    kinds: Vec<(Over, TunnelKind)>,
    count: usize,
    /// Unique to this value: a cached result is valid while it stays the same.
    pub version: u64,
}

impl Receivers {
    /// Creates it from the ports' slots and options.
    pub fn new<'s>(ports: impl Iterator<Item = (u32, &'s TunnelSpec)>) -> Receivers {
        static VERSIONS: AtomicU64 = AtomicU64::new(1);
        let mut receivers = Receivers {
            version: VERSIONS.fetch_add(1, Ordering::Relaxed),
            ..Receivers::default()
        };
        for (slot, spec) in ports {
            receivers.add(slot, spec);
        }
        receivers
    }

    fn add(&mut self, slot: u32, spec: &TunnelSpec) {
        self.count += 1;
        let by_key = spec.in_key == TunnelKey::Flow;
        let by_remote = spec.remote.is_none();
        let (local, local_way) = match spec.local {
            LocalAddress::Address(address) => (Some(address), 0),
            LocalAddress::Any => (None, 1),
            LocalAddress::Flow => (None, 2),
        };
        let wanted = Wanted {
            family: family(spec.kind),
            port: spec.dst_port,
            key: match spec.in_key {
                TunnelKey::None => Some(0),
                TunnelKey::Fixed(key) => Some(key),
                TunnelKey::Flow => None,
            },
            remote: spec.remote,
            local,
            carries: spec.carries,
        };
        let by_ends = usize::from(by_remote) * 3 + local_way;
        if spec.kind == TunnelKind::Stt {
            self.ends[by_ends].insert(Ends {
                port: wanted.port,
                remote: wanted.remote,
                local,
            });
        }
        let which = usize::from(by_key) * COMBINATIONS / 2 + by_ends;
        // Of two ports with equal options the first gets the packets; control admits no such ports.
        self.ports[which].entry(wanted).or_insert(slot);
        let over = Over::of(spec);
        let same = |(other, kind): &&mut (Over, TunnelKind)| {
            *other == over && family(*kind) == family(spec.kind)
        };
        match self.kinds.iter_mut().find(same) {
            // The extension is read if one of the ports wants it.
            Some((_, kind)) if spec.kind == (TunnelKind::Vxlan { gbp: true }) => *kind = spec.kind,
            Some(_) => {}
            None => self.kinds.push((over, spec.kind)),
        }
    }

    /// Returns the number of ports.
    pub fn count(&self) -> usize {
        self.count
    }

    /// Returns whether there are none.
    pub fn is_empty(&self) -> bool {
        self.kinds.is_empty()
    }

    /// Returns the protocols that packets may be of.
    #[inline]
    pub fn by(&self, over: Over) -> impl Iterator<Item = Protocol> {
        let kinds = self.kinds.iter().zip(0..);
        kinds.filter_map(move |((other, kind), number)| {
            (*other == over).then_some(Protocol {
                number,
                kind: *kind,
            })
        })
    }

    /// Returns whether UDP packets may be some tunnel's.
    #[inline]
    pub fn has_udp(&self) -> bool {
        let mut kinds = self.kinds.iter();
        kinds.any(|(over, _)| matches!(over, Over::Udp(_)))
    }

    /// Returns whether TCP packets may be some tunnel's.
    #[inline]
    pub fn has_tcp(&self) -> bool {
        let mut kinds = self.kinds.iter();
        kinds.any(|(over, _)| matches!(over, Over::Tcp(_)))
    }

    /// Returns whether a port of STT takes packets with these addresses, to this TCP port and with
    /// some key.
    pub fn has_stt(&self, port: u16, addresses: &Addresses) -> bool {
        let (src, dst) = ends_of(addresses);
        self.ends.iter().enumerate().any(|(which, ends)| {
            let wanted = || Ends {
                port,
                remote: (which / 3 == 0).then_some(src),
                local: (which % 3 == 0).then_some(dst),
            };
            !ends.is_empty() && ends.contains(&wanted())
        })
    }

    /// Returns the slot of the port that a packet came for.
    #[inline]
    pub fn find(
        &self,
        kind: TunnelKind,
        port: u16,
        info: &TunnelInfo,
        carries: Carries,
    ) -> Option<u32> {
        let (src, dst) = ends_of(&info.addresses?);
        let family = family(kind);
        for (which, ports) in self.ports.iter().enumerate() {
            if ports.is_empty() {
                continue;
            }
            let (by_key, by_remote, local_way) = (which >= 6, which / 3 % 2 == 1, which % 3);
            let wanted = Wanted {
                family,
                port,
                key: (!by_key).then_some(info.id),
                remote: (!by_remote).then_some(src),
                local: (local_way == 0).then_some(dst),
                carries,
            };
            if let Some(slot) = ports.get(&wanted) {
                return Some(*slot);
            }
        }
        None
    }
}

/// Returns source and destination.
#[inline]
fn ends_of(addresses: &Addresses) -> (IpAddr, IpAddr) {
    match *addresses {
        Addresses::V4 { src, dst } => (IpAddr::V4(src.into()), IpAddr::V4(dst.into())),
        Addresses::V6 { src, dst } => (IpAddr::V6(src.into()), IpAddr::V6(dst.into())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn address(last: u8) -> IpAddr {
        IpAddr::from([10, 0, 0, last])
    }

    /// Returns the rank of a matching port in the order in which Open vSwitch tries combinations;
    /// None where the port does not match.
    fn rank(spec: &TunnelSpec, info: &TunnelInfo) -> Option<usize> {
        let Some(Addresses::V4 { src, dst }) = info.addresses else {
            return None;
        };
        let key = match spec.in_key {
            TunnelKey::Flow => 1,
            TunnelKey::None if info.id == 0 => 0,
            TunnelKey::Fixed(key) if key == info.id => 0,
            _ => return None,
        };
        let remote = match spec.remote {
            None => 1,
            Some(remote) if remote == IpAddr::V4(src.into()) => 0,
            Some(_) => return None,
        };
        let local = match spec.local {
            LocalAddress::Any => 1,
            LocalAddress::Flow => 2,
            LocalAddress::Address(local) if local == IpAddr::V4(dst.into()) => 0,
            LocalAddress::Address(_) => return None,
        };
        Some((key * 2 + remote) * 3 + local)
    }

    fn spec() -> impl Strategy<Value = TunnelSpec> {
        let kind = prop_oneof![
            Just(TunnelKind::Vxlan { gbp: false }),
            Just(TunnelKind::Geneve),
            Just(TunnelKind::Gre),
            Just(TunnelKind::Stt)
        ];
        let local = prop_oneof![
            Just(LocalAddress::Any),
            Just(LocalAddress::Flow),
            (0..3_u8).prop_map(|last| LocalAddress::Address(address(last)))
        ];
        let key = prop_oneof![
            Just(TunnelKey::None),
            Just(TunnelKey::Flow),
            (0..3_u64).prop_map(TunnelKey::Fixed)
        ];
        let remote = prop::option::of((0..3_u8).prop_map(address));
        (kind, remote, local, key).prop_map(|(kind, remote, local, in_key)| TunnelSpec {
            local,
            in_key,
            ..TunnelSpec::new(kind, remote)
        })
    }

    proptest! {
        /// The tables find the same port as a search through all of them.
        #[test]
        fn packets_find_the_port_that_says_most(
            specs in prop::collection::vec(spec(), 0..12),
            src in 0..4_u8,
            dst in 0..4_u8,
            id in 0..4_u64,
        ) {
            let receivers = Receivers::new((0..).zip(&specs));
            let v4 = |last: u8| u32::from_be_bytes([10, 0, 0, last]);
            let info = TunnelInfo {
                id,
                addresses: Some(Addresses::V4 { src: v4(src), dst: v4(dst) }),
                ..TunnelInfo::default()
            };
            let kinds = [
                TunnelKind::Vxlan { gbp: false },
                TunnelKind::Geneve,
                TunnelKind::Gre,
                TunnelKind::Stt,
            ];
            for kind in kinds {
                let port = kind.usual_port().unwrap_or(0);
                let found = receivers.find(kind, port, &info, Carries::Frames);
                let of_kind = (0_u32..).zip(&specs).filter(|(_, spec)| spec.kind == kind);
                let best = of_kind
                    .filter_map(|(slot, spec)| Some((rank(spec, &info)?, slot)))
                    .min();
                prop_assert_eq!(found, best.map(|(_, slot)| slot));
            }
            // Segments of STT are taken if a port would have them with one of the keys.
            let takes = |spec: &TunnelSpec| {
                let with = |id| TunnelInfo { id, ..info };
                (0..4).any(|id| rank(spec, &with(id)).is_some())
            };
            let is_stt = |spec: &&TunnelSpec| spec.kind == TunnelKind::Stt;
            prop_assert_eq!(
                receivers.has_stt(7471, &info.addresses.unwrap()),
                specs.iter().filter(is_stt).any(takes)
            );
            prop_assert!(!receivers.has_stt(7472, &info.addresses.unwrap()));
        }
    }

    #[test]
    fn protocols_are_those_of_the_ports() {
        let gbp = TunnelSpec::new(TunnelKind::Vxlan { gbp: true }, None);
        let plain = TunnelSpec::new(TunnelKind::Vxlan { gbp: false }, Some(address(1)));
        let gre = TunnelSpec::new(TunnelKind::Gre, None);
        let stt = TunnelSpec {
            dst_port: 4789,
            ..TunnelSpec::new(TunnelKind::Stt, None)
        };
        let receivers = Receivers::new((0..).zip([&plain, &gbp, &gre]));
        assert!(receivers.has_udp() && !receivers.has_tcp());
        let receivers = Receivers::new((0..).zip([&plain, &gbp, &gre, &stt]));
        assert!(receivers.has_tcp());
        let over = |over| Vec::from_iter(receivers.by(over).map(|protocol| protocol.kind));
        assert_eq!(over(Over::Udp(4789)), [TunnelKind::Vxlan { gbp: true }]);
        assert_eq!(receivers.by(Over::Udp(4790)).count(), 0);
        assert_eq!(receivers.by(Over::Tcp(7471)).count(), 0);
        assert_eq!(over(Over::Tcp(4789)), [TunnelKind::Stt]);
        assert_eq!(over(Over::Gre), [TunnelKind::Gre]);
        assert!(Receivers::default().is_empty());
    }
}
