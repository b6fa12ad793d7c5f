//! The paper's experiments (V), and some of our own, as scenarios.
//!
//! The paper does not state the cost of a packet or the rate of its sender. Both are derived from
//! its results:
//!
//! - *Offered*: at 64 bytes nothing is lost and a flow has 19.7 Mbit/s (table VII): 38,000
//!   datagrams per second. At 1400 bytes `default` delivers 1000 Mbit/s of two flows and loses
//!   34.5% (figure 7, table VI): 68,000 per second each. At 8192 bytes a priority flow has 844.8
//!   Mbit/s (table VII), which is 12,900 per second after losses; 14,000 are offered.
//! - *Packets*: a guest cuts 8192 bytes into six fragments, each of which is too long for the wire
//!   once it is encapsulated and encrypted, so twelve packets. That agrees with table V, where 90%
//!   of them have the fragments' hash, and where `proposal` counts 143,000 softirqs per second for
//!   each flow.
//! - *Cost*: one core delivers 1000 Mbit/s at 1400 bytes, so a datagram takes 11.2 us: a fixed part
//!   ([`DATAGRAM_NS`]) and a part per byte ([`BYTE_NS`]). At 8192 bytes a core delivers at most
//!   15,000 datagrams per second, 66 us each, which leaves [`FRAGMENT_NS`] per fragment.
//! - What a virtual machine spends on a datagram is a guess: 4 us at 1400 bytes.
//!
//! Virtual machine n runs on core n - 1. Fragments after the first go to core 0, as in table V.

use super::scenario::{Background, Change, FlowSpec, Mode, Moving, Scenario, VmSpec};
use crate::cores::{CoreId, VmId};
use crate::handover::Limits;
use crate::random::mix;

/// Time per datagram that arrives in one packet, without its bytes, ns.
pub const DATAGRAM_NS: f64 = 4_700.0;
/// Time per fragment, ns.
pub const FRAGMENT_NS: f64 = 2_350.0;
/// Time per decrypted byte of a datagram, ns.
pub const BYTE_NS: f64 = 4.64;
/// Time per datagram in a virtual machine, ns.
pub const GUEST_NS: f64 = 3_500.0;
/// Time per byte of it there, ns.
pub const GUEST_BYTE_NS: f64 = 0.35;

/// Number of five-tuples that each experiment is repeated with.
pub const DRAWS: u64 = 20;

const SECOND: u64 = 1_000_000_000;

/// The paper's datagram sizes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Size {
    /// 64 bytes.
    Small,
    /// 1400 bytes.
    Medium,
    /// 8192 bytes, in twelve packets.
    Large,
}

/// All sizes.
pub const SIZES: [Size; 3] = [Size::Small, Size::Medium, Size::Large];

impl Size {
    /// Returns the bytes of a datagram.
    pub fn bytes(self) -> u32 {
        match self {
            Size::Small => 64,
            Size::Medium => 1400,
            Size::Large => 8192,
        }
    }

    /// Returns the datagrams per second that each flow offers.
    pub fn rate(self) -> f64 {
        match self {
            Size::Small => 38_000.0,
            Size::Medium => 68_000.0,
            Size::Large => 14_000.0,
        }
    }

    /// Returns the fragments of a datagram.
    pub fn fragments(self) -> u8 {
        if self == Size::Large { 12 } else { 1 }
    }

    /// Returns the time per fragment, ns.
    pub fn fragment_ns(self) -> f64 {
        if self == Size::Large {
            FRAGMENT_NS
        } else {
            DATAGRAM_NS
        }
    }
}

/// The paper's `default`: core 3 processes everything.
pub const DEFAULT: Mode = Mode::Default(CoreId(3));

/// Returns the flow to virtual machine `vm`, 1 to 3, with the five-tuple of a draw.
pub fn flow(size: Size, vm: u16, draw: u64) -> FlowSpec {
    let bytes = f64::from(size.bytes());
    FlowSpec {
        rate: size.rate(),
        bytes: size.bytes(),
        fragments: size.fragments(),
        fragment_ns: size.fragment_ns(),
        datagram_ns: BYTE_NS * bytes,
        guest_ns: GUEST_NS + GUEST_BYTE_NS * bytes,
        vm: Some(VmId(vm)),
        priority: false,
        hash: mix(draw * 16 + u64::from(vm)),
    }
}

fn host(flows: Vec<FlowSpec>, mode: Mode, draw: u64) -> Scenario {
    let vms = (1..=flows.len() as u16).map(|vm| VmSpec {
        id: VmId(vm),
        core: CoreId(vm - 1),
        compute: 0.0,
    });
    Scenario {
        mode,
        vms: vms.collect(),
        flows,
        warm_up_ns: SECOND / 4,
        end_ns: SECOND / 4 + SECOND / 2,
        seed: draw + 1,
        ..Scenario::default()
    }
}

/// Two flows to two virtual machines (V-B; figure 7, tables V and VI).
pub fn two_flows(size: Size, mode: Mode, draw: u64) -> Scenario {
    let flows = (1..=2).map(|vm| flow(size, vm, draw)).collect();
    host(flows, mode, draw)
}

/// Three flows to three virtual machines, the first with priority (V-C; table VII).
pub fn three_flows(size: Size, mode: Mode, draw: u64) -> Scenario {
    let mut flows: Vec<FlowSpec> = (1..=3).map(|vm| flow(size, vm, draw)).collect();
    flows[0].priority = true;
    Scenario {
        // Core 0 runs the first virtual machine; with three of them, only core 3 is left.
        warm_up_ns: SECOND,
        end_ns: SECOND + SECOND / 2,
        ..host(flows, mode, draw)
    }
}

/// When [`priority_switched`] sets the priority bit, ns.
pub const PRIORITY_ON_NS: u64 = 2 * SECOND;
/// When [`priority_switched`] clears the priority bit, ns.
pub const PRIORITY_OFF_NS: u64 = 4 * SECOND;

/// Two flows of 1400 bytes that fit one core together. A third virtual machine leaves only the
/// fourth core free. The first flow has priority for two of six seconds, during which the second
/// must use its virtual machine's core, which is then overloaded (C11).
pub fn priority_switched() -> Scenario {
    let mut flows: Vec<FlowSpec> = (1..=2).map(|vm| flow(Size::Medium, vm, 0)).collect();
    for flow in &mut flows {
        flow.rate = 33_000.0;
        flow.guest_ns = 24_000.0;
    }
    let mut scenario = host(flows, Mode::Adaptive, 0);
    scenario.vms.push(VmSpec {
        id: VmId(3),
        core: CoreId(2),
        compute: 0.5,
    });
    scenario.changes = vec![
        (PRIORITY_ON_NS, Change::Priority(0, true)),
        (PRIORITY_OFF_NS, Change::Priority(0, false)),
    ];
    scenario.warm_up_ns = 0;
    scenario.end_ns = 6 * SECOND;
    scenario
}

/// Flows of 1400 bytes that are moved to random cores, `moves` times per second (C9).
pub fn forced_moves(moving: Moving, moves: f64) -> Scenario {
    let mut flows: Vec<FlowSpec> = (0..3).map(|n| flow(Size::Medium, 1, n)).collect();
    for flow in &mut flows {
        flow.vm = None;
        flow.rate = 30_000.0;
    }
    Scenario {
        moving,
        flows,
        forced_moves: moves,
        end_ns: 2 * SECOND,
        ..Scenario::default()
    }
}

/// Many cores, a quarter of which run virtual machines, many flows and a few heavy ones, and a
/// virtual machine that starts after 1.5 of 3 seconds. `load` is the demand of the many flows, as a
/// share of the cores without virtual machines.
pub fn many(cores: u16, flows: u32, load: f64, mode: Mode) -> Scenario {
    let vm = |number: u16, core: u16| VmSpec {
        id: VmId(number),
        core: CoreId(core),
        compute: 0.3,
    };
    let guests = cores / 4;
    let heavy = (0..8).map(|n| FlowSpec {
        rate: 20_000.0,
        vm: None,
        ..flow(Size::Medium, 1, n)
    });
    Scenario {
        cores,
        mode,
        moving: Moving::Handover(Limits::default()),
        vms: (0..guests).map(|n| vm(n + 1, n)).collect(),
        flows: heavy.collect(),
        background: Background {
            flows,
            load: load * f64::from(cores - guests),
            ramp_ns: SECOND,
        },
        changes: vec![(3 * SECOND / 2, Change::StartVm(vm(guests + 1, guests)))],
        warm_up_ns: SECOND,
        end_ns: 3 * SECOND,
        ..Scenario::default()
    }
}
