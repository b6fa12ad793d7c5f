//! Chooses packets by rules: packets that meet a rule, packets that meet none, and those of a
//! tuple-space explosion.

use crate::random::{Sequence, number};
use crate::rules::{Bits, Header, ICMP6, Ports, Rule, TCP, UDP, Vlan, icmp_of};

/// TCP's flag ACK, which packets have unless a rule wants others.
const ACK: u8 = 0x10;
/// How often a packet that meets no rule is looked for.
const TRIES: u64 = 64;
/// Most comparisons of a packet with a rule, in all: some seconds.
pub const COMPARED_MAX: u64 = 2_000_000_000;

/// Random numbers of one packet.
struct Dice(Sequence);

impl Dice {
    fn next(&mut self) -> u64 {
        self.0.draw()
    }

    fn wide(&mut self) -> u128 {
        u128::from(self.next()) << 64 | u128::from(self.next())
    }

    /// Returns a number below `count`, all equally likely.
    fn below(&mut self, count: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(count)) >> 64) as u64
    }

    fn port(&mut self, ports: Ports, most: u16) -> u16 {
        match ports {
            Ports::Range(low, high) => {
                let count = u64::from(high.min(most).max(low) - low) + 1;
                low + self.below(count) as u16
            }
            Ports::Bits(bits) => bits.fill(u128::from(self.next() as u16 & most)) as u16,
        }
    }
}

/// Chooses packets at random, by a seed.
#[derive(Clone, Copy, Debug)]
pub struct Sampler {
    /// What packets have where a rule leaves it open: Ethernet addresses, the VLAN, the DSCP and
    /// ECN bits.
    pub usual: Header,
    /// The seed.
    pub seed: u64,
}

impl Sampler {
    /// Returns the n-th packet that meets a rule: random within what the rule leaves open of
    /// addresses, protocol (TCP or UDP, where it may be one of them) and ports. The rule must have
    /// been read from a file.
    pub fn meeting(&self, rule: &Rule, n: u64) -> Header {
        let mut dice = Dice(Sequence::new(number(self.seed, n)));
        let six = rule.six.unwrap_or(self.usual.six);
        let wide = |number: u128| match six {
            true => number,
            false => number & u128::from(u32::MAX),
        };
        let protocol = protocol_of(rule, six, &mut dice);
        let is_open = rule.port_src.is_any() && rule.port_dst.is_any();
        let (port_src, port_dst) = match protocol {
            TCP | UDP => {
                let src = dice.port(rule.port_src, u16::MAX);
                (src, dice.port(rule.port_dst, u16::MAX))
            }
            _ if protocol != icmp_of(six) => (0, 0),
            // An echo request, where the rule leaves it open.
            ICMP6 if is_open => (128, 0),
            _ if is_open => (8, 0),
            _ => {
                let kind = dice.port(rule.port_src, 0xff);
                (kind, dice.port(rule.port_dst, 0xff))
            }
        };
        let flags = match protocol {
            TCP => rule.flags.fill(ACK.into()) as u8,
            _ => 0,
        };
        // An address whose bits are not all matched begins as the usual one.
        let station = |bits: Bits, usual: u64| bits.fill(usual.into()) as u64;
        Header {
            eth_src: station(rule.eth_src, self.usual.eth_src),
            eth_dst: station(rule.eth_dst, self.usual.eth_dst),
            vlan: match rule.vlan {
                Vlan::Any => self.usual.vlan,
                Vlan::Untagged => None,
                Vlan::Id(id) => Some(id),
            },
            six,
            src: rule.src.fill(wide(dice.wide())),
            dst: rule.dst.fill(wide(dice.wide())),
            tos: rule.tos.fill(self.usual.tos.into()) as u8,
            protocol,
            port_src,
            port_dst,
            flags,
        }
    }

    /// Returns the n-th packet that meets no rule, but for rules that say nothing: random in
    /// addresses, protocol (TCP or UDP) and ports; if that does not help, of ICMP; and then of
    /// other protocols (numbers 64 to 127), with random Ethernet addresses. None if none is found.
    /// Adds to `compared` how often a packet was compared with a rule.
    pub fn missing(&self, rules: &[Rule], n: u64, compared: &mut u64) -> Option<Header> {
        let free = Rule::any(0);
        (0..TRIES).find_map(|attempt| {
            let n = n.wrapping_mul(TRIES).wrapping_add(attempt);
            let mut header = self.meeting(&free, n);
            let random = number(self.seed ^ 0x5c, n);
            let other = |protocol: u8, kind: u16, header: Header| Header {
                protocol,
                port_src: kind,
                port_dst: 0,
                flags: 0,
                ..header
            };
            if attempt >= TRIES / 2 {
                header = other(64 + (random >> 58) as u8, 0, header);
                // Of one station, and administered by hand.
                let address = |random: u64| random & 0xfcff_ffff_ffff | (2 << 40);
                header.eth_src = address(random);
                header.eth_dst = address(number(random, 1));
            } else if attempt >= TRIES / 4 {
                let kind = if header.six { 128 } else { 8 };
                header = other(icmp_of(header.six), kind, header);
            }
            meets_none(rules, &header, compared).then_some(header)
        })
    }
}

/// Returns whether a packet meets no rule but those that say nothing.
fn meets_none(rules: &[Rule], header: &Header, compared: &mut u64) -> bool {
    let met = rules
        .iter()
        .position(|rule| rule.meets(header) && !rule.is_any());
    *compared += met.map_or(rules.len(), |at| at + 1) as u64;
    met.is_none()
}

/// Chooses the protocol of a packet that is to meet a rule.
fn protocol_of(rule: &Rule, six: bool, dice: &mut Dice) -> u8 {
    if !rule.flags.is_any() {
        return TCP;
    }
    let ported = !rule.port_src.is_any() || !rule.port_dst.is_any();
    match (rule.may_be(TCP), rule.may_be(UDP)) {
        (true, true) => [TCP, UDP][dice.below(2) as usize],
        (true, false) => TCP,
        (false, true) => UDP,
        (false, false) if ported => icmp_of(six),
        (false, false) => rule.protocol.fill(u128::from(dice.next() as u8)) as u8,
    }
}

/// The packets of a tuple-space explosion (Csikor et al.: Tuple Space Explosion: A
/// Denial-of-Service Attack Against a Software Packet Classifier, CoNEXT 2019): in each field that
/// rules match, one bit of a value that they match is turned over, each bit in one packet, and each
/// combination of these is a packet. A cache of masked flows whose masks have only the bits that it
/// needed to tell a packet from the rules gets a mask for each.
#[derive(Clone, Debug)]
pub struct Explosion {
    usual: Header,
    /// For each field that rules match, the values that it takes.
    fields: Vec<(Field, Vec<u128>)>,
}

/// A field of an explosion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Field {
    PortDst,
    PortSrc,
    Src,
    Dst,
    EthSrc,
    EthDst,
}

/// Most values of one field in an explosion.
const FIELD_VALUES_MAX: usize = 1 << 16;

impl Explosion {
    /// Prepares one for rules.
    pub fn new(rules: &[Rule], usual: Header) -> Result<Explosion, NoFlows> {
        let six = rules.iter().find_map(|rule| rule.six);
        let mut usual = usual;
        if let Some(six) = six
            && six != usual.six
        {
            // The usual addresses are of the other family.
            let base = if six { 0xfd00 << 112 } else { 10 << 24 };
            (usual.six, usual.src, usual.dst) = (six, base + 1, base + 2);
        }
        let mine: Vec<&Rule> = rules
            .iter()
            .filter(|rule| rule.six.is_none_or(|six| six == usual.six))
            .collect();
        // Packets have ports; where a rule wants one protocol, it is that.
        let fixed = mine.iter().find_map(|rule| {
            let may_be = [TCP, UDP].map(|one| rule.may_be(one));
            match may_be {
                [true, false] => Some(TCP),
                [false, true] => Some(UDP),
                _ => None,
            }
        });
        usual.protocol = fixed.unwrap_or(match usual.protocol {
            TCP => TCP,
            _ => UDP,
        });
        usual.flags = if usual.protocol == TCP { ACK } else { 0 };
        let mut fields = Vec::new();
        for field in [
            Field::PortDst,
            Field::PortSrc,
            Field::Src,
            Field::Dst,
            Field::EthSrc,
            Field::EthDst,
        ] {
            let mut values = Vec::new();
            let mut known = std::collections::HashSet::new();
            for rule in &mine {
                let bits = field.of(rule);
                for bit in (0..128).rev().map(|bit| 1_u128 << bit) {
                    if bits.mask & bit == 0 || values.len() == FIELD_VALUES_MAX {
                        continue;
                    }
                    let value = bits.fill(field.get(&usual)) ^ bit;
                    if known.insert(value) {
                        values.push(value);
                    }
                }
            }
            if !values.is_empty() {
                fields.push((field, values));
            }
        }
        match fields.is_empty() {
            true => Err(NoFlows::NoBits),
            false => Ok(Explosion { usual, fields }),
        }
    }

    /// Returns how many packets there are, those that meet a rule after all included.
    pub fn count(&self) -> u64 {
        let counts = self.fields.iter().map(|(_, values)| values.len() as u64);
        counts.fold(1, u64::saturating_mul)
    }

    /// Returns the n-th packet. Fields of earlier rank change faster.
    pub fn packet(&self, n: u64) -> Header {
        let (mut header, mut rest) = (self.usual, n);
        for (field, values) in &self.fields {
            let count = values.len() as u64;
            field.set(&mut header, values[(rest % count) as usize]);
            rest /= count;
        }
        header
    }

    /// Returns the packets that meet no rule, but for rules that say nothing: at most `most`. Fails
    /// where it would take too long.
    pub fn packets(&self, rules: &[Rule], most: usize) -> Result<Vec<Header>, NoFlows> {
        let (mut found, mut compared) = (Vec::new(), 0);
        for n in 0..self.count() {
            if found.len() == most {
                break;
            }
            let header = self.packet(n);
            if meets_none(rules, &header, &mut compared) {
                found.push(header);
            }
            if compared > COMPARED_MAX {
                return Err(NoFlows::TooLong);
            }
        }
        Ok(found)
    }
}

/// Why the flows that are wanted of a set of rules do not exist, or are not found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoFlows {
    /// Nothing that rules match can be turned over.
    #[error("no rule matches an address or a port, whose bits could differ")]
    NoBits,
    /// Packets are compared with rules too often.
    #[error(
        "finding flows that meet no rule takes more than {COMPARED_MAX} comparisons: have fewer \
         flows or fewer rules"
    )]
    TooLong,
    /// An explosion has no packet that misses all rules.
    #[error("every packet of the explosion meets a rule")]
    AllMeet,
    /// An explosion has fewer packets than are wanted.
    #[error("there are {found} such flows, and not {wanted}")]
    TooFew {
        /// Those that there are.
        found: u64,
        /// Those that are wanted.
        wanted: u64,
    },
    /// No packet that misses all rules was found.
    #[error("no packet was found that meets no rule")]
    NoneMisses,
}

impl Field {
    /// Returns what a rule wants of the field. Of a range of ports it is the first port.
    fn of(self, rule: &Rule) -> Bits {
        let port = |ports: Ports| match ports {
            _ if ports.is_any() => Bits::default(),
            Ports::Range(low, _) => Bits::new(low.into(), 0xffff),
            Ports::Bits(bits) => bits,
        };
        match self {
            Field::PortDst => port(rule.port_dst),
            Field::PortSrc => port(rule.port_src),
            Field::Src => rule.src,
            Field::Dst => rule.dst,
            Field::EthSrc => rule.eth_src,
            Field::EthDst => rule.eth_dst,
        }
    }

    fn get(self, header: &Header) -> u128 {
        match self {
            Field::PortDst => header.port_dst.into(),
            Field::PortSrc => header.port_src.into(),
            Field::Src => header.src,
            Field::Dst => header.dst,
            Field::EthSrc => header.eth_src.into(),
            Field::EthDst => header.eth_dst.into(),
        }
    }

    fn set(self, header: &mut Header, value: u128) {
        match self {
            Field::PortDst => header.port_dst = value as u16,
            Field::PortSrc => header.port_src = value as u16,
            Field::Src => header.src = value,
            Field::Dst => header.dst = value,
            Field::EthSrc => header.eth_src = value as u64,
            Field::EthDst => header.eth_dst = value as u64,
        }
    }
}
