//! Names of streams. Parsing looks nothing up and opens nothing, so a bad name is an error before
//! anything happens.

use std::ffi::CString;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::path::PathBuf;

/// Error for a text that names no stream.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{name}: {reason}")]
pub struct NameError {
    name: String,
    reason: &'static str,
}

/// Where to connect to.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Active {
    /// TCP to a host (address or name, without brackets) and port.
    Tcp(String, u16),
    /// TLS over TCP.
    Ssl(String, u16),
    /// A socket in the file system.
    Unix(PathBuf),
}

/// Where to listen.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Passive {
    /// TCP at an address and port; for port 0 the system chooses one.
    Tcp(SocketAddr),
    /// TLS over TCP.
    Ssl(SocketAddr),
    /// A socket in the file system.
    Unix(PathBuf),
}

impl Active {
    /// Reads `tcp:HOST[:PORT]`, `ssl:HOST[:PORT]` or `unix:PATH`. IPv6 addresses are in brackets.
    pub fn parse(text: &str, default_port: u16) -> Result<Self, NameError> {
        let bad = |reason| NameError {
            name: text.to_string(),
            reason,
        };
        let (method, rest) = text
            .split_once(':')
            .ok_or_else(|| bad("no colon after the method"))?;
        let address = || host_and_port(rest, default_port).map_err(bad);
        match method {
            "tcp" => address().map(|(host, port)| Active::Tcp(host, port)),
            "ssl" => address().map(|(host, port)| Active::Ssl(host, port)),
            "unix" if rest.is_empty() => Err(bad("the path is missing")),
            "unix" => Ok(Active::Unix(rest.into())),
            _ => Err(bad("not an active connection method (tcp:, ssl:, unix:)")),
        }
    }
}

impl Passive {
    /// Reads `ptcp:[PORT][:IP]`, `pssl:[PORT][:IP]` or `punix:PATH`. Without an address, listens on
    /// all IPv4 addresses.
    pub fn parse(text: &str, default_port: u16) -> Result<Self, NameError> {
        let bad = |reason| NameError {
            name: text.to_string(),
            reason,
        };
        let (method, rest) = text
            .split_once(':')
            .ok_or_else(|| bad("no colon after the method"))?;
        let address = || port_and_address(rest, default_port).map_err(bad);
        match method {
            "ptcp" => address().map(Passive::Tcp),
            "pssl" => address().map(Passive::Ssl),
            "punix" if rest.is_empty() => Err(bad("the path is missing")),
            "punix" => Ok(Passive::Unix(rest.into())),
            _ => Err(bad(
                "not a passive connection method (ptcp:, pssl:, punix:)",
            )),
        }
    }

    /// Returns whether `text` begins like the name of a listening stream.
    pub fn is_name(text: &str) -> bool {
        ["ptcp:", "pssl:", "punix:"]
            .iter()
            .any(|method| text.starts_with(method))
    }
}

fn port(text: &str) -> Result<u16, &'static str> {
    text.parse().map_err(|_| "bad port number")
}

fn host_and_port(text: &str, default_port: u16) -> Result<(String, u16), &'static str> {
    let (host, rest) = match text.strip_prefix('[') {
        Some(inside) => {
            let (host, rest) = inside.split_once(']').ok_or("the bracket is not closed")?;
            let literal = host.split_once('%').map_or(host, |(address, _)| address);
            literal
                .parse::<Ipv6Addr>()
                .map_err(|_| "bad IPv6 address in brackets")?;
            if !rest.is_empty() && !rest.starts_with(':') {
                return Err("unexpected text after the brackets");
            }
            (host, rest.strip_prefix(':'))
        }
        None => match text.split_once(':') {
            Some((host, rest)) => (host, Some(rest)),
            None => (text, None),
        },
    };
    if host.is_empty() {
        return Err("the host is missing");
    }
    if host.contains('\0') {
        return Err("bad host name");
    }
    match rest {
        // Two colons without brackets: an IPv6 address with an ambiguous port.
        Some(rest) if rest.contains(':') => Err("an IPv6 address must stand in brackets"),
        None | Some("") => Ok((host.to_string(), default_port)),
        Some(digits) => match port(digits)? {
            0 => Err("port 0 cannot be connected to"),
            port => Ok((host.to_string(), port)),
        },
    }
}

fn port_and_address(text: &str, default_port: u16) -> Result<SocketAddr, &'static str> {
    let (digits, address) = match text.split_once(':') {
        Some((digits, address)) => (digits, address),
        None => (text, ""),
    };
    let port = if digits.is_empty() {
        default_port
    } else {
        port(digits)?
    };
    if address.is_empty() {
        return Ok((Ipv4Addr::UNSPECIFIED, port).into());
    }
    let inside = address
        .strip_prefix('[')
        .map(|inside| inside.strip_suffix(']').ok_or("the bracket is not closed"));
    let literal = inside.transpose()?.unwrap_or(address);
    if let Some((literal, scope)) = literal.split_once('%') {
        let ip: Ipv6Addr = literal.parse().map_err(|_| "bad IP address")?;
        return Ok(SocketAddrV6::new(ip, port, 0, scope_number(scope)?).into());
    }
    literal
        .parse::<IpAddr>()
        .map(|ip| (ip, port).into())
        .map_err(|_| "bad IP address")
}

/// Returns the index of the interface in a link-local address.
fn scope_number(scope: &str) -> Result<u32, &'static str> {
    if let Ok(number) = scope.parse() {
        return Ok(number);
    }
    let name = CString::new(scope).map_err(|_| "bad interface name")?;
    // SAFETY: the argument is a NUL-terminated string; the call keeps no reference.
    match unsafe { libc::if_nametoindex(name.as_ptr()) } {
        0 => Err("no such interface"),
        number => Ok(number),
    }
}

impl fmt::Display for Active {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (method, host, port) = match self {
            Active::Unix(path) => return write!(formatter, "unix:{}", path.display()),
            Active::Tcp(host, port) => ("tcp", host, port),
            Active::Ssl(host, port) => ("ssl", host, port),
        };
        if host.contains(':') {
            write!(formatter, "{method}:[{host}]:{port}")
        } else {
            write!(formatter, "{method}:{host}:{port}")
        }
    }
}

impl fmt::Display for Passive {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (method, address) = match self {
            Passive::Unix(path) => return write!(formatter, "punix:{}", path.display()),
            Passive::Tcp(address) => ("ptcp", address),
            Passive::Ssl(address) => ("pssl", address),
        };
        let port = address.port();
        match address {
            SocketAddr::V4(address) => write!(formatter, "{method}:{port}:{}", address.ip()),
            SocketAddr::V6(address) if address.scope_id() != 0 => {
                write!(
                    formatter,
                    "{method}:{port}:[{}%{}]",
                    address.ip(),
                    address.scope_id()
                )
            }
            SocketAddr::V6(address) => write!(formatter, "{method}:{port}:[{}]", address.ip()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn active_names() {
        let active = |text| Active::parse(text, 6653);
        assert_eq!(
            active("tcp:1.2.3.4"),
            Ok(Active::Tcp("1.2.3.4".into(), 6653))
        );
        assert_eq!(active("tcp:[::1]:80"), Ok(Active::Tcp("::1".into(), 80)));
        assert_eq!(
            active("ssl:[fe80::1%eth0]"),
            Ok(Active::Ssl("fe80::1%eth0".into(), 6653))
        );
        assert_eq!(active("tcp:host:"), Ok(Active::Tcp("host".into(), 6653)));
        assert_eq!(active("unix:/a:b"), Ok(Active::Unix("/a:b".into())));
        for bad in [
            "",
            "tcp",
            "tcp:",
            "tcp::1",
            "tcp:::1",
            "tcp:h:0",
            "tcp:h:65536",
            "tcp:h:x",
            "tcp:[::1",
            "tcp:[::1]x",
            "tcp:[h]",
            "unix:",
            "ptcp:",
            "udp:h",
            "tcp:h:1:2",
        ] {
            assert!(active(bad).is_err(), "{bad}");
        }
        assert_eq!(
            active("tcp:h:x").unwrap_err().to_string(),
            "tcp:h:x: bad port number"
        );
    }

    #[test]
    fn passive_names() {
        let passive = |text| Passive::parse(text, 6653);
        let tcp = |address: &str| Ok(Passive::Tcp(address.parse().unwrap()));
        assert_eq!(passive("ptcp:"), tcp("0.0.0.0:6653"));
        assert_eq!(passive("ptcp:0:127.0.0.1"), tcp("127.0.0.1:0"));
        assert_eq!(passive("ptcp::127.0.0.1"), tcp("127.0.0.1:6653"));
        assert_eq!(passive("ptcp:80:[::1]"), tcp("[::1]:80"));
        assert_eq!(passive("ptcp:80:::1"), tcp("[::1]:80"));
        assert_eq!(
            passive("pssl:1:[fe80::1%3]"),
            Ok(Passive::Ssl("[fe80::1%3]:1".parse().unwrap()))
        );
        assert_eq!(passive("punix:x"), Ok(Passive::Unix("x".into())));
        for bad in [
            "ptcp",
            "ptcp:x",
            "ptcp:1:host",
            "ptcp:1:[::1",
            "punix:",
            "tcp:1",
            "ptcp:1:fe80::1%none",
        ] {
            assert!(passive(bad).is_err(), "{bad}");
        }
    }

    proptest! {
        #[test]
        fn names_read_back_what_they_print(text in "p?(tcp|ssl|unix):(\\[?[0-9a-f:.%]{0,12}\\]?|\\PC{0,8})(:[0-9]{0,6})?") {
            if let Ok(active) = Active::parse(&text, 1) {
                prop_assert_eq!(Active::parse(&active.to_string(), 2), Ok(active));
            }
            if let Ok(passive) = Passive::parse(&text, 1) {
                prop_assert_eq!(Passive::parse(&passive.to_string(), 2), Ok(passive));
            }
        }
    }
}
