//! The common kinds other than IPv4: IPv6 and ARP.
//!
//! A packet of IPv6 without extension headers and with a complete TCP, UDP or ICMPv6 header, or of
//! ARP for Ethernet and IPv4, has a mini key like one of IPv4. Its other fields ([`MoreWords`]) are
//! read only where rules look at them. Neighbour discovery is left to `general`, which reads its
//! options.

use super::{
    ETHERNET_LEN, Ethernet, Extent, IPV6_LEN, LOW_48, MINI_KEY_WORDS, Network, ethernet, load,
};
use crate::key::{FlowKey, WORDS, WordSet, at};

const IPV6: u16 = 0x86dd_u16.swap_bytes();
const ARP: u16 = 0x0806_u16.swap_bytes();
const ARP_LEN: usize = 28;

/// Like [`super::common_words`], for IPv6 and ARP: Ethernet, at most one VLAN tag, and either IPv6
/// without extension headers and with a complete header of TCP, UDP, or ICMPv6 other than neighbour
/// discovery, or ARP for Ethernet and IPv4.
#[inline(never)] // keeps the common case short
pub fn other_words(
    head: &[u8],
    total_len: usize,
    in_port: u32,
    words: &mut [u64; MINI_KEY_WORDS],
) -> Option<Extent> {
    if head.len() < ETHERNET_LEN + ARP_LEN {
        return None;
    }
    let Ethernet { eth_type, tci, l3 } = ethernet(head);
    let packet = &head[l3..];
    let left = total_len.wrapping_sub(l3);
    let told = match eth_type {
        IPV6 => ipv6(packet, left)?,
        ARP => arp(packet, left)?,
        _ => return None,
    };
    let read = [
        u64::from(in_port.swap_bytes()) | u64::from(eth_type) << 32 | u64::from(tci) << 48,
        told.addresses,
        told.transport,
        u64::from_le_bytes(load(head, 0)) & LOW_48 | u64::from(told.tcp_flags) << 48,
        u64::from_le_bytes(load(head, 6)) & LOW_48,
    ];
    for (to, from) in words.iter_mut().zip(read) {
        *to = from.to_le();
    }
    Some(Extent::new(l3, told.network, told.length))
}

/// Fields behind the Ethernet header: words 1 and 2 of the key as little-endian numbers, and the
/// flags in word 3.
struct Told {
    addresses: u64,
    transport: u64,
    tcp_flags: u16,
    network: Network,
    length: u16,
}

#[inline(always)]
fn ipv6(packet: &[u8], left: usize) -> Option<Told> {
    let header: &[u8; IPV6_LEN] = packet.first_chunk()?;
    let payload = usize::from(u16::from_be_bytes([header[4], header[5]]));
    // A negative difference wraps to a large one. More than 64 KiB behind the packet is not
    // padding, and an `Extent` cannot express a packet of more than 64 KiB.
    let padding = left.wrapping_sub(IPV6_LEN + payload);
    let length = u16::try_from(IPV6_LEN + payload).ok()?;
    if padding > 0xffff {
        return None;
    }
    let protocol = header[6];
    let transport = &packet[IPV6_LEN..];
    let least = if protocol == 6 { 20 } else { 8 };
    if payload < least || transport.len() < least {
        return None;
    }
    let mut ports = u32::from_le_bytes(load(transport, 0));
    let mut tcp_flags = 0;
    match protocol {
        17 => {}
        6 => {
            let data = usize::from(transport[12] >> 4) * 4;
            if data < 20 || data > payload {
                return None;
            }
            tcp_flags = u16::from_le_bytes(load(transport, 12)) & 0xff0f;
        }
        58 => {
            let (kind, code) = (transport[0], transport[1]);
            if matches!(kind, 135 | 136) && code == 0 {
                return None;
            }
            ports = u32::from(kind) << 8 | u32::from(code) << 24;
        }
        _ => return None,
    }
    let class = header[0] << 4 | header[1] >> 4;
    Some(Told {
        addresses: 0,
        transport: u64::from(ports)
            | u64::from(protocol) << 32
            | u64::from(class) << 40
            | u64::from(header[7]) << 48,
        tcp_flags,
        network: Network::Ipv6,
        length,
    })
}

#[inline(always)]
fn arp(packet: &[u8], left: usize) -> Option<Told> {
    let arp: &[u8; ARP_LEN] = packet.first_chunk()?;
    if arp[..6] != [0, 1, 8, 0, 6, 4] {
        return None;
    }
    // Opcodes above 255 read as zero.
    let opcode = if arp[6] == 0 { arp[7] } else { 0 };
    Some(Told {
        addresses: u64::from(u32::from_le_bytes(load(arp, 14)))
            | u64::from(u32::from_le_bytes(load(arp, 24))) << 32,
        transport: u64::from(opcode) << 32,
        tcp_flags: 0,
        network: Network::Arp,
        length: u16::try_from(left).ok()?,
    })
}

/// Fields of IPv6 and ARP packets that the mini key lacks: IPv6 addresses and label, ARP hardware
/// addresses. All other words that are filled from packets are zero for the common kinds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(align(64))]
pub struct MoreWords([u64; 8]);

/// The first words of the two runs that it holds.
const IPV6_ADDRESSES: usize = at::IPV6_SRC / 8;
const HARDWARE: usize = at::ARP_SHA / 8;
const _: () = assert!(at::ARP_THA / 8 == HARDWARE + 1 && at::IPV6_LABEL / 8 == HARDWARE + 2);

/// Index at which it holds each word of the key; 7, which is always zero, for others.
static PLACES: [u8; WORDS.next_power_of_two()] = {
    let mut places = [7; WORDS.next_power_of_two()];
    let mut at = 0;
    while at < MoreWords::NUMBERS.len() {
        places[MoreWords::NUMBERS[at]] = at as u8;
        at += 1;
    }
    places
};

impl MoreWords {
    /// The words that it holds.
    pub const WORDS: WordSet = WordSet(0b1111 << IPV6_ADDRESSES | 0b111 << HARDWARE);

    /// The same words, in the order in which they are stored.
    const NUMBERS: [usize; 7] = [
        IPV6_ADDRESSES,
        IPV6_ADDRESSES + 1,
        IPV6_ADDRESSES + 2,
        IPV6_ADDRESSES + 3,
        HARDWARE,
        HARDWARE + 1,
        HARDWARE + 2,
    ];

    /// The additional words of an IPv4 packet.
    pub const ZERO: MoreWords = MoreWords([0; 8]);

    /// Reads the additional words of a packet whose mini key has been read.
    #[inline(never)] // keeps callers short that read IPv4
    pub fn of(head: &[u8], extent: Extent) -> MoreWords {
        let mut words = [0; 8];
        let Some(packet) = head.get(extent.l3().into()..) else {
            return MoreWords(words);
        };
        match extent.network() {
            Network::Ipv4 => {}
            Network::Ipv6 => {
                if let Some(header) = packet.first_chunk::<IPV6_LEN>() {
                    for (word, from) in words.iter_mut().zip([8, 16, 24, 32]) {
                        *word = u64::from_ne_bytes(load(header, from));
                    }
                    let label = [0, header[1] & 0x0f, header[2], header[3], 0, 0, 0, 0];
                    words[6] = u64::from_ne_bytes(label);
                }
            }
            Network::Arp => {
                if let Some(arp) = packet.first_chunk::<ARP_LEN>() {
                    let address = |from| (u64::from_le_bytes(load(arp, from)) & LOW_48).to_le();
                    (words[4], words[5]) = (address(8), address(18));
                }
            }
        }
        MoreWords(words)
    }

    /// Returns a word of the key by its number; zero for words that are not in
    /// [`MoreWords::WORDS`].
    #[inline(always)]
    pub fn word(&self, number: usize) -> u64 {
        self.0[usize::from(PLACES[number % PLACES.len()]) % 8]
    }

    /// Writes the words to a key.
    #[inline]
    pub fn fill(&self, key: &mut FlowKey) {
        for (number, word) in MoreWords::NUMBERS.iter().zip(&self.0) {
            key.words[*number] = *word;
        }
    }
}
