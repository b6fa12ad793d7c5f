//! Actions and instructions, version-neutral.
//!
//! Where versions have different actions for one effect (`mod_nw_src` in 1.0, `set_field` in 1.3,
//! `load` in Nicira's), each form has a variant, so that, as in Open vSwitch, a rule is reported in
//! the form in which it came.

use crate::model::conntrack::{Ct, Encap, Nat};
use crate::model::port::PortNo;
use crate::model::steering::{Fcf, Target};
use packet::{Field, Value};

/// Fields that only `set_field` writes, and only before 1.5: Open vSwitch and its tools treat them
/// as read-only. From 1.5 on `ovs-ofctl` sends a `load` in the form of a set-field, and it gives up
/// on a whole dump at the first rule that writes one of these.
pub const READ_ONLY_IN_TOOLS: [Field; 3] = [Field::EthType, Field::IpProto, Field::MplsBos];

/// Part of a field: `field[start..start + bits]`, counted from the field's lowest bit.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Subfield {
    /// The field.
    pub field: Field,
    /// The lowest bit.
    pub start: u16,
    /// Number of bits, at least 1.
    pub bits: u16,
}

/// An action. Names follow the OpenFlow 1.3 and Nicira extension names.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Action {
    /// Output to a port, also a reserved one. `max_len`: bytes sent to a controller, 0xffff for
    /// all.
    Output {
        /// The port.
        port: PortNo,
        /// Maximum bytes for a controller.
        max_len: u16,
    },
    /// Nicira: output to the port whose number is in the field.
    OutputReg {
        /// The bits that hold the number.
        source: Subfield,
        /// Maximum bytes for a controller.
        max_len: u16,
    },
    /// Nicira: output at most `max_len` bytes of the packet to a port.
    OutputTrunc {
        /// The port.
        port: PortNo,
        /// Bytes to keep.
        max_len: u32,
    },
    /// Nicira `controller(...)`.
    Controller {
        /// Maximum bytes to send.
        max_len: u16,
        /// The id of the controllers that receive it (NXT_SET_CONTROLLER_ID).
        controller_id: u16,
        /// `OFPR_*` reason.
        reason: u8,
        /// Bytes returned in the packet-in.
        userdata: Vec<u8>,
        /// Whether the walk pauses until NXT_RESUME.
        pause: bool,
        /// Meter that limits these packet-ins.
        meter_id: Option<u32>,
    },
    /// 1.0: output through a queue.
    Enqueue {
        /// The port.
        port: PortNo,
        /// The queue.
        queue: u32,
    },
    /// Sets the queue for later outputs.
    SetQueue(u32),
    /// Nicira: returns to the default queue.
    PopQueue,
    /// `OFPAT_SET_FIELD`, or Nicira `set_field` with a mask (`NXAST_REG_LOAD2`). Value and mask are
    /// in the key's layout.
    SetField {
        /// The field.
        field: Field,
        /// The bits to write.
        value: Value,
        /// The bits to write; the whole field for a plain set-field.
        mask: Value,
    },
    /// Nicira `load:value->dst`.
    Load {
        /// The destination.
        dst: Subfield,
        /// The bits, right-aligned.
        value: u64,
    },
    /// Nicira `move:src->dst`, also 1.5's copy_field.
    Move {
        /// The source.
        src: Subfield,
        /// The destination, of the same width.
        dst: Subfield,
    },
    /// 1.0/1.1 `mod_vlan_vid`; in 1.0 it pushes a tag if there is none (`push`).
    SetVlanVid {
        /// The VLAN id, 0-4095.
        vid: u16,
        /// Whether to push a tag if there is none.
        push: bool,
    },
    /// 1.0/1.1 `mod_vlan_pcp`.
    SetVlanPcp {
        /// The priority, 0-7.
        pcp: u8,
        /// Whether to push a tag if there is none.
        push: bool,
    },
    /// `strip_vlan`, `pop_vlan`.
    PopVlan,
    /// Push a tag with this Ethertype (0x8100, 0x88a8).
    PushVlan(u16),
    /// `mod_dl_src`.
    SetEthSrc([u8; 6]),
    /// `mod_dl_dst`.
    SetEthDst([u8; 6]),
    /// `mod_nw_src`.
    SetIpv4Src(u32),
    /// `mod_nw_dst`.
    SetIpv4Dst(u32),
    /// `mod_nw_tos`: the ToS byte's high six bits, in place.
    SetIpTos(u8),
    /// `mod_nw_ecn`.
    SetIpEcn(u8),
    /// `mod_nw_ttl`.
    SetIpTtl(u8),
    /// `mod_tp_src`.
    SetL4Src(u16),
    /// `mod_tp_dst`.
    SetL4Dst(u16),
    /// `dec_ttl`, with the ids of the controllers that get packets whose TTL has expired (`dec_ttl`
    /// without ids: `[0]`).
    DecTtl(Vec<u16>),
    /// 1.1+ copy TTL inwards.
    CopyTtlIn,
    /// 1.1+ copy TTL outwards.
    CopyTtlOut,
    /// Push an MPLS entry with this Ethertype.
    PushMpls(u16),
    /// Pop the outermost MPLS entry; the Ethertype of what follows it.
    PopMpls(u16),
    /// Set the MPLS TTL.
    SetMplsTtl(u8),
    /// Decrement the MPLS TTL.
    DecMplsTtl,
    /// Set the MPLS label (1.1).
    SetMplsLabel(u32),
    /// Set the MPLS traffic class (1.1).
    SetMplsTc(u8),
    /// Push a PBB header.
    PushPbb(u16),
    /// Pop a PBB header.
    PopPbb,
    /// Send through a group.
    Group(u32),
    /// 1.5 meter action.
    Meter(u32),
    /// Nicira: look up in another table, then continue. None: the current `in_port` or `table`.
    Resubmit {
        /// Ingress port to match.
        in_port: Option<PortNo>,
        /// Table to look up in.
        table: Option<u8>,
        /// Whether to swap in the connection's original direction (`resubmit(,t,ct)`).
        with_ct_orig: bool,
    },
    /// Nicira `set_tunnel` / `set_tunnel64`.
    SetTunnel {
        /// The tunnel id.
        id: u64,
        /// Whether it came in the 64-bit form.
        wide: bool,
    },
    /// Nicira `note`.
    Note(Vec<u8>),
    /// Nicira `exit`.
    Exit,
    /// Nicira `push:src`.
    StackPush(Subfield),
    /// Nicira `pop:dst`.
    StackPop(Subfield),
    /// Nicira `clone(...)`.
    Clone(Vec<Action>),
    /// 1.5/Nicira `conjunction(id, k/n)`; `clause` counts from 0.
    Conjunction {
        /// Conjunction id.
        id: u32,
        /// Number of this clause, from 0.
        clause: u8,
        /// Number of clauses.
        clauses: u8,
    },
    /// Nicira `learn(...)`.
    Learn(Box<Learn>),
    /// Nicira `multipath(...)`.
    Multipath(Box<Multipath>),
    /// Nicira `bundle(...)` and `bundle_load(...)`.
    Bundle(Box<Bundle>),
    /// Nicira `check_pkt_larger(max_len)->dst`: writes 1 if the packet is longer, else 0.
    CheckPktLarger {
        /// Length in bytes, Ethernet header included.
        max_len: u16,
        /// The bit to write.
        dst: Subfield,
    },
    /// Nicira `sample(...)`.
    Sample(Sample),
    /// Nicira `fin_timeout(...)`: shortens the rule's timeouts when a TCP connection ends.
    FinTimeout {
        /// Idle timeout in seconds, 0 for no change.
        idle: u16,
        /// Hard timeout in seconds, 0 for no change.
        hard: u16,
    },
    /// Nicira `delete_field:tun_metadataN`.
    DeleteField(Field),
    /// Nicira `ct(...)`.
    Ct(Box<Ct>),
    /// Nicira `ct_clear`: makes the packet untracked again.
    CtClear,
    /// Nicira `nat(...)`, only inside [`Action::Ct`].
    Nat(Box<Nat>),
    /// Nicira `encap(...)` (1.3).
    Encap(Box<Encap>),
    /// Nicira `decap(...)` (1.3): removes the outermost header. The packet's type afterwards
    /// (`OXM_OF_PACKET_TYPE`).
    Decap(u32),
    /// Nicira `dec_nsh_ttl` (1.3).
    DecNshTtl,
    /// Sluice `set_fcf(...)`: sets the flow control field of the frame, or of the tunnel's outer
    /// header, if the sending port writes one.
    SetFcf(Fcf),
    /// Sluice: the packet is a message for a steering table. Only in packet-outs, and only alone.
    Steer(Target),
}

/// `NXAST_LEARN`, `NXAST_LEARN2`: the rule that a packet creates.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Learn {
    /// Idle timeout in seconds, 0 for none.
    pub idle_timeout: u16,
    /// Hard timeout in seconds, 0 for none.
    pub hard_timeout: u16,
    /// Priority.
    pub priority: u16,
    /// Cookie.
    pub cookie: u64,
    /// Whether a message is sent when the rule is removed.
    pub send_flow_rem: bool,
    /// Whether rules with this table and cookie are deleted with the learning rule.
    pub delete_learned: bool,
    /// Table of the new rule, 0 to 253.
    pub table: u8,
    /// Idle timeout after FIN or RST, 0 for no change.
    pub fin_idle_timeout: u16,
    /// Hard timeout after FIN or RST, 0 for no change.
    pub fin_hard_timeout: u16,
    /// Maximum number of rules with this table and cookie, 0 for no limit (`NXAST_LEARN2`).
    pub limit: u32,
    /// One bit, set to whether the rule could be added (`NXAST_LEARN2`).
    pub result: Option<Subfield>,
    /// The elements of the new rule, in order.
    pub specs: Vec<LearnSpec>,
}

/// One element of a [`Learn`].
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct LearnSpec {
    /// The source of the bits.
    pub source: LearnSource,
    /// The use of the bits.
    pub target: LearnTarget,
}

/// The source of bits of a learned rule.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum LearnSource {
    /// Bits of the packet.
    Field(Subfield),
    /// A constant, right-aligned, and its width in bits (1 to 128).
    Immediate {
        /// The constant.
        value: u128,
        /// Its width.
        bits: u16,
    },
}

/// The use of bits in a learned rule.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum LearnTarget {
    /// The rule matches them in these bits.
    Match(Subfield),
    /// The rule loads them into these bits.
    Load(Subfield),
    /// The rule outputs to the port with this number.
    Output,
}

/// Fields that are hashed to choose a link or port (`enum nx_hash_fields`).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u16)]
pub enum HashFields {
    /// Ethernet source.
    EthSrc = 0,
    /// Symmetric in both directions: Ethernet, VLAN, Ethertype, IP, ports.
    SymmetricL4 = 1,
    /// Symmetric: IP, and TCP or SCTP ports only.
    SymmetricL3L4 = 2,
    /// Symmetric: IP, and TCP, UDP or SCTP ports.
    SymmetricL3L4Udp = 3,
    /// IP source.
    NwSrc = 4,
    /// IP destination.
    NwDst = 5,
    /// Symmetric: IP addresses.
    SymmetricL3 = 6,
}

/// How `multipath` chooses a link (`enum nx_mp_algorithm`).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u16)]
pub enum MultipathAlgorithm {
    /// Hash modulo the number of links.
    ModuloN = 0,
    /// A contiguous part of the hash's range for each link.
    HashThreshold = 1,
    /// Highest random weight.
    Hrw = 2,
    /// The hash, halved until it is a link's number.
    IterHash = 3,
}

/// `NXAST_MULTIPATH`.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Multipath {
    /// The fields to hash.
    pub fields: HashFields,
    /// Universal hash parameter.
    pub basis: u16,
    /// How a link is chosen.
    pub algorithm: MultipathAlgorithm,
    /// Number of links minus 1.
    pub max_link: u16,
    /// Argument of the algorithm.
    pub arg: u32,
    /// Where the link's number is written.
    pub dst: Subfield,
}

/// `NXAST_BUNDLE`, `NXAST_BUNDLE_LOAD`.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Bundle {
    /// The fields to hash.
    pub fields: HashFields,
    /// Universal hash parameter.
    pub basis: u16,
    /// Whether the first live port is chosen (`active_backup`), rather than one by highest random
    /// weight (`hrw`).
    pub active_backup: bool,
    /// The ports.
    pub members: Vec<PortNo>,
    /// Where the port's number is written (`bundle_load`); None to output to the port.
    pub dst: Option<Subfield>,
}

/// `NXAST_SAMPLE`, 2 and 3.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Sample {
    /// Number of packets sampled out of 65535; at least 1.
    pub probability: u16,
    /// `Flow_Sample_Collector_Set` id.
    pub collector_set: u32,
    /// IPFIX observation domain.
    pub domain: u32,
    /// IPFIX observation point.
    pub point: u32,
    /// The port to report, [`crate::port::ANY`] for none.
    pub port: PortNo,
    /// Direction: 0 unspecified, 1 ingress, 2 egress.
    pub direction: u8,
}

/// An instruction. In 1.0, and for Nicira's actions, a rule has only [`Instruction::ApplyActions`].
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Instruction {
    /// Rate limit (1.3, 1.4).
    Meter(u32),
    /// Execute the actions now.
    ApplyActions(Vec<Action>),
    /// Empty the action set.
    ClearActions,
    /// Merge into the action set.
    WriteActions(Vec<Action>),
    /// `metadata = metadata & !mask | value & mask`.
    WriteMetadata {
        /// The bits to write.
        value: u64,
        /// The bits that are written.
        mask: u64,
    },
    /// Continue in a later table.
    GotoTable(u8),
    /// 1.5: send the controller a message when the rule's statistics pass thresholds.
    StatTrigger(Box<StatTrigger>),
}

/// `OFPIT_STAT_TRIGGER` (OpenFlow 1.5.1 section 7.2.5.7).
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct StatTrigger {
    /// Whether it triggers at every multiple of the thresholds.
    pub periodic: bool,
    /// Whether it triggers only for the first threshold passed.
    pub only_first: bool,
    /// Threshold of the rule's age in nanoseconds.
    pub duration_ns: Option<u64>,
    /// Threshold of the time without a packet, in nanoseconds.
    pub idle_ns: Option<u64>,
    /// Threshold of the number of packets.
    pub packets: Option<u64>,
    /// Threshold of the number of bytes.
    pub bytes: Option<u64>,
}

impl Action {
    /// Returns whether an action set may contain it, according to Open vSwitch (1.3.5 section
    /// 5.10).
    pub fn is_allowed_in_set(&self) -> bool {
        !matches!(
            self,
            Action::OutputReg { .. }
                | Action::OutputTrunc { .. }
                | Action::Controller { .. }
                | Action::Enqueue { .. }
                | Action::PopQueue
                | Action::Note(_)
                | Action::Exit
                | Action::StackPush(_)
                | Action::StackPop(_)
                | Action::Clone(_)
                | Action::Conjunction { .. }
                | Action::Meter(_)
                | Action::Learn(_)
                | Action::Multipath(_)
                | Action::Bundle(_)
                | Action::CheckPktLarger { .. }
                | Action::Sample(_)
                | Action::FinTimeout { .. }
                | Action::DeleteField(_)
                | Action::Nat(_)
                | Action::Steer(_)
        )
    }
}
