//! What to send: the input of `sluice gen`.

use serde::{Deserialize, Serialize};

/// A run of the generator: where frames are sent and received, which, and for how long.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Spec {
    /// Streams, each sent from one port. They are sent in turns by one thread.
    pub streams: Vec<Stream>,
    /// Ports on which frames are received; a port may also be one that sends.
    #[serde(default)]
    pub sinks: Vec<Port>,
    /// Core that the thread is pinned to; any if absent.
    #[serde(default)]
    pub core: Option<usize>,
    /// Seconds that count.
    pub seconds: f64,
    /// Seconds before them that do not.
    #[serde(default)]
    pub warm_up: f64,
    /// Seconds after the last frame in which stragglers are taken.
    #[serde(default = "half_a_second")]
    pub drain: f64,
    /// Seed of everything random.
    #[serde(default)]
    pub seed: u64,
}

fn half_a_second() -> f64 {
    0.5
}

/// A port of the generator.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Port {
    /// A guest's end of a vhost-user socket (virtio-user).
    VirtioUser {
        /// The socket.
        path: String,
        /// Whether the generator listens and the switch connects
        /// (`type=dpdkvhostuserclient`), and not the other way.
        #[serde(default)]
        server: bool,
    },
    /// A network interface of this namespace, by AF_PACKET.
    Interface(String),
    /// A network interface of this namespace, by AF_XDP.
    AfXdp(String),
    /// A shared-memory interface (memif).
    Memif {
        /// The socket.
        path: String,
        /// Whether the generator makes it.
        #[serde(default)]
        server: bool,
    },
    /// Any device that DPDK has, by its devargs: a NIC's PCI address, `net_null0`, `net_ring0`.
    Dpdk(String),
    /// A pcap file. A stream's frames are written to it; a sink writes all frames that the other
    /// sinks receive.
    File(String),
}

/// Frames of one kind from one port.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Stream {
    /// Name in the report.
    #[serde(default)]
    pub name: String,
    /// Where it is sent.
    pub port: Port,
    /// When its frames are sent.
    pub rate: Rate,
    /// Their lengths.
    #[serde(default)]
    pub size: Size,
    /// Their flows.
    #[serde(default)]
    pub flows: Flows,
    /// Their headers.
    #[serde(default)]
    pub headers: Headers,
}

/// When frames are sent.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Rate {
    /// As fast as the port takes them.
    Most,
    /// At equal distances.
    Constant {
        /// Packets per second.
        pps: f64,
    },
    /// A Poisson process.
    Poisson {
        /// Packets per second, on average.
        pps: f64,
    },
    /// Bursts at equal distances, whose frames are scheduled at one time.
    Bursts {
        /// Packets per second, on average.
        pps: f64,
        /// Frames of a burst.
        length: u32,
    },
    /// Constant rates one after the other, the last until the end: frames at equal distances, and
    /// a frame where each step begins. What becomes of each step's frames is told apart.
    Steps(Vec<Step>),
    /// A rate that is switched on and off.
    OnOff {
        /// Packets per second while it is on.
        pps: f64,
        /// Seconds on, mean of an exponential distribution.
        on: f64,
        /// Seconds off, mean of an exponential distribution.
        off: f64,
    },
    /// The frames of a pcap or pcapng file, as they are; sizes, flows and headers are not used.
    /// They carry nothing for measuring: sinks count those that arrive unchanged, without their
    /// latency.
    Replay {
        /// The file.
        file: String,
        /// How often faster than recorded; absent: as recorded.
        #[serde(default)]
        speed: Option<f64>,
        /// Packets per second instead of the recorded times.
        #[serde(default)]
        pps: Option<f64>,
        /// Whether they are sent again and again until the time is over, and not once.
        #[serde(default)]
        repeat: bool,
    },
}

/// A step of a rate.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Step {
    /// When it begins: seconds of the time that counts. That of the first step is 0, and its rate
    /// is that of the time before, too.
    pub from: f64,
    /// Packets per second.
    pub pps: f64,
}

/// Lengths of frames, in bytes without the frame check sequence ("64-byte frames" are 60 here).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Size {
    /// All alike.
    Fixed(u16),
    /// The simple Internet mix: 7 of 60, 4 of 590, 1 of 1514 bytes.
    Imix,
    /// Lengths with weights.
    Mix(Vec<(u16, f64)>),
    /// Each length from the first to the second in turn.
    Sweep(u16, u16),
}

impl Default for Size {
    fn default() -> Self {
        Size::Fixed(60)
    }
}

/// Which flow the next frame belongs to.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Flows {
    /// How many there are.
    pub count: u64,
    /// How the next is chosen.
    #[serde(default)]
    pub order: Order,
    /// What tells them apart; if nothing is named, the source address (`ip_src` or `ipv6_src`).
    #[serde(default)]
    pub by: Vec<Field>,
    /// A set of rules that they are made from, in place of `by`. `count` may be 0: then there are
    /// as many as rules, or as the explosion has, at most 1,048,576.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rules: Option<Rules>,
}

/// A set of rules that flows are made from: a flow from each rule in turn, random in what the rule
/// leaves open of IP addresses, protocol (UDP or TCP) and ports. Ethernet addresses, the VLAN, DSCP
/// and ECN bits, and the tunnel are those of the stream's headers, where a rule does not match
/// them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rules {
    /// The file: a filter set of ClassBench, or rules as `ovs-ofctl dump-flows` prints them
    /// (`traffic::rules` says which matches are understood).
    pub file: String,
    /// Which of these it is; if absent, ClassBench if the first rule begins with `@`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub format: Option<RulesFormat>,
    /// The port of the switch that frames come in by, as rules' `in_port` names it: rules of other
    /// ports are passed over.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub in_port: Option<String>,
    /// Share of the flows that meet no rule (but for those that say nothing of packets), from 0 to
    /// 1.
    #[serde(default)]
    pub miss: f64,
    /// Whether the flows are those of a tuple-space explosion: each differs, in every address and
    /// port that rules match, in one bit from what a rule matches, and meets none.
    #[serde(default)]
    pub explode: bool,
}

/// How a file has its rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RulesFormat {
    /// A filter set of ClassBench.
    Classbench,
    /// Rules of Open vSwitch.
    Openflow,
}

impl Default for Flows {
    fn default() -> Self {
        Flows {
            count: 1,
            order: Order::default(),
            by: Vec::new(),
            rules: None,
        }
    }
}

/// How the next flow is chosen.
#[derive(Clone, Debug, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Order {
    /// One after the other.
    #[default]
    InTurn,
    /// At random, all equally likely.
    Random,
    /// At random, the k-th with a weight of 1/k^s.
    Zipf {
        /// The exponent s.
        s: f64,
    },
    /// In turn, each with several frames in a row: as many as a number of Pareto's distribution,
    /// rounded up, of which the share that is above n is (b/n)^a. So ClassBench's generator of
    /// traces has it: a = 1 with b = 0.0001 for little locality, 0.001 for much.
    Pareto {
        /// The shape a.
        a: f64,
        /// The scale b.
        b: f64,
    },
}

/// A header field that tells flows apart. Where several are named, the first changes fastest.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Field {
    /// Its name as in OpenFlow: `eth_src`, `eth_dst`, `ip_src`, `ip_dst`, `ipv6_src`, `ipv6_dst`,
    /// `udp_src`, `udp_dst`, `tcp_src`, `tcp_dst`, `vlan_vid`.
    pub field: String,
    /// How many values it takes, from that of the headers upwards by `step`; 0: as many as there
    /// are flows.
    #[serde(default)]
    pub values: u64,
    /// Distance of two values.
    #[serde(default = "one")]
    pub step: u64,
}

fn one() -> u64 {
    1
}

/// Headers of a stream's frames. Addresses are text as `ovs-ofctl` writes them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Headers {
    /// Source Ethernet address.
    pub eth_src: String,
    /// Destination Ethernet address.
    pub eth_dst: String,
    /// VLAN ID of an 802.1Q tag.
    pub vlan: Option<u16>,
    /// Source IPv4 or IPv6 address.
    pub ip_src: String,
    /// Destination address, of the same family.
    pub ip_dst: String,
    /// `udp` or `tcp`.
    pub protocol: String,
    /// Source port.
    pub port_src: u16,
    /// Destination port.
    pub port_dst: u16,
    /// DSCP and ECN bits.
    pub tos: u8,
    /// A tunnel around the frame.
    pub tunnel: Option<Tunnel>,
}

impl Default for Headers {
    fn default() -> Self {
        Headers {
            eth_src: "02:00:00:00:00:01".into(),
            eth_dst: "02:00:00:00:00:02".into(),
            vlan: None,
            ip_src: "10.0.0.1".into(),
            ip_dst: "10.0.0.2".into(),
            protocol: "udp".into(),
            port_src: 1024,
            port_dst: 2048,
            tos: 0,
            tunnel: None,
        }
    }
}

/// Outer headers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tunnel {
    /// `vxlan` or `geneve`.
    pub kind: String,
    /// The virtual network identifier.
    pub vni: u32,
    /// Source Ethernet address.
    pub eth_src: String,
    /// Destination Ethernet address.
    pub eth_dst: String,
    /// Source IPv4 address.
    pub ip_src: String,
    /// Destination IPv4 address.
    pub ip_dst: String,
}
