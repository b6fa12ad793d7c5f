//! Parses the left side of a rule.

use super::values::{Masked, of_field, of_option};
use super::{Error, Pair, PortNames, Result, field, pairs};
use packet::key::at;
use packet::{Field, Match, Value};

/// Words that mean an Ethertype and an IP protocol.
const PROTOCOLS: [(&str, u16, u8); 18] = [
    ("ip", 0x0800, 0),
    ("ipv4", 0x0800, 0),
    ("ip4", 0x0800, 0),
    ("arp", 0x0806, 0),
    ("icmp", 0x0800, 1),
    ("igmp", 0x0800, 2),
    ("tcp", 0x0800, 6),
    ("udp", 0x0800, 17),
    ("sctp", 0x0800, 132),
    ("ipv6", 0x86dd, 0),
    ("ip6", 0x86dd, 0),
    ("icmp6", 0x86dd, 58),
    ("tcp6", 0x86dd, 6),
    ("udp6", 0x86dd, 17),
    ("sctp6", 0x86dd, 132),
    ("rarp", 0x8035, 0),
    ("mpls", 0x8847, 0),
    ("mplsm", 0x8848, 0),
];

/// Bit of a match's TCI that says there is a tag.
const PRESENT: u16 = 0x1000;

/// Parses a match, such as `tcp,in_port=1,nw_dst=10.0.0.0/8,tp_dst=80`. Prerequisites must be in
/// the text, in any order.
pub fn matching(text: &str, names: PortNames<'_>) -> Result<Match> {
    let mut reader = Reader::new(names, false);
    for pair in pairs(text) {
        reader.pair(pair)?;
    }
    reader.finish()
}

/// Parses the fields of one packet, as `ofproto/trace` takes them: exact, each at most once and
/// behind its prerequisites. Other fields are zero. As in Open vSwitch, the error quotes the text.
pub fn packet(text: &str, names: PortNames<'_>) -> Result<Match> {
    let mut reader = Reader::new(names, true);
    for pair in pairs(text) {
        reader
            .pair(pair)
            .map_err(|error| Error::new(format!("{text}: {error}")))?;
    }
    Ok(reader.matching)
}

/// Parses a match item by item.
pub(super) struct Reader<'n> {
    names: PortNames<'n>,
    /// Whether it describes a packet, not a rule's match.
    exact: bool,
    matching: Match,
    seen: Vec<Field>,
    /// Fields whose prerequisites are checked at the end.
    pending: Vec<(Field, String)>,
}

impl<'n> Reader<'n> {
    pub fn new(names: PortNames<'n>, exact: bool) -> Reader<'n> {
        Reader {
            names,
            exact,
            matching: Match::any(),
            seen: Vec::new(),
            pending: Vec::new(),
        }
    }

    /// Adds an item.
    pub fn pair(&mut self, pair: Pair<'_>) -> Result<()> {
        let Pair { key, value, .. } = pair;
        if value.is_empty() {
            if key == "eth" {
                return Ok(());
            }
            if let Some((_, eth_type, protocol)) =
                PROTOCOLS.iter().find(|(word, _, _)| *word == key)
            {
                self.matching.set_exact(Field::EthType, (*eth_type).into());
                if *protocol != 0 {
                    self.matching.set_exact(Field::IpProto, (*protocol).into());
                }
                return Ok(());
            }
        }
        let Some(field) = field(key) else {
            return Err(Error::new(format!("unknown field {key}")));
        };
        let field = self.in_context(key, field);
        if self.seen.contains(&field) {
            return Err(Error::new(format!("field {key} set multiple times")));
        }
        self.seen.push(field);
        if self.exact && !field.def().prerequisite.met_by(&self.matching) && !is_vlan(field) {
            return Err(Error::new(format!(
                "prerequisites not met for setting {key}"
            )));
        }
        let bad = |why: &dyn std::fmt::Display| Error::new(format!("bad value for {key} ({why})"));
        if value.is_empty() {
            return Err(bad(&format!("missing value for field {key}")));
        }
        if matches!(value, "*" | "ANY") && !self.exact && field != Field::InPort {
            return Ok(());
        }
        // `0xffff` means no tag.
        if field == Field::DlVlan && super::number(value) == Some(0xffff) {
            self.matching.set_bytes(at::VLAN_TCI, &[0, 0], &[0xff; 2]);
            return Ok(());
        }
        if let Some(option) = field.tunnel_option() {
            let (bytes, mask) = of_option(field, value).map_err(|error| bad(&error))?;
            if mask.is_some() && self.exact {
                return Err(bad(&format!("{value}: wildcards not allowed here")));
            }
            // Only the bridge's map knows its length.
            match mask {
                None => self.matching.set_whole_option(option, &bytes),
                Some(mask) => self.matching.set_option(option, &bytes, Some(&mask)),
            };
            return Ok(());
        }
        let read = of_field(field, value, self.names).map_err(|error| bad(&error))?;
        let whole = self.whole(field);
        if read.mask != whole
            && (self.exact || field.def().maskable == packet::fields::Maskable::No)
        {
            return Err(bad(&format!("{value}: wildcards not allowed here")));
        }
        self.set(field, read);
        if !self.exact {
            self.pending.push((field, key.to_owned()));
        }
        Ok(())
    }

    fn whole(&self, field: Field) -> u128 {
        let def = field.def();
        match def.bits {
            128.. => u128::MAX,
            bits => ((1 << bits) - 1) << def.wire_shift,
        }
    }

    /// Returns the field of a name whose meaning depends on the protocol.
    fn in_context(&self, key: &str, field: Field) -> Field {
        let protocol = self.matching.get(Field::IpProto).0.to_u64();
        let eth_type = self.matching.get(Field::EthType).0.to_u64();
        match (key, eth_type, protocol) {
            ("tp_src", _, 17) => Field::UdpSrc,
            ("tp_dst", _, 17) => Field::UdpDst,
            ("tp_src", _, 132) => Field::SctpSrc,
            ("tp_dst", _, 132) => Field::SctpDst,
            ("tp_src" | "icmp_type", 0x86dd, 58) => Field::Icmpv6Type,
            ("tp_dst" | "icmp_code", 0x86dd, 58) => Field::Icmpv6Code,
            ("tp_src", _, 1) => Field::Icmpv4Type,
            ("tp_dst", _, 1) => Field::Icmpv4Code,
            ("nw_src", 0x0806 | 0x8035, _) => Field::ArpSpa,
            ("nw_dst", 0x0806 | 0x8035, _) => Field::ArpTpa,
            ("nw_proto", 0x0806 | 0x8035, _) => Field::ArpOp,
            _ => field,
        }
    }

    fn set(&mut self, field: Field, read: Masked) {
        let def = field.def();
        let (value, mask) = (
            read.value >> def.wire_shift << def.shift,
            read.mask >> def.wire_shift << def.shift,
        );
        let (mut value, mut mask) = (
            Value::from_u128(value, def.bytes),
            Value::from_u128(mask, def.bytes),
        );
        if matches!(field, Field::DlVlan | Field::DlVlanPcp | Field::VlanPcp) {
            value[0] |= (PRESENT >> 8) as u8;
            mask[0] |= (PRESENT >> 8) as u8;
            return self.matching.set_bytes(at::VLAN_TCI, &value, &mask);
        }
        self.matching.set(field, &value, &mask);
    }

    /// Returns the match, if the prerequisites of all its fields are met.
    pub fn finish(self) -> Result<Match> {
        for (field, key) in self.pending {
            if !field.def().prerequisite.met_by(&self.matching) {
                return Err(Error::new(format!(
                    "{key}: prerequisites not met (OFPBMC_BAD_PREREQ)"
                )));
            }
        }
        Ok(self.matching)
    }
}

/// Returns whether a field implies that there is a tag.
fn is_vlan(field: Field) -> bool {
    matches!(
        field,
        Field::DlVlan | Field::DlVlanPcp | Field::VlanVid | Field::VlanPcp | Field::VlanTci
    )
}
