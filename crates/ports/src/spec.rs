//! Specification of a port, and reading it from an Interface row.

use crate::Mac;
use crate::dummy::Target;
use crate::error::Error;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Default number of receive queues of a vhost port.
const VHOST_QUEUES: u16 = 8;

/// Default number of descriptors in a device's queue, as in Open vSwitch.
const DESCRIPTORS: u16 = 2048;

/// A port to open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortSpec {
    /// The port's name; for kernel interfaces also the interface's.
    pub name: String,
    /// Its type.
    pub kind: PortType,
    /// The requested MTU, in bytes; None keeps the device's own (1500 if it has none).
    pub mtu: Option<u16>,
    /// The requested MAC address; None keeps the device's own, or makes one up if it has none.
    pub mac: Option<Mac>,
    /// Number of sending workers; devices get as many queues if they can.
    pub tx_queues: u16,
    /// Directory of the records of TAP devices that outlive the process; None lets them be deleted
    /// with it.
    pub records: Option<PathBuf>,
}

/// Types of ports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PortType {
    /// An existing kernel interface.
    System,
    /// A TAP device, created for this port and deleted with it; see [`PortSpec::records`].
    Tap,
    /// Like `Tap`: the host's end of a bridge.
    Internal,
    /// A DPDK Ethernet device.
    Dpdk(Dpdk),
    /// A guest's socket to connect to, repeatedly.
    VhostClient {
        /// `options:vhost-server-path`.
        path: PathBuf,
        /// Most receive queues, at least 1.
        rx_queues: u16,
    },
    /// A socket for a guest to connect to.
    VhostServer {
        /// Path of the socket.
        path: PathBuf,
        /// Most receive queues, at least 1.
        rx_queues: u16,
    },
    /// An existing kernel interface through AF_XDP.
    AfXdp {
        /// The XDP mode.
        mode: Xdp,
        /// Number of queues, at least 1.
        rx_queues: u16,
    },
    /// A port without a device, for tests.
    Dummy(Dummy),
}

/// Options of a DPDK device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dpdk {
    /// A PCI address, `class=eth,mac=...`, or a virtual device with its arguments.
    pub devargs: String,
    /// Receive queues, at least 1.
    pub rx_queues: u16,
    /// Descriptors in each receive queue.
    pub rx_descriptors: u16,
    /// Descriptors in each transmit queue.
    pub tx_descriptors: u16,
}

impl Dpdk {
    /// Returns the device with Open vSwitch's default options.
    pub fn new(devargs: impl Into<String>) -> Dpdk {
        Dpdk {
            devargs: devargs.into(),
            rx_queues: 1,
            rx_descriptors: DESCRIPTORS,
            tx_descriptors: DESCRIPTORS,
        }
    }
}

/// How AF_XDP attaches to its interface (`options:xdp-mode`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Xdp {
    /// The best mode that works.
    #[default]
    BestEffort,
    /// In the driver; frames may be copied.
    Native,
    /// In the driver, without copies.
    NativeZeroCopy,
    /// In the kernel's generic path.
    Generic,
}

/// Options of a dummy port.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Dummy {
    /// `options:tx_pcap`: file for frames sent.
    pub tx_pcap: Option<PathBuf>,
    /// `options:rxq_pcap`: file for frames received.
    pub rx_pcap: Option<PathBuf>,
    /// `options:stream` or `options:pstream`: the peer that frames go to and come from.
    pub stream: Option<Target>,
}

/// Returns the keys of `Interface.options` that a type reads (including `patch`, which has no
/// device); ports ignore all others. None for an unknown type. Bad values are reported in
/// `Interface.error`.
pub fn options_of(kind: &str) -> Option<&'static [&'static str]> {
    Some(match kind {
        "" | "system" | "tap" | "internal" => &[],
        "patch" => &["peer"],
        "dpdk" => &["dpdk-devargs", "n_rxq", "n_rxq_desc", "n_txq_desc"],
        "dpdkvhostuserclient" => &["vhost-server-path", "n_rxq"],
        "dpdkvhostuser" => &["n_rxq"],
        "afxdp" => &["xdp-mode", "n_rxq"],
        "dummy" | "dummy-internal" | "dummy-pmd" => {
            &["pcap", "tx_pcap", "rxq_pcap", "stream", "pstream"]
        }
        _ => return None,
    })
}

impl PortSpec {
    /// Returns a port with default settings.
    pub fn new(name: impl Into<String>, kind: PortType) -> PortSpec {
        PortSpec {
            name: name.into(),
            kind,
            mtu: None,
            mac: None,
            tx_queues: 1,
            records: None,
        }
    }

    /// Reads `Interface.type` and `Interface.options`; `rundir` is the directory of server sockets.
    /// `patch` is not a device and is unknown here. Options that are not among the type's
    /// [`options_of`] are ignored, as in Open vSwitch.
    pub fn from_row(
        name: &str,
        kind: &str,
        options: &BTreeMap<String, String>,
        rundir: &Path,
    ) -> Result<PortSpec, Error> {
        if name.is_empty() || name.contains('\0') {
            return Err(Error::Option("the interface has no usable name".into()));
        }
        let number = |key: &str, default: u16, most: u16| number(name, options, key, default, most);
        let kind = match kind {
            "" | "system" => PortType::System,
            "tap" => PortType::Tap,
            "internal" => PortType::Internal,
            "dpdk" => {
                let devargs = options
                    .get("dpdk-devargs")
                    .map(|text| text.trim())
                    .unwrap_or_default();
                if devargs.is_empty() {
                    return Err(Error::Option(format!(
                        "'{name}' is missing 'options:dpdk-devargs'. The old 'dpdk<port_id>' names are not supported"
                    )));
                }
                PortType::Dpdk(Dpdk {
                    devargs: devargs.to_string(),
                    rx_queues: number("n_rxq", 1, 1024)?,
                    rx_descriptors: number("n_rxq_desc", DESCRIPTORS, 32768)?,
                    tx_descriptors: number("n_txq_desc", DESCRIPTORS, 32768)?,
                })
            }
            "dpdkvhostuserclient" => {
                let path = options
                    .get("vhost-server-path")
                    .map(String::as_str)
                    .unwrap_or_default();
                if path.is_empty() {
                    return Err(Error::Option(format!(
                        "'{name}' is missing 'options:vhost-server-path'"
                    )));
                }
                PortType::VhostClient {
                    path: path.into(),
                    rx_queues: number("n_rxq", VHOST_QUEUES, 64)?,
                }
            }
            "dpdkvhostuser" => {
                if name.contains('/') {
                    return Err(Error::Option(format!(
                        "\"{name}\" is not a valid name for a vhost-user port: it must not contain '/'"
                    )));
                }
                PortType::VhostServer {
                    path: rundir.join(name),
                    rx_queues: number("n_rxq", VHOST_QUEUES, 64)?,
                }
            }
            "afxdp" => PortType::AfXdp {
                mode: match options.get("xdp-mode").map(String::as_str) {
                    None | Some("best-effort") => Xdp::BestEffort,
                    Some("native") => Xdp::Native,
                    Some("native-with-zerocopy") => Xdp::NativeZeroCopy,
                    Some("generic") => Xdp::Generic,
                    Some(other) => {
                        return Err(Error::Option(format!("{name}: unknown xdp-mode '{other}'")));
                    }
                },
                rx_queues: number("n_rxq", 1, 64)?,
            },
            "dummy" | "dummy-internal" | "dummy-pmd" => {
                let file = |key: &str| options.get(key).or(options.get("pcap")).map(PathBuf::from);
                PortType::Dummy(Dummy {
                    tx_pcap: file("tx_pcap"),
                    rx_pcap: file("rxq_pcap"),
                    stream: stream(options, rundir)?,
                })
            }
            other => {
                return Err(Error::UnknownType {
                    name: name.to_string(),
                    kind: other.to_string(),
                });
            }
        };
        Ok(PortSpec::new(name, kind))
    }
}

/// Reads a count from the options: 1 to `most`, or `default` if the option is missing.
fn number(
    name: &str,
    options: &BTreeMap<String, String>,
    key: &str,
    default: u16,
    most: u16,
) -> Result<u16, Error> {
    let Some(text) = options.get(key) else {
        return Ok(default);
    };
    match text.trim().parse::<u16>() {
        Ok(value) if (1..=most).contains(&value) => Ok(value),
        _ => Err(Error::Option(format!(
            "{name}: options:{key}={text} is not a number from 1 to {most}"
        ))),
    }
}

/// Returns the peer of a dummy.
fn stream(options: &BTreeMap<String, String>, rundir: &Path) -> Result<Option<Target>, Error> {
    let named = [("stream", true), ("pstream", false)].map(|(key, active)| {
        let target = options.get(key).map(|text| Target::parse(text, rundir));
        match target.transpose()? {
            Some(target) if target.is_active() != active => Err(Error::Option(format!(
                "options:{key} has a target of the other kind: stream connects, pstream listens"
            ))),
            target => Ok(target),
        }
    });
    match named {
        [Ok(Some(_)), Ok(Some(_))] => Err(Error::Option(
            "options:stream and options:pstream exclude each other".into(),
        )),
        [active, passive] => Ok(active?.or(passive?)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(kind: &str, options: &[(&str, &str)]) -> Result<PortSpec, Error> {
        let options = options
            .iter()
            .map(|(key, value)| (key.to_string(), value.to_string()))
            .collect();
        PortSpec::from_row("p1", kind, &options, Path::new("/run/x"))
    }

    #[test]
    fn types_and_options_are_read() {
        assert_eq!(row("", &[]).unwrap().kind, PortType::System);
        assert_eq!(
            row("dpdk", &[("dpdk-devargs", "net_null0"), ("n_rxq", "2")])
                .unwrap()
                .kind,
            PortType::Dpdk(Dpdk {
                rx_queues: 2,
                ..Dpdk::new("net_null0")
            })
        );
        assert_eq!(
            row("dpdkvhostuser", &[]).unwrap().kind,
            PortType::VhostServer {
                path: "/run/x/p1".into(),
                rx_queues: 8
            }
        );
    }

    #[test]
    fn no_option_is_read_that_its_type_is_not_said_to_read() {
        let all = [
            ("dpdk-devargs", "a"),
            ("n_rxq", "2"),
            ("n_rxq_desc", "3"),
            ("n_txq_desc", "4"),
            ("vhost-server-path", "/p"),
            ("xdp-mode", "native"),
            ("pcap", "/a"),
            ("tx_pcap", "/b"),
            ("rxq_pcap", "/c"),
            ("peer", "q"),
        ];
        for kind in [
            "system",
            "tap",
            "internal",
            "dpdk",
            "dpdkvhostuserclient",
            "dpdkvhostuser",
            "afxdp",
            "dummy",
        ] {
            let known = options_of(kind).unwrap();
            let some: Vec<_> = all
                .into_iter()
                .filter(|(key, _)| known.contains(key))
                .collect();
            assert_eq!(row(kind, &some), row(kind, &all), "{kind}");
            for key in known {
                let fewer: Vec<_> = some.iter().copied().filter(|(k, _)| k != key).collect();
                // `pcap` sets both files.
                let matters = row(kind, &fewer) != row(kind, &some);
                // A port has at most one of the two streams, see below.
                let apart = ["pcap", "stream", "pstream"].contains(key);
                assert!(matters || apart, "{kind} {key}");
            }
            for key in ["stream", "pstream"] {
                let one = row(kind, &[(key, "unix:/s")]);
                assert_eq!(one != row(kind, &[]), known.contains(&key), "{kind} {key}");
            }
        }
        assert_eq!(options_of("vxlan"), None);
    }

    #[test]
    fn bad_options_are_named() {
        let text = |result: Result<PortSpec, Error>| result.unwrap_err().to_string();
        assert_eq!(
            text(row("bond0", &[])),
            "could not create netdev p1 of unknown type bond0"
        );
        assert!(text(row("dpdk", &[])).contains("options:dpdk-devargs"));
        assert!(text(row("dpdkvhostuserclient", &[])).contains("vhost-server-path"));
        assert!(text(row("dpdk", &[("dpdk-devargs", "a"), ("n_rxq", "0")])).contains("n_rxq=0"));
        assert!(
            text(row("dpdk", &[("dpdk-devargs", "a"), ("n_rxq_desc", "x")]))
                .contains("n_rxq_desc=x")
        );
        assert!(text(row("afxdp", &[("xdp-mode", "fast")])).contains("fast"));
    }

    fn asked(options: &[(&str, &str)]) -> Result<Option<Target>, String> {
        let options = options
            .iter()
            .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
            .collect();
        let spec = PortSpec::from_row("d", "dummy", &options, Path::new("/run"));
        match spec.map_err(|error| error.to_string())?.kind {
            PortType::Dummy(dummy) => Ok(dummy.stream),
            other => Err(format!("{other:?}")),
        }
    }

    #[test]
    fn streams_of_dummies_are_read() {
        assert_eq!(asked(&[]), Ok(None));
        for (key, text, target) in [
            ("stream", "unix:a", Target::Unix("/run/a".into())),
            ("stream", "tcp:h:5", Target::Tcp("h:5".into())),
            ("stream", "tcp:[::1]:5", Target::Tcp("[::1]:5".into())),
            ("pstream", "punix:/x/a", Target::ListenUnix("/x/a".into())),
            ("pstream", "ptcp:5", Target::ListenTcp("0.0.0.0:5".into())),
            ("pstream", "ptcp:5:h", Target::ListenTcp("h:5".into())),
        ] {
            assert_eq!(asked(&[(key, text)]), Ok(Some(target)), "{text}");
        }
        for text in [
            "",
            "unix",
            "unix:",
            "tcp:h",
            "tcp::5",
            "tcp:h:70000",
            "ssl:h:5",
            "punix:a",
        ] {
            assert!(asked(&[("stream", text)]).is_err(), "{text}");
        }
        assert!(asked(&[("pstream", "unix:a")]).is_err());
        assert!(asked(&[("stream", "unix:a"), ("pstream", "punix:b")]).is_err());
    }
}
