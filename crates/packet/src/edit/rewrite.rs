//! Combines several edits of a packet of a common kind into one.
//!
//! What a router does to a packet (TTL, both Ethernet addresses, perhaps IP addresses and ports)
//! takes several actions of a rule. In a packet of a common kind ([`crate::parse::mini_key`]) all
//! headers are where its [`Extent`] says, so the combined edit can be computed when the rule is
//! made: which bytes become what, and one difference for each checksum (RFC 1624). Besides the
//! packet, only its mini key is updated.

use super::{CompiledSet, update_transport};
use crate::checksum::{Delta, update_word};
use crate::frame::Frame;
use crate::key::at;
use crate::parse::{COMMON_LEN, Extent, MINI_KEY_WORDS, Network};

#[cfg(test)]
mod tests;

/// Mask of the bytes of key words 3 and 4 that hold an Ethernet address.
const ADDRESS: u64 = u64::from_ne_bytes([0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0, 0]);
const _: () =
    assert!(at::ETH_DST == 24 && at::ETH_SRC == 32 && at::IPV4_SRC == 8 && at::TP_SRC == 16);
/// Word numbers in the key.
const ADDRESSES: usize = at::IPV4_SRC / 8;
const DESTINATION: usize = at::ETH_DST / 8;
const SOURCE: usize = at::ETH_SRC / 8;

/// Combined edits. An empty one changes nothing; edits are added in the order of a rule's actions.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
#[repr(C)] // a router's edits read only the first 24 bytes (asserted below)
pub struct Rewrite {
    parts: Parts,
    /// The lowest TTL that survives all decrements; 0 if there are none.
    least: u8,
    /// Bits of the TTL that are cleared, all or none, and the number added to the rest.
    ttl_mask: u8,
    ttl_add: u8,
    /// Bits of the ToS that are cleared, and bits that are set.
    tos_mask: u8,
    tos: u8,
    /// Both Ethernet addresses, in frame order.
    ethernet: [u8; 12],
    /// Masks and values of the IP addresses, as one word of the key.
    address_mask: u64,
    addresses: u64,
    /// For UDP and for TCP: masks and values of both ports, in packet order.
    port_masks: [u32; 2],
    port_values: [u32; 2],
}

const _: () = assert!(std::mem::offset_of!(Rewrite, ethernet) + 12 <= 24);

/// Set of what is changed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Parts(u8);

impl Parts {
    const DESTINATION: Parts = Parts(1);
    const SOURCE: Parts = Parts(2);
    const TTL: Parts = Parts(4);
    const TOS: Parts = Parts(8);
    const ADDRESSES: Parts = Parts(16);
    const PORTS: Parts = Parts(32);
    /// What a router changes.
    const ROUTED: Parts = Parts(1 | 2 | 4);
    /// Everything else.
    const OTHERS: Parts = Parts(8 | 16 | 32);
    /// Parts of the IP header.
    const NETWORK: Parts = Parts(4 | 8 | 16);
    /// Parts that a transport checksum covers.
    const TRANSPORT: Parts = Parts(16 | 32);

    /// Returns whether it contains one of `some`.
    #[inline(always)]
    fn has(self, some: Parts) -> bool {
        self.0 & some.0 != 0
    }

    fn add(&mut self, more: Parts) {
        self.0 |= more.0;
    }
}

/// IP protocol numbers of the entries of [`Rewrite::port_masks`].
const UDP: u8 = 17;
const TCP: u8 = 6;

fn place_of(protocol: u8) -> Option<usize> {
    match protocol {
        UDP => Some(0),
        TCP => Some(1),
        _ => None,
    }
}

impl Rewrite {
    /// Adds a set-field; returns false, and adds nothing, if it cannot be combined.
    pub fn then(&mut self, set: &CompiledSet) -> bool {
        match set {
            CompiledSet::EthDst(to) => self.set_ethernet(Some(to), None),
            CompiledSet::EthSrc(to) => self.set_ethernet(None, Some(to)),
            CompiledSet::EthAddresses(both) => {
                self.set_ethernet(both.first_chunk(), both.last_chunk())
            }
            CompiledSet::Ipv4Src(to) => self.set_addresses(Some(*to), None),
            CompiledSet::Ipv4Dst(to) => self.set_addresses(None, Some(*to)),
            CompiledSet::Ipv4Addresses(src, dst) => self.set_addresses(Some(*src), Some(*dst)),
            CompiledSet::SourcePort(protocol, to) => self.set_port(*protocol, 0, *to),
            CompiledSet::DestinationPort(protocol, to) => self.set_port(*protocol, 2, *to),
            CompiledSet::IpTtl(to) => {
                if self.least > 0 {
                    return false;
                }
                (self.ttl_mask, self.ttl_add) = (u8::MAX, *to);
                self.parts.add(Parts::TTL);
                true
            }
            CompiledSet::IpTos { value, mask } => {
                self.tos = self.tos & !mask | value & mask;
                self.tos_mask |= mask;
                self.parts.add(Parts::TOS);
                true
            }
            CompiledSet::Nothing => true,
            CompiledSet::VlanTci { .. }
            | CompiledSet::Metadata { .. }
            | CompiledSet::Other { .. } => false,
        }
    }

    /// Adds a TTL decrement; returns false, and adds nothing, if it cannot be combined.
    pub fn then_dec_ttl(&mut self) -> bool {
        if self.ttl_mask != 0 || self.least == u8::MAX {
            return false;
        }
        // The first decrement needs a TTL of at least two, and each further one a TTL greater by
        // one.
        self.least = self.least.max(1) + 1;
        self.ttl_add = self.ttl_add.wrapping_sub(1);
        self.parts.add(Parts::TTL);
        true
    }

    fn set_ethernet(&mut self, dst: Option<&[u8; 6]>, src: Option<&[u8; 6]>) -> bool {
        if let Some(dst) = dst {
            self.ethernet[..6].copy_from_slice(dst);
            self.parts.add(Parts::DESTINATION);
        }
        if let Some(src) = src {
            self.ethernet[6..].copy_from_slice(src);
            self.parts.add(Parts::SOURCE);
        }
        true
    }

    fn set_addresses(&mut self, src: Option<u32>, dst: Option<u32>) -> bool {
        let (mut mask, mut value) = (
            self.address_mask.to_ne_bytes(),
            self.addresses.to_ne_bytes(),
        );
        for (from, to) in [(0, src), (4, dst)] {
            if let Some(to) = to {
                mask[from..from + 4].fill(0xff);
                value[from..from + 4].copy_from_slice(&to.to_be_bytes());
            }
        }
        self.address_mask = u64::from_ne_bytes(mask);
        self.addresses = u64::from_ne_bytes(value);
        self.parts.add(Parts::ADDRESSES);
        true
    }

    fn set_port(&mut self, protocol: u8, from: usize, to: u16) -> bool {
        let Some(place) = place_of(protocol) else {
            return false;
        };
        let mut mask = self.port_masks[place].to_ne_bytes();
        let mut value = self.port_values[place].to_ne_bytes();
        mask[from..from + 2].fill(0xff);
        value[from..from + 2].copy_from_slice(&to.to_be_bytes());
        self.port_masks[place] = u32::from_ne_bytes(mask);
        self.port_values[place] = u32::from_ne_bytes(value);
        self.parts.add(Parts::PORTS);
        true
    }

    /// The Ethernet addresses as in the key's words, by one load each: putting six bytes together
    /// one by one takes ten instructions.
    #[inline(always)]
    fn destination(&self) -> u64 {
        let [a, b, c, d, e, f, g, h, ..] = self.ethernet;
        u64::from_ne_bytes([a, b, c, d, e, f, g, h]) & ADDRESS
    }

    #[inline(always)]
    fn source(&self) -> u64 {
        let [.., a, b, c, d, e, f, g, h] = self.ethernet;
        let behind_two = u64::from_le_bytes([a, b, c, d, e, f, g, h]) >> 16;
        u64::from_ne_bytes(behind_two.to_le_bytes())
    }

    /// Returns whether it changes nothing.
    #[inline(always)]
    pub fn is_nothing(&self) -> bool {
        self.parts == Parts::default()
    }

    /// Returns the bits of the mini key that it may change.
    pub fn touches(&self) -> [u64; MINI_KEY_WORDS] {
        let byte = |at: usize| {
            let mut bytes = [0; 8];
            bytes[at % 8] = u8::MAX;
            (at / 8, u64::from_ne_bytes(bytes))
        };
        let ports = self.port_masks[0] | self.port_masks[1];
        let mut in_word = [0; 8];
        in_word[..4].copy_from_slice(&ports.to_ne_bytes());
        let parts = [
            (Parts::DESTINATION, (DESTINATION, ADDRESS)),
            (Parts::SOURCE, (SOURCE, ADDRESS)),
            (Parts::TTL, byte(at::IP_TTL)),
            (Parts::TOS, byte(at::IP_TOS)),
            (Parts::ADDRESSES, (ADDRESSES, self.address_mask)),
            (Parts::PORTS, (at::TP_SRC / 8, u64::from_ne_bytes(in_word))),
        ];
        let mut touched = [0; MINI_KEY_WORDS];
        for (part, (word, bits)) in parts {
            if self.parts.has(part) {
                touched[word] |= bits;
            }
        }
        touched
    }

    /// Returns whether it can fail for a low TTL.
    #[inline(always)]
    pub fn may_expire(&self) -> bool {
        self.least > 0
    }

    /// Returns whether the packet's TTL is too low for its decrements. Such a packet must not be
    /// rewritten. A packet without a TTL counts as one with TTL 0.
    #[inline(always)]
    pub fn expires(&self, words: &[u64; MINI_KEY_WORDS]) -> bool {
        let ttl = words[at::IP_TTL / 8].to_ne_bytes()[at::IP_TTL % 8];
        ttl < self.least
    }

    /// Rewrites a packet of a common kind and its mini key, which must agree with the packet.
    #[inline(always)]
    pub fn run<F: Frame>(&self, frame: &mut F, extent: Extent, words: &mut [u64; MINI_KEY_WORDS]) {
        if self.parts.has(Parts::OTHERS) || !extent.is_ipv4() {
            return self.run_all(frame, extent, words);
        }
        let l3 = usize::from(extent.l3());
        let Some(head) = frame.head_mut().get_mut(..l3 + COMMON_LEN) else {
            return;
        };
        self.run_ethernet(head, words);
        if self.parts.has(Parts::TTL)
            && let Some(part) = head[l3 + 8..].first_chunk_mut()
        {
            set_byte(words, at::IP_TTL, self.run_ttl(part));
        }
    }

    /// [`Rewrite::run`] for any edits and any packet.
    #[inline(never)] // keeps registers free in the common case
    fn run_all<F: Frame>(&self, frame: &mut F, extent: Extent, words: &mut [u64; MINI_KEY_WORDS]) {
        if !extent.is_ipv4() {
            return self.run_other(frame, extent, words);
        }
        let l3 = usize::from(extent.l3());
        let Some(head) = frame.head_mut().get_mut(..l3 + COMMON_LEN) else {
            return;
        };
        self.run_ethernet(head, words);
        if self.parts.has(Parts::NETWORK)
            && let Some(header) = head[l3..].first_chunk_mut()
        {
            self.run_network(header, words);
        }
        if self.parts.has(Parts::TRANSPORT) {
            self.run_transport(frame, extent, words);
        }
    }

    /// [`Rewrite::run`] for a packet that is not looked at again: its mini key may be out of date
    /// afterwards.
    #[inline(always)]
    pub fn run_last<F: Frame>(
        &self,
        frame: &mut F,
        extent: Extent,
        words: &mut [u64; MINI_KEY_WORDS],
    ) {
        if self.parts == Parts::ROUTED && extent.is_ipv4() {
            let l3 = usize::from(extent.l3());
            if let Some(head) = frame.head_mut().get_mut(..l3 + COMMON_LEN) {
                self.route(head, l3);
            }
            return;
        }
        self.run(frame, extent, words);
    }

    /// Writes both Ethernet addresses and the TTL, by two writes and one.
    #[inline(always)]
    fn route(&self, head: &mut [u8], l3: usize) {
        head[..12].copy_from_slice(&self.ethernet);
        if let Some(part) = head[l3 + 8..].first_chunk_mut() {
            self.run_ttl(part);
        }
    }

    /// Changes the TTL of an IPv4 header, given its TTL, protocol and checksum; returns the new
    /// TTL.
    #[inline(always)]
    fn run_ttl(&self, part: &mut [u8; 4]) -> u8 {
        let [old, _, low, high] = *part;
        let to = (old & !self.ttl_mask).wrapping_add(self.ttl_add);
        // Swapping the bytes of all words swaps those of their sum (RFC 1071 section 2), so the
        // checksum is updated without swapping it to native order and back.
        let checksum = update_word(u16::from_le_bytes([low, high]), old.into(), to.into());
        part[0] = to;
        part[2..].copy_from_slice(&checksum.to_le_bytes());
        to
    }

    /// Writes the Ethernet addresses.
    #[inline(always)]
    fn run_ethernet(&self, head: &mut [u8], words: &mut [u64; MINI_KEY_WORDS]) {
        if self.parts.has(Parts::DESTINATION) {
            let to = self.destination();
            words[DESTINATION] = words[DESTINATION] & !ADDRESS | to;
            head[..6].copy_from_slice(&to.to_ne_bytes()[..6]);
        }
        if self.parts.has(Parts::SOURCE) {
            let to = self.source();
            words[SOURCE] = words[SOURCE] & !ADDRESS | to;
            head[6..12].copy_from_slice(&to.to_ne_bytes()[..6]);
        }
    }

    /// [`Rewrite::run`] on a packet of IPv6 or ARP, which has no IPv4 addresses; for ARP, only the
    /// Ethernet header can change.
    fn run_other<F: Frame>(
        &self,
        frame: &mut F,
        extent: Extent,
        words: &mut [u64; MINI_KEY_WORDS],
    ) {
        let Some(head) = frame.head_mut().get_mut(..usize::from(extent.l3())) else {
            return;
        };
        self.run_ethernet(head, words);
        if extent.network() == Network::Arp {
            return;
        }
        let network = usize::from(extent.l3())..usize::from(extent.l4());
        if let Some(header) = frame.head_mut().get_mut(network)
            && self.parts.has(Parts::NETWORK)
        {
            if self.parts.has(Parts::TTL) {
                header[7] = (header[7] & !self.ttl_mask).wrapping_add(self.ttl_add);
                set_byte(words, at::IP_TTL, header[7]);
            }
            if self.parts.has(Parts::TOS) {
                // The traffic class spans two bytes.
                let old = header[0] << 4 | header[1] >> 4;
                let to = old & !self.tos_mask | self.tos;
                header[0] = header[0] & 0xf0 | to >> 4;
                header[1] = header[1] & 0x0f | to << 4;
                set_byte(words, at::IP_TOS, to);
            }
        }
        if self.parts.has(Parts::PORTS) {
            self.run_transport(frame, extent, words);
        }
    }

    /// Changes TTL and ToS, and the IP header's checksum, also for changed addresses.
    #[inline(always)]
    fn run_network(&self, header: &mut [u8; 20], words: &mut [u64; MINI_KEY_WORDS]) {
        let mut delta = Delta::new();
        if self.parts.has(Parts::TTL) {
            let old = header[8];
            let to = (old & !self.ttl_mask).wrapping_add(self.ttl_add);
            delta.byte(8, old, to);
            header[8] = to;
            set_byte(words, at::IP_TTL, to);
        }
        if self.parts.has(Parts::TOS) {
            let old = header[1];
            let to = old & !self.tos_mask | self.tos;
            delta.byte(1, old, to);
            header[1] = to;
            set_byte(words, at::IP_TOS, to);
        }
        if self.parts.has(Parts::ADDRESSES) {
            delta.add(self.difference(words[ADDRESSES]));
        }
        let checksum = u16::from_be_bytes([header[10], header[11]]);
        header[10..12].copy_from_slice(&delta.applied_to(checksum).to_be_bytes());
    }

    /// Returns the checksum difference of new addresses.
    #[inline(always)]
    fn difference(&self, old: u64) -> Delta {
        let new = old & !self.address_mask | self.addresses;
        let (old, new) = (old.to_ne_bytes(), new.to_ne_bytes());
        let mut delta = Delta::new();
        for from in [0, 2, 4, 6] {
            let word = |bytes: &[u8; 8]| u16::from_be_bytes([bytes[from], bytes[from + 1]]);
            delta.word(word(&old), word(&new));
        }
        delta
    }

    /// Changes IPv4 addresses and ports, and the transport checksum.
    #[inline(never)] // keeps registers free in the common case
    fn run_transport<F: Frame>(
        &self,
        frame: &mut F,
        extent: Extent,
        words: &mut [u64; MINI_KEY_WORDS],
    ) {
        let protocol = words[at::IP_PROTO / 8].to_ne_bytes()[at::IP_PROTO % 8];
        let (l3, l4) = (usize::from(extent.l3()), usize::from(extent.l4()));
        let offload = frame.offload();
        let partial = offload.partial_checksum && usize::from(offload.csum_start) == l4;
        let Some(place) = place_of(protocol) else {
            return;
        };
        let (mask, value) = (self.port_masks[place], self.port_values[place]);
        let udp = protocol == UDP;
        let Some(head) = (frame.head_mut()).get_mut(..l4 + if udp { 8 } else { 20 }) else {
            return;
        };
        let mut delta = Delta::new();
        let mut changed = false;
        if self.address_mask != 0 && extent.is_ipv4() {
            delta = self.difference(words[ADDRESSES]);
            changed = true;
            words[ADDRESSES] = words[ADDRESSES] & !self.address_mask | self.addresses;
            head[l3 + 12..l3 + 20].copy_from_slice(&words[ADDRESSES].to_ne_bytes());
        }
        if mask != 0 {
            let old = words[at::TP_SRC / 8].to_ne_bytes();
            let old = u32::from_ne_bytes([old[0], old[1], old[2], old[3]]);
            let new = old & !mask | value;
            // A checksum that is still to be computed does not include the ports.
            if !partial {
                delta.words(u32::from_be(old), u32::from_be(new));
                changed = true;
            }
            head[l4..l4 + 4].copy_from_slice(&new.to_ne_bytes());
            let mut bytes = words[at::TP_SRC / 8].to_ne_bytes();
            bytes[..4].copy_from_slice(&new.to_ne_bytes());
            words[at::TP_SRC / 8] = u64::from_ne_bytes(bytes);
        }
        if !changed {
            return;
        }
        let field = &mut head[l4 + if udp { 6 } else { 16 }..][..2];
        update_transport(delta, field, partial, udp);
    }
}

/// Writes a byte of the key.
#[inline(always)]
fn set_byte(words: &mut [u64; MINI_KEY_WORDS], place: usize, to: u8) {
    let mut bytes = words[place / 8].to_ne_bytes();
    bytes[place % 8] = to;
    words[place / 8] = u64::from_ne_bytes(bytes);
}
