//! Arguments and output of `ovs/route/*`, `tnl/neigh/*` (also called `tnl/arp/*`) and
//! `tnl/ports/show`, as in Open vSwitch 3.1.
//!
//! Parsers take a command's arguments without its name. Callers check their number, since that
//! error message is the same for all commands; here a missing argument counts as empty, and
//! superfluous ones are ignored.

use crate::Mac;
use crate::device::{Device, source_among};
use crate::neighbours::{MAX_AGEING_S, Neighbours};
use crate::routes::{Route, Routes};
use std::fmt::{self, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// The longest device name in Open vSwitch, in bytes; longer names are truncated.
const LONGEST_NAME: usize = 15;

/// Why a command is refused, in the words of Open vSwitch.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum CommandError {
    /// A destination is not `IP/PLEN`, or an address to look up has a prefix length.
    #[error("Invalid parameters")]
    Parameters,
    /// The third argument for an IPv4 route is neither a mark nor a gateway.
    #[error("Invalid pkt_mark or gateway")]
    MarkOrGateway,
    /// The same for an IPv6 route.
    #[error("Invalid pkt_mark or IPv6 gateway")]
    MarkOrGateway6,
    /// Something other than a mark is where only a mark is allowed.
    #[error("Invalid pkt_mark")]
    Mark,
    /// There is no such device, or none of its addresses can be the source.
    #[error("Error while inserting route.")]
    Insert,
    /// There is no such route.
    #[error("Not found")]
    NotFound,
    /// A neighbour's address is invalid.
    #[error("bad IP address")]
    Address,
    /// A neighbour's MAC address is invalid.
    #[error("bad MAC address")]
    Mac,
    /// An ageing time is not a number of seconds from 1 to 3600.
    #[error("bad aging value")]
    Ageing,
}

/// A route to be added by `ovs/route/add`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NewRoute {
    /// The destination, with all bits as written.
    pub prefix: IpAddr,
    /// Number of its significant bits.
    pub len: u8,
    /// The device to leave by.
    pub device: String,
    /// The router to send packets to.
    pub gateway: Option<IpAddr>,
    /// The `pkt_mark` of its packets.
    pub mark: u32,
}

impl NewRoute {
    /// Returns the route by a device with these addresses; `Insert` if none of them can be the
    /// source.
    pub fn route(&self, addresses: &[(IpAddr, u8)]) -> Result<Route, CommandError> {
        let source = source_among(addresses, self.prefix, self.gateway);
        Ok(Route {
            prefix: self.prefix,
            len: self.len,
            device: self.device.clone(),
            gateway: self.gateway,
            source: source.map_err(|_| CommandError::Insert)?,
            mark: self.mark,
            local: false,
            user: true,
        })
    }
}

/// Parses the arguments of `ovs/route/add`: `IP[/PLEN] DEVICE [GATEWAY] [pkt_mark=MARK]`.
pub fn parse_route_add(arguments: &[&str]) -> Result<NewRoute, CommandError> {
    let (prefix, len) = parse_prefix(nth(arguments, 0)).ok_or(CommandError::Parameters)?;
    let (mut gateway, mut mark) = (None, 0);
    if let Some(third) = arguments.get(2) {
        match (parse_mark(third), prefix) {
            (Some(found), _) => mark = found,
            (None, IpAddr::V4(_)) => {
                let found = whole(third, Scanner::ipv4).ok_or(CommandError::MarkOrGateway)?;
                gateway = Some(IpAddr::V4(found));
            }
            (None, IpAddr::V6(_)) => {
                let found = third.parse().map_err(|_| CommandError::MarkOrGateway6)?;
                gateway = Some(IpAddr::V6(found).to_canonical());
            }
        }
    }
    if let Some(fourth) = arguments.get(3) {
        mark = parse_mark(fourth).ok_or(CommandError::Mark)?;
    }
    Ok(NewRoute {
        prefix,
        len,
        device: nth(arguments, 1).to_owned(),
        gateway: gateway.filter(|gateway| !gateway.is_unspecified()),
        mark,
    })
}

/// Parses the arguments of `ovs/route/del`: `IP[/PLEN] [pkt_mark=MARK]`; returns prefix, length and
/// mark.
pub fn parse_route_del(arguments: &[&str]) -> Result<(IpAddr, u8, u32), CommandError> {
    let (prefix, len) = parse_prefix(nth(arguments, 0)).ok_or(CommandError::Parameters)?;
    Ok((prefix, len, second_mark(arguments)?))
}

/// Parses the arguments of `ovs/route/lookup`: `IP [pkt_mark=MARK]`; returns address and mark.
pub fn parse_route_lookup(arguments: &[&str]) -> Result<(IpAddr, u32), CommandError> {
    let (address, len) = parse_prefix(nth(arguments, 0)).ok_or(CommandError::Parameters)?;
    if len != if address.is_ipv4() { 32 } else { 128 } {
        return Err(CommandError::Parameters);
    }
    Ok((address.to_canonical(), second_mark(arguments)?))
}

/// Parses the arguments of `tnl/neigh/set`: `BRIDGE IP MAC`. A name that is too long is truncated.
pub fn parse_neighbour_set(arguments: &[&str]) -> Result<(String, IpAddr, Mac), CommandError> {
    let address: IpAddr = nth(arguments, 1)
        .parse()
        .map_err(|_| CommandError::Address)?;
    let mac = whole(nth(arguments, 2), Scanner::mac).ok_or(CommandError::Mac)?;
    let device = nth(arguments, 0);
    let cut = (0..=LONGEST_NAME.min(device.len()))
        .rev()
        .find(|at| device.is_char_boundary(*at))
        .unwrap_or(0);
    Ok((device[..cut].to_owned(), address.to_canonical(), mac))
}

/// Parses the argument of `tnl/neigh/aging`; returns the time in ms.
pub fn parse_ageing(seconds: &str) -> Result<u64, CommandError> {
    let number = Scanner(seconds).number(Base::Decimal);
    number
        .map(|seconds| seconds as u32)
        .filter(|seconds| (1..=MAX_AGEING_S).contains(seconds))
        .map(|seconds| u64::from(seconds) * 1000)
        .ok_or(CommandError::Ageing)
}

/// Returns the output of `ovs/route/show`.
pub fn routes(routes: &Routes) -> String {
    let mut text = String::from("Route Table:\n");
    for route in routes.iter() {
        text.push_str(if route.is_cached() {
            "Cached: "
        } else {
            "User: "
        });
        let _ = write!(text, "{}/{}", Shown(route.prefix), route.len);
        if route.mark != 0 {
            let _ = write!(text, " MARK {}", route.mark);
        }
        let _ = write!(text, " dev {}", route.device);
        if let Some(gateway) = route.gateway {
            let _ = write!(text, " GW {}", Shown(gateway));
        }
        let _ = write!(text, " SRC {}", Shown(route.source));
        text.push_str(if route.local { " local\n" } else { "\n" });
    }
    text
}

/// Returns the output of `ovs/route/lookup`, given the result of [`Routes::lookup`].
pub fn lookup(route: Option<&Route>) -> Result<String, CommandError> {
    let route = route.ok_or(CommandError::NotFound)?;
    let gateway = route.gateway.unwrap_or(IpAddr::V6(Ipv6Addr::UNSPECIFIED));
    Ok(format!(
        "src {}\ngateway {}\ndev {}\n",
        Shown(route.source),
        Shown(gateway),
        route.device
    ))
}

/// Returns the output of `tnl/neigh/show`. Open vSwitch shows neighbours in no particular order;
/// here they are sorted by device and address.
pub fn neighbours(neighbours: &Neighbours, now_ms: u64) -> String {
    let mut text = format!("{:<46}MAC                 Bridge\n", "IP");
    text.push_str(&"=".repeat(74));
    text.push('\n');
    for neighbour in neighbours.iter() {
        let [a, b, c, d, e, f] = neighbour.mac;
        let _ = writeln!(
            text,
            "{:<46}{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{f:02x}   {}{}",
            Shown(neighbour.address).to_string(),
            neighbour.device,
            if neighbour.is_stale(now_ms) {
                " STALE"
            } else {
                ""
            }
        );
    }
    text
}

/// Returns the output of `tnl/neigh/aging`.
pub fn ageing(neighbours: &Neighbours) -> String {
    (neighbours.ageing_ms() / 1000).to_string()
}

/// A protocol and port at which tunnel packets are received.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Listener {
    /// The name of the tunnels' device in the datapath, such as `vxlan_sys_4789` or `gre_sys`.
    pub name: String,
    /// The datapath's number of that device.
    pub number: u32,
    /// Number of tunnel ports that use it.
    pub users: usize,
    /// The IP protocol: 17 for UDP, 47 for GRE.
    pub protocol: u8,
    /// The destination port of UDP or TCP; 0 for other protocols.
    pub port: u16,
}

/// Returns the output of `tnl/ports/show`, with `-v` if `verbose`: then for each address of
/// `devices`, which in Open vSwitch are those that some route leads by ([`Routes::leads_by`]), and
/// only the first of listeners for the same packets.
pub fn listeners(listeners: &[Listener], devices: &[Device], verbose: bool) -> String {
    let mut text = String::from("Listening ports:\n");
    if !verbose {
        for Listener {
            name,
            number,
            users,
            ..
        } in listeners
        {
            let _ = writeln!(text, "{name} ({number}) ref_cnt={users}");
        }
        return text;
    }
    let takes = |listener: &Listener| (listener.protocol, listener.port);
    let first = |at: usize| {
        let wanted = takes(&listeners[at]);
        listeners.iter().position(|other| takes(other) == wanted) == Some(at)
    };
    // Those with ports first, IPv4 before IPv6: Open vSwitch's order is undefined.
    for (with_port, v4) in [(true, true), (true, false), (false, true), (false, false)] {
        for (device, address) in devices.iter().flat_map(|device| {
            let own = device.addresses.iter().map(|(own, _)| own);
            own.map(move |own| (device, *own))
        }) {
            for (at, listener) in listeners.iter().enumerate() {
                let shown = (listener.port != 0, address.is_ipv4()) == (with_port, v4);
                if shown && first(at) {
                    text.push_str(&taken(listener, device.mac, address));
                }
            }
        }
    }
    text
}

/// Returns the packets that a listener receives at an address, as a flow of the datapath.
fn taken(listener: &Listener, [a, b, c, d, e, f]: Mac, address: IpAddr) -> String {
    let Listener {
        name,
        number,
        protocol,
        port,
        ..
    } = listener;
    let (kind, ip) = match address {
        IpAddr::V4(_) => ("0x0800", "ipv4"),
        IpAddr::V6(_) => ("0x86dd", "ipv6"),
    };
    let transport = match protocol {
        6 => format!(",tcp(dst={port})"),
        17 => format!(",udp(dst={port})"),
        132 => format!(",sctp(dst={port})"),
        _ => String::new(),
    };
    let address = Shown(address);
    format!(
        "{name} ({number}) : eth(dst={a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{f:02x}),\
         eth_type({kind}),{ip}(dst={address},proto={protocol},frag=no){transport}\n"
    )
}

/// An address as `inet_ntop` formats it. Unlike the standard library, it writes the last 32 bits in
/// dotted form if the 96 bits before them are zero, unless only the last 16 bits are set.
pub struct Shown(pub IpAddr);

impl fmt::Display for Shown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.to_canonical() {
            IpAddr::V4(address) => address.fmt(f),
            IpAddr::V6(address) => match u32::try_from(u128::from(address)) {
                Ok(low) if low > 0xffff => write!(f, "::{}", Ipv4Addr::from(low)),
                _ => address.fmt(f),
            },
        }
    }
}

fn nth<'a>(arguments: &[&'a str], at: usize) -> &'a str {
    arguments.get(at).copied().unwrap_or_default()
}

/// Returns the mark that may follow a destination.
fn second_mark(arguments: &[&str]) -> Result<u32, CommandError> {
    match arguments.get(1) {
        Some(mark) => parse_mark(mark).ok_or(CommandError::Mark),
        None => Ok(0),
    }
}

/// Parses `pkt_mark=MARK`, where MARK is a number as in C. Anything after it is ignored.
fn parse_mark(text: &str) -> Option<u32> {
    let number = text.strip_prefix("pkt_mark=")?;
    Some(Scanner(number).number(Base::AsWritten)? as u32)
}

/// Parses `IP`, `IP/PLEN` or `IP/MASK`; all bits of the address are kept. IPv4-mapped IPv6
/// addresses stay IPv6, with the length to match.
fn parse_prefix(text: &str) -> Option<(IpAddr, u8)> {
    if let Some((address, len)) = whole(text, Scanner::prefix_v4) {
        return Some((address.into(), len));
    }
    let Some((address, behind)) = text.split_once('/') else {
        return Some((text.parse::<Ipv6Addr>().ok()?.into(), 128));
    };
    let address: Ipv6Addr = address.parse().ok()?;
    let len = match behind.parse::<Ipv6Addr>() {
        Ok(mask) => prefix_len(mask.into(), 128)?,
        Err(_) => {
            let len = whole(behind, |scanner| scanner.number(Base::Decimal))? as i32;
            u8::try_from(len).ok().filter(|len| *len <= 128)?
        }
    };
    Some((address.into(), len))
}

/// Returns the number of set bits in a mask of `width` bits; None unless they are its first ones.
fn prefix_len(mask: u128, width: u32) -> Option<u8> {
    let ones = mask.count_ones();
    let zeros = mask.trailing_zeros().min(width);
    (ones + zeros == width).then_some(ones as u8)
}

/// Returns what `scan` reads, if that is the whole text.
fn whole<'a, T>(text: &'a str, scan: impl FnOnce(&mut Scanner<'a>) -> Option<T>) -> Option<T> {
    let mut scanner = Scanner(text);
    let found = scan(&mut scanner)?;
    scanner.0.is_empty().then_some(found)
}

/// The base of a number, as in `scanf`'s conversions `%d`, `%x` and `%i`.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Base {
    Decimal,
    Hexadecimal,
    AsWritten,
}

/// The rest of a text that is read like Open vSwitch's `ovs_scan` does.
#[derive(Clone, Copy)]
struct Scanner<'a>(&'a str);

impl Scanner<'_> {
    fn literal(&mut self, wanted: char) -> Option<()> {
        self.0 = self.0.strip_prefix(wanted)?;
        Some(())
    }

    /// Reads a number after optional white space and sign. Excess high bits are lost, as in Open
    /// vSwitch.
    fn number(&mut self, base: Base) -> Option<u64> {
        let mut rest = self
            .0
            .trim_start_matches([' ', '\t', '\n', '\r', '\x0b', '\x0c']);
        let negative = rest.starts_with('-');
        rest = rest.strip_prefix(['-', '+']).unwrap_or(rest);
        let mut radix = match base {
            Base::Decimal => 10,
            Base::Hexadecimal => 16,
            Base::AsWritten if rest.starts_with('0') => 8,
            Base::AsWritten => 10,
        };
        let hexadecimal = rest.strip_prefix("0x").or(rest.strip_prefix("0X"));
        if let Some(digits) = hexadecimal.filter(|_| base != Base::Decimal) {
            (radix, rest) = (16, digits);
        }
        let is_digit = |letter: char| letter.is_digit(radix);
        let digits = rest.find(|letter| !is_digit(letter)).unwrap_or(rest.len());
        if digits == 0 {
            return None;
        }
        let (digits, behind) = rest.split_at(digits);
        let value = digits.chars().fold(0u64, |value, digit| {
            let digit = digit.to_digit(radix).unwrap_or(0);
            value.wrapping_mul(radix.into()).wrapping_add(digit.into())
        });
        self.0 = behind;
        Some(if negative {
            value.wrapping_neg()
        } else {
            value
        })
    }

    fn ipv4(&mut self) -> Option<Ipv4Addr> {
        let mut octets = [0; 4];
        for (at, octet) in octets.iter_mut().enumerate() {
            if at > 0 {
                self.literal('.')?;
            }
            *octet = self.number(Base::Decimal)? as u8;
        }
        Some(octets.into())
    }

    fn prefix_v4(&mut self) -> Option<(Ipv4Addr, u8)> {
        let address = self.ipv4()?;
        if self.0.is_empty() {
            return Some((address, 32));
        }
        self.literal('/')?;
        let len = match whole(self.0, Scanner::ipv4) {
            Some(mask) => {
                self.0 = "";
                prefix_len(u32::from(mask).into(), 32)?
            }
            None => {
                let len = self.number(Base::Decimal)? as i32;
                u8::try_from(len).ok().filter(|len| *len <= 32)?
            }
        };
        Some((address, len))
    }

    fn mac(&mut self) -> Option<Mac> {
        let mut mac = Mac::default();
        for (at, byte) in mac.iter_mut().enumerate() {
            if at > 0 {
                self.literal(':')?;
            }
            *byte = self.number(Base::Hexadecimal)? as u8;
        }
        Some(mac)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    fn br0() -> Vec<(IpAddr, u8)> {
        vec![(ip("10.1.1.1"), 24), (ip("fc00::1"), 64)]
    }

    /// Returns the answer of `ovs/route/add`.
    fn add(routes: &mut Routes, arguments: &[&str]) -> String {
        let added = parse_route_add(arguments).and_then(|new| match new.device.as_str() {
            "br0" => new.route(&br0()),
            _ => Err(CommandError::Insert),
        });
        match added {
            Ok(route) => {
                routes.insert(route);
                "OK".into()
            }
            Err(refusal) => refusal.to_string(),
        }
    }

    // All answers here are those of Open vSwitch 3.1.0.
    #[test]
    fn routes_are_added_and_shown_as_by_open_vswitch() {
        let mut routes = Routes::new();
        const BAD: &str = "Invalid parameters";
        const SOURCE: &str = "Error while inserting route.";
        const GATEWAY: &str = "Invalid pkt_mark or gateway";
        for (arguments, answer) in [
            (&["10.1.1.0/24", "br0"] as &[&str], "OK"),
            (&["10.1.2.5/24", "br0"], SOURCE),
            (&["10.1.2.5/24", "br0", "10.1.1.9"], "OK"),
            (&["10.1.2.0/24", "br0", "10.1.1.9", "pkt_mark=7"], "OK"),
            (&["10.1.2.0/24", "br0", "pkt_mark=0x10"], SOURCE),
            (&["10.1.1.0/24", "br0", "pkt_mark=0x10"], "OK"),
            (&["10.1.1.0/24", "br0", "pkt_mark=-1"], "OK"),
            (&["10.1.1.0/24", "br0", "pkt_mark=010"], "OK"),
            (&["10.1.1.0/24", "br0", "pkt_mark=5junk"], "OK"),
            (
                &["10.1.1.0/24", "br0", "pkt_mark=99999999999999999999"],
                "OK",
            ),
            (&["10.1.1.0/24", "br0", "pkt_mark= 5"], "OK"),
            (&["10.1.1.0/24", "br0", "pkt_mark="], GATEWAY),
            (&["10.1.1.0/24", "br0", "pkt_mark=0x"], GATEWAY),
            (&["10.1.1.0/24", "br0", "10.1.1.9x"], GATEWAY),
            (
                &["10.1.1.0/24", "br0", "10.1.1.9", "10.1.1.8"],
                "Invalid pkt_mark",
            ),
            (&["10.1.1.0/24", "br0", "fc00::9"], GATEWAY),
            (&["10.1.1.0/24", "br0", "src=10.1.1.1"], GATEWAY),
            (&["fc00::/64", "br0"], "OK"),
            (&["fc01::/64", "br0", "fc00::9"], "OK"),
            (
                &["fc01::/64", "br0", "10.1.1.9"],
                "Invalid pkt_mark or IPv6 gateway",
            ),
            (&["::/0", "br0", "fc00::9"], "OK"),
            (&["0.0.0.0/0", "br0", "10.1.1.9"], "OK"),
            (&["10.1.1.77", "br0"], "OK"),
            (&["fc00::77", "br0"], "OK"),
            (&["10.1.1.0/255.255.255.0", "br0"], "OK"),
            (&["10.1.1.0/255.0.255.0", "br0"], BAD),
            (&["10.1.1.0/33", "br0"], BAD),
            (&["10.1.1.0/-1", "br0"], BAD),
            (&["10.1.1.0/0x18", "br0"], BAD),
            (&["10.1.1.0/24x", "br0"], BAD),
            (&["10.1.1.0/", "br0"], BAD),
            (&["10.1.1/24", "br0"], BAD),
            (&["10.1.1.0/+24", "br0"], "OK"),
            (&["10.1.1.0/ 24", "br0"], "OK"),
            (&[" 10.1.1.0/24", "br0"], "OK"),
            (&["010.1.1.0/24", "br0"], "OK"),
            (&["300.1.1.0/24", "br0"], SOURCE),
            (&["junk", "br0"], BAD),
            (&["fc00::/129", "br0"], BAD),
            (&["fc00::1%lo", "br0"], BAD),
            (&["fc00::/64x", "br0"], BAD),
            (&["fc00::/ffff::", "br0"], "OK"),
            (&["::ffff:10.1.1.0/120", "br0"], "OK"),
            (&["10.1.1.0/24", "nosuch"], SOURCE),
            (&[], BAD),
        ] {
            assert_eq!(add(&mut routes, arguments), answer, "{arguments:?}");
        }
        assert_eq!(
            super::routes(&routes),
            "Route Table:\n\
             User: 10.1.1.77/32 dev br0 SRC 10.1.1.1\n\
             User: fc00::77/128 dev br0 SRC fc00::1\n\
             User: 10.1.1.0/24 dev br0 SRC 10.1.1.1\n\
             User: 10.1.2.0/24 dev br0 GW 10.1.1.9 SRC 10.1.1.1\n\
             User: 10.1.2.0/24 MARK 7 dev br0 GW 10.1.1.9 SRC 10.1.1.1\n\
             User: 10.1.1.0/24 MARK 16 dev br0 SRC 10.1.1.1\n\
             User: 10.1.1.0/24 MARK 4294967295 dev br0 SRC 10.1.1.1\n\
             User: 10.1.1.0/24 MARK 8 dev br0 SRC 10.1.1.1\n\
             User: 10.1.1.0/24 MARK 5 dev br0 SRC 10.1.1.1\n\
             User: 10.1.1.0/24 MARK 1661992959 dev br0 SRC 10.1.1.1\n\
             User: 0.0.0.0/0 dev br0 GW 10.1.1.9 SRC 10.1.1.1\n\
             User: fc00::/64 dev br0 SRC fc00::1\n\
             User: fc01::/64 dev br0 GW fc00::9 SRC fc00::1\n\
             User: fc00::/16 dev br0 SRC fc00::1\n\
             User: ::/0 dev br0 GW fc00::9 SRC fc00::1\n"
        );
        let look = |arguments: &[&str]| {
            let found = parse_route_lookup(arguments)
                .and_then(|(to, mark)| lookup(routes.lookup(to, mark)));
            found.unwrap_or_else(|refusal| refusal.to_string())
        };
        let direct = "src 10.1.1.1\ngateway ::\ndev br0\n";
        assert_eq!(look(&["10.1.1.5"]), direct);
        assert_eq!(look(&["10.1.1.0/32"]), direct);
        assert_eq!(look(&["10.1.1.5", "pkt_mark=16"]), direct);
        assert_eq!(
            look(&["10.9.9.9"]),
            "src 10.1.1.1\ngateway 10.1.1.9\ndev br0\n"
        );
        assert_eq!(
            look(&["fc09::1"]),
            "src fc00::1\ngateway fc00::9\ndev br0\n"
        );
        assert_eq!(look(&["10.1.2.5", "pkt_mark=8"]), "Not found");
        assert_eq!(look(&["10.1.1.5", "16"]), "Invalid pkt_mark");
        assert_eq!(look(&["10.1.1.0/24"]), BAD);
        assert_eq!(look(&["junk"]), BAD);
        assert_eq!(
            parse_route_del(&["10.1.1.0/24", "16"]),
            Err(CommandError::Mark)
        );
        assert_eq!(parse_route_del(&["junk"]), Err(CommandError::Parameters));
        let (prefix, len, mark) = parse_route_del(&["10.1.1.9/24", "pkt_mark=0x10"]).unwrap();
        assert!(routes.remove_user(prefix, len, mark));
        let (prefix, len, mark) = parse_route_del(&["::ffff:10.1.1.0/120"]).unwrap();
        assert!(routes.remove_user(prefix, len, mark));
    }

    #[test]
    fn the_kernels_routes_are_shown_between() {
        let kernel = |prefix: &str, len, gateway: Option<&str>, local| Route {
            prefix: ip(prefix),
            len,
            device: "k0".into(),
            gateway: gateway.map(ip),
            source: ip("10.9.1.1"),
            mark: 0,
            local,
            user: false,
        };
        let mut routes = Routes::new();
        add(&mut routes, &["239.0.0.0/8", "br0", "10.1.1.9"]);
        add(&mut routes, &["10.1.1.0/24", "br0"]);
        add(&mut routes, &["0.0.0.0/0", "br0", "10.1.1.9"]);
        routes.replace_kernel(vec![
            kernel("10.9.1.1", 32, None, true),
            kernel("127.0.0.0", 8, None, true),
            kernel("0.0.0.0", 0, Some("10.9.1.254"), false),
            kernel("10.9.1.0", 24, None, false),
            kernel("10.10.0.0", 16, Some("10.9.1.254"), false),
        ]);
        assert_eq!(
            super::routes(&routes),
            "Route Table:\n\
             Cached: 10.9.1.1/32 dev k0 SRC 10.9.1.1 local\n\
             User: 239.0.0.0/8 dev br0 GW 10.1.1.9 SRC 10.1.1.1\n\
             Cached: 127.0.0.0/8 dev k0 SRC 10.9.1.1 local\n\
             User: 10.1.1.0/24 dev br0 SRC 10.1.1.1\n\
             Cached: 10.9.1.0/24 dev k0 SRC 10.9.1.1\n\
             User: 0.0.0.0/0 dev br0 GW 10.1.1.9 SRC 10.1.1.1\n\
             Cached: 0.0.0.0/0 dev k0 GW 10.9.1.254 SRC 10.9.1.1\n\
             Cached: 10.10.0.0/16 dev k0 GW 10.9.1.254 SRC 10.9.1.1\n"
        );
    }

    #[test]
    fn neighbours_are_set_and_shown_as_by_open_vswitch() {
        let mut all = Neighbours::new();
        let mut set =
            |name: &str, address: &str, mac: &str| match parse_neighbour_set(&[name, address, mac])
            {
                Ok((device, address, mac)) => {
                    all.set(&device, address, mac, 5);
                    "OK".into()
                }
                Err(refusal) => refusal.to_string(),
            };
        let mac = "aa:bb:cc:dd:ee:03";
        for address in [
            "10.1.1",
            "10.1.1.1.1",
            "localhost",
            "fc00::1%lo",
            " fc00::1",
            "010.1.1.1",
            "300.1.1.1",
        ] {
            assert_eq!(set("br0", address, mac), "bad IP address", "{address}");
        }
        for mac in [
            "junk",
            "aa:bb:cc:dd:ee:01:02",
            "aa:bb:cc:dd:ee:01junk",
            "1:2:3:4:5:6 ",
            "1-2-3-4-5-6",
            ":::::",
        ] {
            assert_eq!(set("br0", "10.1.1.9", mac), "bad MAC address", "{mac}");
        }
        for (name, address, mac) in [
            ("br0", "10.1.1.9", "01:00:5e:00:00:01"),
            ("averyveryverylongbridgename", "10.1.1.9", mac),
            ("nosuchbridge", "10.1.1.9", mac),
            ("br0", "10.1.1.12", "00:00:00:00:00:00"),
            ("br0", "10.1.1.10", "AA:bb:cc:dd:ee:1"),
            ("br0", "fc00::9", "aa:bb:cc:dd:ee:02"),
            ("br0", "::ffff:10.1.1.77", "AAbb:0x1:+2: 3:-1:07"),
            ("br0", "64:ff9b::1", mac),
            ("br0", "1:0:2:3:4:5:6:7", mac),
            ("br0", "::1:2", mac),
            ("br0", "::12", mac),
            ("br0", "::ffff:0:1", mac),
        ] {
            assert_eq!(set(name, address, mac), "OK");
        }
        let rows = |rows: &[&str]| {
            let head = "IP                                            MAC                 Bridge\n\
                 ==========================================================================\n";
            rows.iter()
                .fold(head.to_owned(), |text, row| text + row + "\n")
        };
        assert_eq!(
            neighbours(&all, 5),
            rows(&[
                "10.1.1.9                                      aa:bb:cc:dd:ee:03   averyveryverylo",
                "0.0.0.1                                       aa:bb:cc:dd:ee:03   br0",
                "10.1.1.9                                      01:00:5e:00:00:01   br0",
                "10.1.1.10                                     aa:bb:cc:dd:ee:01   br0",
                "10.1.1.12                                     00:00:00:00:00:00   br0",
                "10.1.1.77                                     bb:01:02:03:ff:07   br0",
                "::12                                          aa:bb:cc:dd:ee:03   br0",
                "::0.1.0.2                                     aa:bb:cc:dd:ee:03   br0",
                "1:0:2:3:4:5:6:7                               aa:bb:cc:dd:ee:03   br0",
                "64:ff9b::1                                    aa:bb:cc:dd:ee:03   br0",
                "fc00::9                                       aa:bb:cc:dd:ee:02   br0",
                "10.1.1.9                                      aa:bb:cc:dd:ee:03   nosuchbridge",
            ])
        );
        all.flush(Some("br0"));
        all.flush(Some("averyveryverylo"));
        assert_eq!(
            neighbours(&all, 900_005),
            rows(&[&("10.1.1.9".to_owned()
                + &" ".repeat(38)
                + "aa:bb:cc:dd:ee:03   nosuchbridge STALE")])
        );
        assert_eq!(ageing(&all), "900");
        assert_eq!(neighbours(&Neighbours::new(), 0), rows(&[]));
    }

    #[test]
    fn listeners_are_shown_as_by_open_vswitch() {
        let listener = |name: &str, number, protocol, port| Listener {
            name: name.into(),
            number,
            users: 1,
            protocol,
            port,
        };
        let all = [
            listener("vxlan_sys_4789", 4789, 17, 4789),
            listener("gre_sys", 2, 47, 0),
            listener("erspan_sys", 3, 47, 0),
            listener("stt_sys_7471", 7471, 6, 7471),
        ];
        let device = Device {
            name: "br0".into(),
            id: 0,
            mac: [0xaa, 0x55, 0xaa, 0x55, 0, 0],
            addresses: br0(),
            mtu: 1500,
        };
        assert_eq!(
            listeners(&all, &[], false),
            "Listening ports:\n\
             vxlan_sys_4789 (4789) ref_cnt=1\n\
             gre_sys (2) ref_cnt=1\n\
             erspan_sys (3) ref_cnt=1\n\
             stt_sys_7471 (7471) ref_cnt=1\n"
        );
        assert_eq!(listeners(&all, &[], true), "Listening ports:\n");
        let lines = [
            "vxlan_sys_4789 (4789) : V4,proto=17,frag=no),udp(dst=4789)",
            "stt_sys_7471 (7471) : V4,proto=6,frag=no),tcp(dst=7471)",
            "vxlan_sys_4789 (4789) : V6,proto=17,frag=no),udp(dst=4789)",
            "stt_sys_7471 (7471) : V6,proto=6,frag=no),tcp(dst=7471)",
            "gre_sys (2) : V4,proto=47,frag=no)",
            "gre_sys (2) : V6,proto=47,frag=no)",
        ];
        let v4 = "eth(dst=aa:55:aa:55:00:00),eth_type(0x0800),ipv4(dst=10.1.1.1";
        let v6 = "eth(dst=aa:55:aa:55:00:00),eth_type(0x86dd),ipv6(dst=fc00::1";
        let wanted = format!("Listening ports:\n{}\n", lines.join("\n"));
        assert_eq!(
            listeners(&all, &[device], true),
            wanted.replace("V4", v4).replace("V6", v6)
        );
    }

    #[test]
    fn ageings_are_read_as_by_open_vswitch() {
        for (text, seconds) in [
            ("3600", 3600),
            ("5x", 5),
            ("5.5", 5),
            (" 5", 5),
            ("+5", 5),
            ("05", 5),
            ("4294967396", 100),
        ] {
            assert_eq!(parse_ageing(text), Ok(seconds * 1000), "{text}");
        }
        for text in ["0", "3601", "x", "", "-1", "0x5", "99999999999999999999999"] {
            assert_eq!(parse_ageing(text), Err(CommandError::Ageing), "{text}");
        }
    }
}
