//! Actions and instructions, version-neutral.
//!
//! Where versions have different actions for one effect (`mod_nw_src` in 1.0, `set_field` in 1.3,
//! `load` in Nicira's), each form has a variant, so that a rule is reported in the words in which
//! it came, as Open vSwitch does.

use crate::model::conntrack::{Ct, Encap, Nat};
use crate::model::port::PortNo;
use crate::model::steering::{Fcf, Target};
use packet::{Field, Value};

/// Fields that only `set_field` writes, and before 1.5: Open vSwitch and its tools only read them.
/// From 1.5 on `ovs-ofctl` sends a `load` in the form of a set-field, and it gives up on a whole
/// dump at the first rule that writes one of these.
pub const READ_ONLY_IN_TOOLS: [Field; 3] = [Field::EthType, Field::IpProto, Field::MplsBos];

/// Part of a field: `field[start..start + bits]`, counted from the field's lowest bit.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Subfield {
    /// Which field.
    pub field: Field,
    /// The lowest bit.
    pub start: u16,
    /// How many bits, at least 1.
    pub bits: u16,
}

/// An action. Names follow the OpenFlow 1.3 and Nicira extension names.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Action {
    /// Send to a port, also a reserved one. `max_len`: bytes sent to a controller, 0xffff for all.
    Output {
        /// Where.
        port: PortNo,
        /// Bytes for a controller.
        max_len: u16,
    },
    /// Nicira: send to the port whose number the field holds.
    OutputReg {
        /// Where the number lies.
        source: Subfield,
        /// Bytes for a controller.
        max_len: u16,
    },
    /// Nicira: send at most `max_len` bytes of the packet to a port.
    OutputTrunc {
        /// Where.
        port: PortNo,
        /// Bytes to keep.
        max_len: u32,
    },
    /// Nicira `controller(...)`.
    Controller {
        /// Bytes to send.
        max_len: u16,
        /// Controllers with this id (NXT_SET_CONTROLLER_ID) receive it.
        controller_id: u16,
        /// `OFPR_*` reason.
        reason: u8,
        /// Bytes handed back in the packet-in.
        userdata: Vec<u8>,
        /// Whether the walk pauses until NXT_RESUME.
        pause: bool,
        /// Meter for packet-ins.
        meter_id: Option<u32>,
    },
    /// 1.0: send through a queue.
    Enqueue {
        /// Where.
        port: PortNo,
        /// The queue.
        queue: u32,
    },
    /// Queue for outputs that follow.
    SetQueue(u32),
    /// Nicira: back to the default queue.
    PopQueue,
    /// `OFPAT_SET_FIELD`, or Nicira `set_field` with a mask (`NXAST_REG_LOAD2`). Value and mask as
    /// they lie in the key.
    SetField {
        /// Which field.
        field: Field,
        /// The bits to write.
        value: Value,
        /// Which bits to write; all of the field for a plain set-field.
        mask: Value,
    },
    /// Nicira `load:value->dst`.
    Load {
        /// Where to.
        dst: Subfield,
        /// The bits, right-aligned.
        value: u64,
    },
    /// Nicira `move:src->dst`, also 1.5 copy_field.
    Move {
        /// From.
        src: Subfield,
        /// To; as many bits.
        dst: Subfield,
    },
    /// 1.0/1.1 `mod_vlan_vid`; in 1.0 a tag is pushed where there is none (`push`).
    SetVlanVid {
        /// The VLAN id, 0-4095.
        vid: u16,
        /// Push a tag where there is none.
        push: bool,
    },
    /// 1.0/1.1 `mod_vlan_pcp`.
    SetVlanPcp {
        /// The priority, 0-7.
        pcp: u8,
        /// Push a tag where there is none.
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
    /// `dec_ttl`, with the ids of the controllers that hear of an expired one (`dec_ttl` without
    /// ids: `[0]`).
    DecTtl(Vec<u16>),
    /// 1.1+ copy TTL inwards.
    CopyTtlIn,
    /// 1.1+ copy TTL outwards.
    CopyTtlOut,
    /// Push an MPLS entry with this Ethertype.
    PushMpls(u16),
    /// Pop the outermost MPLS entry; the Ethertype of what is below.
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
    /// Process in a group.
    Group(u32),
    /// 1.5 meter action.
    Meter(u32),
    /// Nicira: look up in another table, then go on. `in_port`/`table` None: the current one.
    Resubmit {
        /// Port number to match with.
        in_port: Option<PortNo>,
        /// Table to look in.
        table: Option<u8>,
        /// With connection-tracking fields swapped (`resubmit(,t,ct)`).
        with_ct_orig: bool,
    },
    /// Nicira `set_tunnel` / `set_tunnel64`.
    SetTunnel {
        /// The tunnel id.
        id: u64,
        /// Came as the 64-bit form.
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
        /// This clause.
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
    /// Nicira `check_pkt_larger(max_len)->dst`: writes 1 where the packet is longer, else 0.
    CheckPktLarger {
        /// Bytes, Ethernet header included.
        max_len: u16,
        /// One bit.
        dst: Subfield,
    },
    /// Nicira `sample(...)`.
    Sample(Sample),
    /// Nicira `fin_timeout(...)`: shorter timeouts for the rule once a TCP connection ends.
    FinTimeout {
        /// Seconds, 0 for no change.
        idle: u16,
        /// Seconds, 0 for no change.
        hard: u16,
    },
    /// Nicira `delete_field:tun_metadataN`.
    DeleteField(Field),
    /// Nicira `ct(...)`.
    Ct(Box<Ct>),
    /// Nicira `ct_clear`: the packet is untracked again.
    CtClear,
    /// Nicira `nat(...)`, only inside [`Action::Ct`].
    Nat(Box<Nat>),
    /// Nicira `encap(...)` (1.3).
    Encap(Box<Encap>),
    /// Nicira `decap(...)` (1.3): take the outermost header off; what the packet is then
    /// (`OXM_OF_PACKET_TYPE`).
    Decap(u32),
    /// Nicira `dec_nsh_ttl` (1.3).
    DecNshTtl,
    /// Sluice `set_fcf(...)`: the flow control field of the frame, or of the tunnel's outer header,
    /// where the port that sends it writes one.
    SetFcf(Fcf),
    /// Sluice: the packet is a message for a steering table. Only in packet-outs, alone.
    Steer(Target),
}

/// `NXAST_LEARN`, `NXAST_LEARN2`: the rule that a packet is to create.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Learn {
    /// Seconds without a packet, 0 for never.
    pub idle_timeout: u16,
    /// Seconds, 0 for never.
    pub hard_timeout: u16,
    /// Precedence.
    pub priority: u16,
    /// Cookie.
    pub cookie: u64,
    /// Tell when the rule goes.
    pub send_flow_rem: bool,
    /// Delete rules with this table and cookie when the learning rule goes.
    pub delete_learned: bool,
    /// Table of the new rule, 0 to 253.
    pub table: u8,
    /// Idle timeout after FIN or RST, 0 for no change.
    pub fin_idle_timeout: u16,
    /// Hard timeout after FIN or RST, 0 for no change.
    pub fin_hard_timeout: u16,
    /// Most rules with this table and cookie, 0 for no limit (`NXAST_LEARN2`).
    pub limit: u32,
    /// One bit that tells whether the rule could be added (`NXAST_LEARN2`).
    pub result: Option<Subfield>,
    /// What it matches and does, in order.
    pub specs: Vec<LearnSpec>,
}

/// One element of a [`Learn`].
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct LearnSpec {
    /// Where the bits come from.
    pub source: LearnSource,
    /// What they are for.
    pub target: LearnTarget,
}

/// Where bits of a learned rule come from.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum LearnSource {
    /// The packet.
    Field(Subfield),
    /// The action: a number, right-aligned, and its width in bits (1 to 128).
    Immediate {
        /// The number.
        value: u128,
        /// Its width.
        bits: u16,
    },
}

/// What bits of a learned rule are for.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum LearnTarget {
    /// The rule matches them.
    Match(Subfield),
    /// The rule loads them.
    Load(Subfield),
    /// The rule outputs to the port of this number.
    Output,
}

/// Which fields choose among ways (`enum nx_hash_fields`).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u16)]
pub enum HashFields {
    /// Ethernet source.
    EthSrc = 0,
    /// Both directions of a connection alike: Ethernet, VLAN, Ethertype, IP, ports.
    SymmetricL4 = 1,
    /// Likewise, of IP and TCP or SCTP only.
    SymmetricL3L4 = 2,
    /// Likewise, and UDP.
    SymmetricL3L4Udp = 3,
    /// IP source.
    NwSrc = 4,
    /// IP destination.
    NwDst = 5,
    /// IP addresses, both directions alike.
    SymmetricL3 = 6,
}

/// How a way is chosen by `multipath` (`enum nx_mp_algorithm`).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u16)]
pub enum MultipathAlgorithm {
    /// Hash modulo the number of ways.
    ModuloN = 0,
    /// A contiguous part of the hash's range for each.
    HashThreshold = 1,
    /// Highest random weight.
    Hrw = 2,
    /// The hash, halved until it fits.
    IterHash = 3,
}

/// `NXAST_MULTIPATH`.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Multipath {
    /// What is hashed.
    pub fields: HashFields,
    /// Universal hash parameter.
    pub basis: u16,
    /// How a way is chosen.
    pub algorithm: MultipathAlgorithm,
    /// Number of ways less 1.
    pub max_link: u16,
    /// Argument of the algorithm.
    pub arg: u32,
    /// Where the way's number goes.
    pub dst: Subfield,
}

/// `NXAST_BUNDLE`, `NXAST_BUNDLE_LOAD`.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Bundle {
    /// What is hashed.
    pub fields: HashFields,
    /// Universal hash parameter.
    pub basis: u16,
    /// Whether the first live port is taken (`active_backup`), else one by highest random weight
    /// (`hrw`).
    pub active_backup: bool,
    /// The ports.
    pub members: Vec<PortNo>,
    /// Where the port's number goes (`bundle_load`); None to output there.
    pub dst: Option<Subfield>,
}

/// `NXAST_SAMPLE`, 2 and 3.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Sample {
    /// Of 65535 packets, how many are sampled; at least 1.
    pub probability: u16,
    /// `Flow_Sample_Collector_Set` id.
    pub collector_set: u32,
    /// IPFIX observation domain.
    pub domain: u32,
    /// IPFIX observation point.
    pub point: u32,
    /// The port that is reported, [`crate::port::ANY`] for none.
    pub port: PortNo,
    /// 0 not said, 1 ingress, 2 egress.
    pub direction: u8,
}

/// An instruction. In 1.0, and for Nicira's actions, a rule has only [`Instruction::ApplyActions`].
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Instruction {
    /// Rate limit (1.3, 1.4).
    Meter(u32),
    /// Execute now.
    ApplyActions(Vec<Action>),
    /// Empty the action set.
    ClearActions,
    /// Merge into the action set.
    WriteActions(Vec<Action>),
    /// `metadata = metadata & !mask | value & mask`.
    WriteMetadata {
        /// Bits.
        value: u64,
        /// Which bits.
        mask: u64,
    },
    /// Go on in a later table.
    GotoTable(u8),
    /// 1.5: tell the controller when the rule's statistics pass thresholds.
    StatTrigger(Box<StatTrigger>),
}

/// `OFPIT_STAT_TRIGGER` (OpenFlow 1.5.1 section 7.2.5.7).
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct StatTrigger {
    /// Trigger at every multiple of the thresholds.
    pub periodic: bool,
    /// Trigger for the first threshold passed only.
    pub only_first: bool,
    /// Nanoseconds since the rule was added.
    pub duration_ns: Option<u64>,
    /// Nanoseconds without a packet.
    pub idle_ns: Option<u64>,
    /// Packets.
    pub packets: Option<u64>,
    /// Bytes.
    pub bytes: Option<u64>,
}

impl Action {
    /// Whether it may stand in an action set, as Open vSwitch decides it (1.3.5 section 5.10).
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
