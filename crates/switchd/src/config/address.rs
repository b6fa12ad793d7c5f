//! MAC addresses: parsing them, and choosing a bridge's address and its datapath id.
//!
//! A bridge takes the address that the user gave it; else the lowest globally administered one
//! among its ports, so that a bridge with a network card has the card's address; else one made from
//! its row's UUID, which stays the same over restarts. The datapath id is the address unless the
//! user gave one.

use std::fmt;
use std::str::FromStr;

use ovsdb::Uuid;

/// An Ethernet address.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Mac(pub [u8; 6]);

/// Error for text that is not an address in the form `xx:xx:xx:xx:xx:xx`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not an Ethernet address")]
pub struct BadMac;

impl FromStr for Mac {
    type Err = BadMac;

    fn from_str(text: &str) -> Result<Mac, BadMac> {
        let mut bytes = [0; 6];
        let mut parts = text.split(':');
        for byte in &mut bytes {
            let part = parts.next().ok_or(BadMac)?;
            if part.is_empty() || part.len() > 2 || !part.bytes().all(|b| b.is_ascii_hexdigit()) {
                return Err(BadMac);
            }
            *byte = u8::from_str_radix(part, 16).map_err(|_| BadMac)?;
        }
        match parts.next() {
            None => Ok(Mac(bytes)),
            Some(_) => Err(BadMac),
        }
    }
}

impl fmt::Display for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

impl fmt::Debug for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Mac {
    /// Returns whether this is a group (multicast or broadcast) address.
    pub fn is_multicast(self) -> bool {
        self.0[0] & 1 != 0
    }

    /// Returns whether the address is locally administered, not assigned by the IEEE.
    pub fn is_local(self) -> bool {
        self.0[0] & 2 != 0
    }

    /// Returns whether all bits are zero.
    pub fn is_zero(self) -> bool {
        self.0 == [0; 6]
    }

    /// Returns whether the address belongs to a control protocol (Extreme's EDP and EAPS; the other
    /// reserved ones are multicast).
    fn is_reserved(self) -> bool {
        matches!(self.0, [0x00, 0xe0, 0x2b, 0x00, 0x00, 0x00 | 0x04 | 0x06])
    }

    /// Returns the stable address of a bridge that has no port to take one from: the first six
    /// bytes of its row's UUID as Open vSwitch keeps it in memory (32-bit words, little-endian),
    /// marked as locally administered.
    pub fn from_uuid(uuid: Uuid) -> Mac {
        let [a, b, c, d] = ((uuid.0 >> 96) as u32).to_le_bytes();
        let [e, f, ..] = ((uuid.0 >> 64) as u32).to_le_bytes();
        Mac([(a & !1) | 2, b, c, d, e, f])
    }

    /// Returns the address as the low 48 bits of a number.
    pub fn to_number(self) -> u64 {
        self.0
            .iter()
            .fold(0, |number, byte| number << 8 | u64::from(*byte))
    }
}

/// Facts about a port that matter when a bridge's address is chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// The device's address.
    pub device: Mac,
    /// The address given in the Port row, which takes precedence.
    pub given: Option<Mac>,
    /// Whether it is the bridge's own port.
    pub local: bool,
    /// Whether it is a mirror's output port.
    pub mirror_output: bool,
    /// The port's VLAN tag; matters for a fake bridge only.
    pub tag: Option<u16>,
}

/// Chooses the address of a bridge's local port. `requested` is `other_config:hwaddr`.
pub fn bridge_address(
    requested: Option<Mac>,
    default: Mac,
    ports: impl IntoIterator<Item = Candidate>,
) -> Mac {
    requested.unwrap_or_else(|| lowest(ports).unwrap_or(default))
}

/// Chooses the address of a fake bridge's interface: only ports with the same tag count.
pub fn fake_bridge_address(
    tag: Option<u16>,
    default: Mac,
    ports: impl IntoIterator<Item = Candidate>,
) -> Mac {
    let same = ports
        .into_iter()
        .filter(|port| tag.is_none() || port.given.is_some() || port.tag == tag);
    lowest(same).unwrap_or(default)
}

fn lowest(ports: impl IntoIterator<Item = Candidate>) -> Option<Mac> {
    let usable =
        |mac: &Mac| !mac.is_multicast() && !mac.is_local() && !mac.is_reserved() && !mac.is_zero();
    ports
        .into_iter()
        .filter(|port| !port.mirror_output && (port.given.is_some() || !port.local))
        .map(|port| port.given.unwrap_or(port.device))
        .filter(usable)
        .min()
}

/// Returns the OpenFlow datapath id of a bridge: the one given, or its address.
pub fn datapath_id(requested: Option<u64>, address: Mac) -> u64 {
    requested.unwrap_or_else(|| address.to_number())
}

/// Reads a datapath id: exactly 16 hexadecimal digits, or up to 16 after `0x`; not zero.
pub fn parse_datapath_id(text: &str) -> Option<u64> {
    let digits = match text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
        Some(digits) if !digits.is_empty() => digits,
        _ if text.len() == 16 => text,
        _ => return None,
    };
    if !digits.bytes().all(|b| b.is_ascii_hexdigit()) {
        return None;
    }
    u64::from_str_radix(digits, 16).ok().filter(|id| *id != 0)
}

/// Returns the MTU of internal ports for which none is requested: the smallest among the bridge's
/// other ports, 1500 when there is none.
pub fn internal_mtu(others: impl IntoIterator<Item = u16>) -> u16 {
    others.into_iter().min().unwrap_or(1500)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn port(device: &str) -> Candidate {
        Candidate {
            device: device.parse().unwrap(),
            given: None,
            local: false,
            mirror_output: false,
            tag: None,
        }
    }

    #[test]
    fn the_lowest_global_address_wins() {
        let default = Mac([2, 0, 0, 0, 0, 9]);
        let low = port("00:11:22:33:44:55");
        let ports = [
            port("00:11:22:33:44:56"),
            low,
            port("da:05:6e:e3:6d:71"),
            port("01:00:00:00:00:01"),
        ];
        assert_eq!(bridge_address(None, default, ports), low.device);
        assert_eq!(
            bridge_address(Some(Mac([4; 6])), default, ports),
            Mac([4; 6])
        );
        assert_eq!(
            bridge_address(
                None,
                default,
                [port("da:05:6e:e3:6d:71"), port("00:00:00:00:00:00")]
            ),
            default
        );
        assert_eq!(
            bridge_address(None, default, [Candidate { local: true, ..low }]),
            default
        );
        assert_eq!(
            bridge_address(
                None,
                default,
                [Candidate {
                    mirror_output: true,
                    ..low
                }]
            ),
            default
        );
        let given = Mac([0, 1, 1, 1, 1, 1]);
        assert_eq!(
            bridge_address(
                None,
                default,
                [Candidate {
                    given: Some(given),
                    ..low
                }]
            ),
            given
        );
    }

    #[test]
    fn a_fake_bridge_looks_at_its_own_vlan() {
        let default = Mac([2, 0, 0, 0, 0, 9]);
        let mut inside = port("00:11:22:33:44:56");
        inside.tag = Some(5);
        let ports = [port("00:11:22:33:44:55"), inside];
        assert_eq!(fake_bridge_address(Some(5), default, ports), inside.device);
        assert_eq!(fake_bridge_address(Some(6), default, ports), default);
    }

    #[test]
    fn the_default_address_is_open_vswitchs() {
        // Seen with ovs-vswitchd 3.1: this row's bridge had datapath id 00009a03166ca149.
        let uuid: Uuid = "6c160398-d5e2-49a1-9c19-ac24475d9846".parse().unwrap();
        assert_eq!(Mac::from_uuid(uuid).to_string(), "9a:03:16:6c:a1:49");
        assert_eq!(datapath_id(None, Mac::from_uuid(uuid)), 0x9a03_166c_a149);
    }

    #[test]
    fn datapath_ids() {
        assert_eq!(parse_datapath_id("0000000000000001"), Some(1));
        assert_eq!(parse_datapath_id("0x1f"), Some(0x1f));
        assert_eq!(parse_datapath_id("ffffffffffffffff"), Some(u64::MAX));
        for bad in [
            "",
            "1",
            "zz",
            "0x",
            "0x0",
            "0000000000000000",
            "00000000000000001",
            "0x1ffffffffffffffff",
            "+000000000000001",
        ] {
            assert_eq!(parse_datapath_id(bad), None, "{bad}");
        }
    }

    proptest! {
        #[test]
        fn addresses_survive_text(bytes in any::<[u8; 6]>()) {
            prop_assert_eq!(Mac(bytes).to_string().parse(), Ok(Mac(bytes)));
        }

        #[test]
        fn any_text_is_read_or_refused(text in "[0-9a-f:+xg]{0,20}") {
            if let Ok(mac) = text.parse::<Mac>() {
                prop_assert_eq!(mac.to_string().parse(), Ok(mac));
            }
            parse_datapath_id(&text);
        }
    }
}
