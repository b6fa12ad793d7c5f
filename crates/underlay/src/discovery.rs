//! ARP (RFC 826) and neighbour discovery (RFC 4861): builds requests, and reads what received
//! frames say about neighbours.

use crate::Mac;
use crate::device::Device;
use packet::build::Builder;
use packet::key::{FlowKey, at};
use packet::parse::{self, PACKET_WORDS};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

const BROADCAST: Mac = [0xff; 6];
const ETH_ARP: u16 = 0x0806;
const ETH_IPV6: u16 = 0x86dd;
const ARP_REQUEST: u8 = 1;
const ARP_REPLY: u8 = 2;
const ICMPV6: u8 = 58;
const SOLICITATION: u8 = 135;
const ADVERTISEMENT: u16 = 136;
/// The neighbour discovery option that contains the sender's MAC address.
const SOURCE_MAC: u8 = 1;
/// Hop limit of all neighbour discovery packets; it proves that they come from the same link.
const HOP_LIMIT: u8 = 255;

/// Returns an ARP request for `dst`. It is 42 bytes long, as in Open vSwitch (`compose_arp`):
/// padding is up to the device.
pub fn arp_request(src_mac: Mac, src: Ipv4Addr, dst: Ipv4Addr) -> Vec<u8> {
    Builder::ethernet(BROADCAST, src_mac)
        .arp(ARP_REQUEST.into(), src_mac, src.into(), [0; 6], dst.into())
        .bytes()
}

/// Returns a neighbour solicitation for `dst`, sent to its solicited-node multicast address, 86
/// bytes long (`compose_nd_ns`).
pub fn neighbour_solicitation(src_mac: Mac, src: Ipv6Addr, dst: Ipv6Addr) -> Vec<u8> {
    let group = solicited_node(dst);
    Builder::ethernet(multicast_v6(group), src_mac)
        .ipv6(src.octets(), group.octets())
        .with_ipv6(|ipv6| ipv6.set_hop_limit(HOP_LIMIT))
        .neighbour(SOLICITATION, dst.octets(), &[(SOURCE_MAC, src_mac)])
        .bytes()
}

/// Returns an ARP request or a neighbour solicitation for `dst`, depending on its family; None if
/// `src` is of the other family.
pub fn request(src_mac: Mac, src: IpAddr, dst: IpAddr) -> Option<Vec<u8>> {
    match (src, dst) {
        (IpAddr::V4(src), IpAddr::V4(dst)) => Some(arp_request(src_mac, src, dst)),
        (IpAddr::V6(src), IpAddr::V6(dst)) => Some(neighbour_solicitation(src_mac, src, dst)),
        _ => None,
    }
}

/// Returns the solicited-node multicast address of `address` (RFC 4291 section 2.7.1).
fn solicited_node(address: Ipv6Addr) -> Ipv6Addr {
    let [.., a, b, c] = address.octets();
    let low = u16::from_be_bytes([b, c]);
    Ipv6Addr::new(0xff02, 0, 0, 0, 0, 1, 0xff00 | u16::from(a), low)
}

/// Returns the MAC address of packets to a multicast address (RFC 1112 section 6.4, RFC 2464
/// section 7); None for all other addresses.
pub fn multicast_mac(address: IpAddr) -> Option<Mac> {
    match address {
        IpAddr::V4(address) if address.is_multicast() => {
            let [_, a, b, c] = address.octets();
            Some([0x01, 0x00, 0x5e, a & 0x7f, b, c])
        }
        IpAddr::V6(address) if address.is_multicast() => Some(multicast_v6(address)),
        _ => None,
    }
}

fn multicast_v6(address: Ipv6Addr) -> Mac {
    let [.., a, b, c, d] = address.octets();
    [0x33, 0x33, a, b, c, d]
}

/// What a frame says about a neighbour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Told {
    /// The neighbour's address.
    pub address: IpAddr,
    /// Its MAC address; never zero.
    pub mac: Mac,
    /// Who is told: an ARP packet's target, an advertisement's destination.
    pub to: IpAddr,
}

impl Told {
    /// Returns whether a device takes notice: if it is told itself, or by gratuitous ARP. Open
    /// vSwitch ignores others, such as advertisements to a multicast address.
    pub fn concerns(&self, device: &Device) -> bool {
        device.owns(self.to) || (self.address.is_ipv4() && self.address == self.to)
    }
}

/// Returns what a frame says about a neighbour, whoever is told: see [`told_by`].
pub fn learned_from(frame: &[u8]) -> Option<(IpAddr, Mac)> {
    told_by(frame).map(|told| (told.address, told.mac))
}

/// Returns what a frame says about a neighbour (`tnl_neigh_snoop`): an ARP reply, a gratuitous ARP
/// request, or a neighbour advertisement with the target's MAC address. The frame may have as many
/// VLAN tags as packets may (`packet::parse::vlan_limit`). Open vSwitch also accepts advertisements
/// that may have come from another link (hop limit below 255), which RFC 4861 section 7.1.2
/// forbids.
pub fn told_by(frame: &[u8]) -> Option<Told> {
    let mut key = FlowKey::ZERO;
    let layers = parse::parse(frame, frame.len(), 0, PACKET_WORDS, &mut key);
    let told = match key.u16(at::ETH_TYPE) {
        ETH_ARP => {
            let (sender, target) = (key.u32(at::IPV4_SRC), key.u32(at::IPV4_DST));
            let answers = match key.u8(at::IP_PROTO) {
                ARP_REPLY => true,
                ARP_REQUEST => sender == target,
                _ => false,
            };
            answers.then(|| Told {
                address: Ipv4Addr::from(sender).into(),
                mac: bytes(&key, at::ARP_SHA),
                to: Ipv4Addr::from(target).into(),
            })
        }
        ETH_IPV6 => {
            let advertises = layers.transport
                && key.u8(at::IP_PROTO) == ICMPV6
                && key.u16(at::TP_SRC) == ADVERTISEMENT
                && key.u16(at::TP_DST) == 0
                && key.u8(at::IP_TTL) == HOP_LIMIT;
            advertises.then(|| Told {
                address: Ipv6Addr::from(bytes(&key, at::ND_TARGET)).into(),
                mac: bytes(&key, at::ARP_THA),
                to: Ipv6Addr::from(bytes(&key, at::IPV6_DST)).into(),
            })
        }
        _ => None,
    };
    told.filter(|told| told.mac != Mac::default())
}

/// Returns the bytes of a field of the key.
fn bytes<const N: usize>(key: &FlowKey, offset: usize) -> [u8; N] {
    std::array::from_fn(|at| key.bytes()[offset + at])
}
