//! The options of tunnel interfaces (Open vSwitch's documentation of the table `Interface`).
//!
//! What Open vSwitch refuses is refused here, with the same messages. So are options that would
//! make packets unreadable for the other end (`exts=gpe`), or send in clear what should be
//! encrypted (IPsec). Any other value that is not obeyed (such as `packet_type=ptap`) is a problem,
//! reported in `status`.

mod error;

pub use self::error::{BadTunnel, Conflict, Defect};

use super::problem::{Options, Problems};
use datapath::tunnel::{Carries, LocalAddress, TunnelKey, TunnelSpec};
use ovsdb::vswitch;
use packet::tunnel::TunnelKind;
use std::collections::HashMap;
use std::fmt;
use std::net::IpAddr;

/// Returns the kind of tunnel of an interface type; none for types that are not tunnels.
pub fn kind_of(interface_type: &str) -> Option<TunnelKind> {
    let mut kinds = TunnelKind::ALL.into_iter();
    kinds.find(|kind| kind.name() == interface_type)
}

/// Returns the interface types that are tunnels.
pub fn types() -> impl Iterator<Item = &'static str> {
    let kinds = TunnelKind::ALL.into_iter();
    kinds
        .filter(|kind| *kind != TunnelKind::Vxlan { gbp: true })
        .map(TunnelKind::name)
}

/// Reads the options of an interface of this kind. The error is for its `error` column.
pub fn read(
    interface: &vswitch::Interface,
    kind: TunnelKind,
    problems: &mut Problems,
) -> Result<TunnelSpec, BadTunnel> {
    read_options(interface, kind, problems).map_err(|defect| BadTunnel {
        name: interface.name.clone(),
        defect,
    })
}

fn read_options(
    interface: &vswitch::Interface,
    kind: TunnelKind,
    problems: &mut Problems,
) -> Result<TunnelSpec, Defect> {
    let name = interface.name.as_str();
    let map = &interface.options;
    let mut options = Options::new("Interface", name, "options", map, problems);
    for key in ["psk", "remote_cert", "remote_name"] {
        if options.text(key).is_some() {
            return Err(Defect::Ipsec(key));
        }
    }
    let kind = extensions(kind, &mut options)?;
    let carries = carries(kind, &mut options)?;
    let (remote, local) = addresses(name, kind, &mut options)?;
    let type_name = kind.name();
    let kind = of_family(kind, remote, local);
    let (in_key, out_key) = keys(kind, &mut options);
    let spec = TunnelSpec {
        dst_port: dst_port(kind, &mut options),
        local,
        in_key,
        out_key,
        tos: tos(&mut options),
        ttl: ttl(&mut options),
        csum: has_checksum(kind) && options.boolean("csum", false),
        df: options.boolean("df_default", true),
        sequence: has_sequence(kind) && options.boolean("seq", false),
        carries,
        mark: mark(&mut options),
        ..TunnelSpec::new(kind, remote)
    };
    for key in map.keys() {
        if !is_read(kind, key) {
            let what = format!("unknown {type_name} argument '{key}', ignoring it");
            options.complain(key, what);
        }
    }
    Ok(spec)
}

fn has_checksum(kind: TunnelKind) -> bool {
    // GTP-U and STT always have one, NVGRE has none.
    !matches!(kind, TunnelKind::Gtpu | TunnelKind::Nvgre | TunnelKind::Stt)
}

fn has_sequence(kind: TunnelKind) -> bool {
    matches!(
        kind,
        TunnelKind::Gre | TunnelKind::Ip6Gre | TunnelKind::Gtpu
    )
}

/// Returns whether a key of `options` is read for this kind.
fn is_read(kind: TunnelKind, key: &str) -> bool {
    match key {
        "remote_ip" | "local_ip" | "key" | "in_key" | "out_key" | "tos" | "ttl" | "df_default"
        | "packet_type" | "egress_pkt_mark" => true,
        "dst_port" => kind.usual_port().is_some(),
        "csum" => has_checksum(kind),
        "seq" => has_sequence(kind),
        "exts" => matches!(kind, TunnelKind::Vxlan { .. }),
        _ => false,
    }
}

/// Reads `exts`: VXLAN's extensions.
fn extensions(kind: TunnelKind, options: &mut Options<'_>) -> Result<TunnelKind, Defect> {
    let (TunnelKind::Vxlan { .. }, Some(text)) = (kind, options.text("exts")) else {
        return Ok(kind);
    };
    let mut gbp = false;
    for extension in text.split(',').filter(|extension| !extension.is_empty()) {
        match extension {
            "gbp" => gbp = true,
            // VXLAN-GPE has another header, so the other end would not understand what is sent
            // without it.
            "gpe" => return Err(Defect::Gpe),
            _ => options.complain(
                "exts",
                format!("unknown extension '{extension}', ignoring it"),
            ),
        }
    }
    Ok(TunnelKind::Vxlan { gbp })
}

/// Reads `packet_type`: what the tunnel carries.
fn carries(kind: TunnelKind, options: &mut Options<'_>) -> Result<Carries, Defect> {
    let usual = match kind {
        TunnelKind::Gtpu => Carries::Packets,
        _ => Carries::Frames,
    };
    let cannot = |carries| {
        Err(Defect::CannotCarry {
            kind: match kind {
                TunnelKind::Vxlan { .. } => "VXLAN (without GPE)",
                _ => kind.name(),
            },
            carries,
        })
    };
    match options.text("packet_type") {
        None => Ok(usual),
        Some("legacy_l2") if kind == TunnelKind::Gtpu => cannot(Carries::Frames),
        Some("legacy_l2") => Ok(Carries::Frames),
        Some("legacy_l3") if matches!(kind, TunnelKind::Gre | TunnelKind::Gtpu) => {
            Ok(Carries::Packets)
        }
        Some("legacy_l3") => cannot(Carries::Packets),
        Some("ptap") => {
            let what = packet_type(usual);
            options.complain(
                "packet_type",
                format!("ptap is not supported yet, using {what}"),
            );
            Ok(usual)
        }
        Some(other) => Err(Defect::PacketType(other.to_owned())),
    }
}

/// Returns the option's word for what a tunnel carries.
pub fn packet_type(carries: Carries) -> &'static str {
    match carries {
        Carries::Frames => "legacy_l2",
        Carries::Packets => "legacy_l3",
    }
}

/// Parses an address in an option. An IPv4-mapped IPv6 address becomes an IPv4 address.
fn address(text: &str) -> Option<IpAddr> {
    text.parse()
        .ok()
        .map(|address: IpAddr| address.to_canonical())
}

/// Reads `remote_ip` and `local_ip`.
fn addresses(
    name: &str,
    kind: TunnelKind,
    options: &mut Options<'_>,
) -> Result<(Option<IpAddr>, LocalAddress), Defect> {
    let kind = kind.name();
    let remote = match options.text("remote_ip") {
        None => return Err(Defect::NoRemote { kind }),
        Some("flow") => None,
        Some(text) => match address(text) {
            None => {
                let name = name.to_owned();
                return Err(Defect::BadRemote { kind, name });
            }
            Some(address) if address.is_multicast() => {
                return Err(Defect::Multicast(text.to_owned()));
            }
            Some(address) if address.is_unspecified() => return Err(Defect::NoRemote { kind }),
            address => address,
        },
    };
    let local = match options.text("local_ip") {
        None => LocalAddress::Any,
        Some("flow") => LocalAddress::Flow,
        Some(text) => match address(text) {
            None => {
                options.complain("local_ip", format!("bad {kind} 'local_ip', ignoring it"));
                LocalAddress::Any
            }
            Some(address) if address.is_unspecified() => LocalAddress::Any,
            Some(address) => LocalAddress::Address(address),
        },
    };
    match (remote, local) {
        (Some(_), LocalAddress::Flow) => Err(Defect::LocalFlow { kind }),
        (Some(remote), LocalAddress::Address(local)) if remote.is_ipv4() != local.is_ipv4() => {
            Err(Defect::Families)
        }
        both => Ok(both),
    }
}

/// Returns the kind of GRE for these addresses: as in Open vSwitch's userspace datapath, either
/// type takes both address families.
fn of_family(kind: TunnelKind, remote: Option<IpAddr>, local: LocalAddress) -> TunnelKind {
    let address = match (remote, local) {
        (Some(address), _) | (None, LocalAddress::Address(address)) => address,
        (None, LocalAddress::Any | LocalAddress::Flow) => return kind,
    };
    match (kind, address) {
        (TunnelKind::Gre | TunnelKind::Ip6Gre, IpAddr::V4(_)) => TunnelKind::Gre,
        (TunnelKind::Gre | TunnelKind::Ip6Gre, IpAddr::V6(_)) => TunnelKind::Ip6Gre,
        (kind, _) => kind,
    }
}

/// Reads `in_key` and `out_key`, or `key` for both.
fn keys(kind: TunnelKind, options: &mut Options<'_>) -> (TunnelKey, TunnelKey) {
    let given = |key| options.text(key).is_some();
    let (has_in, has_out, has_key) = (given("in_key"), given("out_key"), given("key"));
    if has_in && has_out && has_key {
        options.complain("key", "there are in_key and out_key, ignoring it");
    }
    let both = match has_in && has_out {
        true => TunnelKey::None,
        false => key(kind, "key", options),
    };
    let mut one = |name, has| if has { key(kind, name, options) } else { both };
    (one("in_key", has_in), one("out_key", has_out))
}

fn key(kind: TunnelKind, name: &str, options: &mut Options<'_>) -> TunnelKey {
    let bits = kind.key_bits();
    match options.text(name) {
        None => TunnelKey::None,
        Some("flow") => TunnelKey::Flow,
        Some(text) => {
            let number = number(text);
            let what = match number {
                None => format!("\"{text}\" is neither a number nor flow, using 0"),
                Some(number) if number.checked_shr(bits).unwrap_or(0) != 0 => format!(
                    "{text} has more than the {bits} bits of a key: no packet comes in with it, \
                     and its low bits are sent"
                ),
                Some(number) => return TunnelKey::Fixed(number),
            };
            options.complain(name, what);
            TunnelKey::Fixed(number.unwrap_or(0))
        }
    }
}

/// Parses a number as C's functions do: decimal, `0x` and hexadecimal, or `0` and octal.
fn number(text: &str) -> Option<u64> {
    let (digits, radix) = match text.trim().as_bytes() {
        [b'0', b'x' | b'X', digits @ ..] => (digits, 16),
        [b'0', digits @ ..] if !digits.is_empty() => (digits, 8),
        digits => (digits, 10),
    };
    // The standard library would accept a sign.
    if !digits.iter().all(u8::is_ascii_hexdigit) {
        return None;
    }
    u64::from_str_radix(std::str::from_utf8(digits).ok()?, radix).ok()
}

fn dst_port(kind: TunnelKind, options: &mut Options<'_>) -> u16 {
    let Some(usual) = kind.usual_port() else {
        return 0;
    };
    let Some(text) = options.text("dst_port") else {
        return usual;
    };
    match text.trim().parse() {
        Ok(port) if port != 0 => port,
        _ => {
            let what = format!("\"{text}\" is not a port in range 1 to 65535, using {usual}");
            options.complain("dst_port", what);
            usual
        }
    }
}

/// Reads `tos`: the outer DSCP, shifted above the two ECN bits.
fn tos(options: &mut Options<'_>) -> Option<u8> {
    let text = match options.text("tos") {
        None => return Some(0),
        Some("inherit") => return None,
        Some(text) => text,
    };
    let tos = number(text).and_then(|tos| u8::try_from(tos).ok());
    let tos = tos.filter(|tos| tos & 3 == 0);
    if tos.is_none() {
        options.complain("tos", format!("invalid TOS {text}, using 0"));
    }
    tos.or(Some(0))
}

/// Reads `egress_pkt_mark`: the mark for the choice of a route.
fn mark(options: &mut Options<'_>) -> u32 {
    let Some(text) = options.text("egress_pkt_mark") else {
        return 0;
    };
    let mark = number(text).and_then(|mark| u32::try_from(mark).ok());
    if mark.is_none() {
        let what = format!("\"{text}\" is not a number of 32 bits, using 0");
        options.complain("egress_pkt_mark", what);
    }
    mark.unwrap_or(0)
}

fn ttl(options: &mut Options<'_>) -> Option<u8> {
    const USUAL: u8 = 64;
    let text = match options.text("ttl") {
        None => return Some(USUAL),
        Some("inherit") => return None,
        Some(text) => text,
    };
    let ttl = text.trim().parse();
    if ttl.is_err() {
        let what = format!("\"{text}\" is not a number in range 1 to 255, using {USUAL}");
        options.complain("ttl", what);
    }
    ttl.ok().filter(|ttl| *ttl != 0).or(Some(USUAL))
}

/// Formats which packets a tunnel port receives, as Open vSwitch's `ofproto/list-tunnels` does.
pub struct Incoming<'a>(pub &'a TunnelSpec);

impl fmt::Display for Incoming<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Incoming(spec) = self;
        match spec.local {
            LocalAddress::Any => f.write_str("::")?,
            LocalAddress::Flow => f.write_str("flow")?,
            LocalAddress::Address(address) => write!(f, "{address}")?,
        }
        match spec.remote {
            None => f.write_str("->flow")?,
            Some(address) => write!(f, "->{address}")?,
        }
        write!(f, ", key={}", Key(spec.in_key))?;
        write!(f, ", {}", packet_type(spec.carries))
    }
}

/// Formats a key as `ofproto/list-tunnels` does: hexadecimal, 0 for packets without one.
pub struct Key(pub TunnelKey);

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            TunnelKey::None | TunnelKey::Fixed(0) => f.write_str("0"),
            TunnelKey::Flow => f.write_str("flow"),
            TunnelKey::Fixed(key) => write!(f, "{key:#x}"),
        }
    }
}

/// What a tunnel listens on: a port of UDP or TCP, or GRE.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Line {
    Udp(u16),
    Tcp(u16),
    Gre,
}

impl Line {
    fn of(spec: &TunnelSpec) -> Line {
        match (spec.kind, spec.dst_port) {
            (_, 0) => Line::Gre,
            (TunnelKind::Stt, port) => Line::Tcp(port),
            (_, port) => Line::Udp(port),
        }
    }
}

/// What decides whether a tunnel port receives a packet.
#[derive(Clone, PartialEq, Eq, Hash)]
struct Receives {
    line: Line,
    remote: Option<IpAddr>,
    /// None for `flow`; the unspecified address for any.
    local: Option<IpAddr>,
    /// None for `flow`: any key.
    key: Option<u64>,
    frames: bool,
}

impl Receives {
    /// Returns what a port with these options receives.
    fn new(spec: &TunnelSpec) -> Receives {
        Receives {
            line: Line::of(spec),
            remote: spec.remote,
            local: match spec.local {
                LocalAddress::Any => Some(IpAddr::from([0; 16])),
                LocalAddress::Flow => None,
                LocalAddress::Address(address) => Some(address),
            },
            key: match spec.in_key {
                TunnelKey::None => Some(0),
                TunnelKey::Flow => None,
                TunnelKey::Fixed(key) => Some(key),
            },
            frames: spec.carries == Carries::Frames,
        }
    }
}

/// Order in which tunnel ports are checked for conflicts: new ports do not displace existing ones.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Turn {
    /// It exists and its received packets stay the same.
    Same,
    /// It exists and is to receive other packets of the same kind.
    Changed,
    /// It is new.
    New,
}

impl Turn {
    /// Classifies a port that exists with the options `before` and is to have the options `now`.
    pub fn of(before: &TunnelSpec, now: &TunnelSpec) -> Turn {
        let (from, to) = (Receives::new(before), Receives::new(now));
        match before.kind == now.kind {
            true if from == to => Turn::Same,
            true if from.line == to.line => Turn::Changed,
            _ => Turn::New,
        }
    }
}

/// Tunnel ports that do not conflict with each other.
#[derive(Default)]
pub struct Together<'a> {
    by_line: HashMap<Line, (&'a str, TunnelKind)>,
    by_packets: HashMap<Receives, &'a str>,
}

impl<'a> Together<'a> {
    /// Adds a port, unless it would receive the packets of another one, or packets of both kinds
    /// could not be told apart. The error is for the interface's `error` column.
    pub fn add(&mut self, name: &'a str, spec: &TunnelSpec) -> Result<(), Conflict> {
        // GRE over IPv4 and over IPv6 are told apart by the outer header.
        let kind = match spec.kind {
            TunnelKind::Ip6Gre => TunnelKind::Gre,
            kind => kind,
        };
        let line = Line::of(spec);
        let &mut (other, other_kind) = self.by_line.entry(line).or_insert((name, kind));
        match (kind, other_kind, line) {
            _ if kind == other_kind => {}
            (TunnelKind::Vxlan { .. }, TunnelKind::Vxlan { .. }, _) => {
                let name = name.to_owned();
                return Err(Conflict::GroupPolicies { name });
            }
            (_, _, Line::Udp(port)) => {
                return Err(Conflict::UdpPort {
                    name: name.to_owned(),
                    kind: kind.name(),
                    port,
                    other: other.to_owned(),
                    other_kind: other_kind.name(),
                });
            }
            // Only STT is over TCP.
            (_, _, Line::Gre | Line::Tcp(_)) => {
                return Err(Conflict::Alike {
                    name: name.to_owned(),
                    kind: kind.name(),
                    other: other.to_owned(),
                    other_kind: other_kind.name(),
                });
            }
        }
        let other = *self.by_packets.entry(Receives::new(spec)).or_insert(name);
        if other == name {
            return Ok(());
        }
        Err(Conflict::SamePackets {
            name: name.to_owned(),
            other: other.to_owned(),
            spec: Box::new(spec.clone()),
        })
    }
}

#[cfg(test)]
mod tests;
