//! What the programs and user space share: `bpf/layout.h` in Rust. The sizes are compared when the
//! program is compiled on either side, and with the maps when they are loaded.

use crate::object::Plain;

/// Processors at most: lanes are a square of this, and sets of cores are one word.
pub const CPUS_MAX: usize = 64;
/// Cores of virtual machines in a ranking at most.
pub const OWN_MAX: usize = 256;
/// No core.
pub const NONE: u32 = u32::MAX;
/// Bytes of a key.
pub const KEY_BYTES: usize = 128;
/// Masks of a table.
pub const MASKS_MAX: usize = steer::table::MASKS_MAX;

/// Declares structures that both sides share, which are plain data.
macro_rules! shared {
    ($($(#[$doc:meta])* $name:ident ($size:expr) { $($(#[$field_doc:meta])* $field:ident: $kind:ty,)* })*) => {
        $(
            $(#[$doc])*
            #[repr(C)]
            #[derive(Clone, Copy, Debug)]
            pub struct $name { $($(#[$field_doc])* pub $field: $kind,)* }
            const _: () = assert!(size_of::<$name>() == $size);
            // SAFETY: the structure is made of integers and has no padding: its fields fill it.
            unsafe impl Plain for $name {}
            const _: () = assert!($size == 0 $(+ size_of::<$kind>())*);
        )*
    };
}

shared! {
    /// An entry's place in the map of entries: masked key and mask.
    EntryKey (136) {
        /// The mask's slot.
        mask: u32,
        /// Zero.
        zero: u32,
        /// The masked key.
        key: [u8; KEY_BYTES],
    }
    /// A mask.
    Mask (128) {
        /// Its bits.
        bits: [u8; KEY_BYTES],
    }
    /// What the program has to know of an entry.
    Entry (32) {
        /// Its number; lower ones were added first.
        id: u64,
        /// The slot of its own choice and its counters.
        slot: u32,
        /// Load of a new flow, millionths.
        expected: u32,
        /// The core of [`TARGET_CORE`].
        core: u32,
        /// Higher wins.
        precedence: u16,
        /// Virtual machine, if `has_vm`.
        vm: u16,
        /// Whether `vm` is known.
        has_vm: u8,
        /// The priority bit.
        priority: u8,
        /// [`TARGET_CORE`], [`TARGET_ENTRY`] or [`TARGET_FLOW`].
        target: u8,
        /// Whether some flows have choices of their own.
        overrides: u8,
        /// Zero.
        zero: u32,
    }
    /// Names a flow's choice.
    FlowKey (16) {
        /// The entry's number.
        entry: u64,
        /// The flow's hash.
        flow: u64,
    }
    /// A choice of a core, and an entry's counters.
    Slot (128) {
        /// [`SLOT_LIVE`] and so on.
        state: u32,
        /// The core, or [`NONE`].
        core: u32,
        /// The core where it is to move, or [`NONE`].
        wanted: u32,
        /// Why this core: [`BASIS_STAYED`] and so on.
        basis: u32,
        /// The entry's number.
        entry: u64,
        /// The flow's hash.
        flow: u64,
        /// Last packet, ns.
        used_ns: u64,
        /// Last choice or move, ns.
        chosen_ns: u64,
        /// Packets that followed this choice.
        packets: u64,
        /// Their bytes.
        bytes: u64,
        /// Packets that matched the entry.
        all_packets: u64,
        /// Their bytes.
        all_bytes: u64,
        /// The last of them, ns.
        all_used_ns: u64,
        /// Moves that were made.
        moves: u64,
        /// Packets that went to the old core while a move was waited for.
        kept: u64,
        /// How often a core was chosen.
        chosen: u32,
        /// Load that was expected then.
        load: u32,
        /// The processor that its last packet came to, and whether it went directly.
        last: u32,
        /// Of an entry: how many of its flows have slots.
        flows: u32,
        /// Zeros.
        zero: [u32; 2],
    }
    /// Slots for new flows that are left.
    Room (8) {
        /// How many.
        vacant: u32,
        /// Zero.
        zero: u32,
    }
    /// The way from one receiving processor to one core.
    Lane (128) {
        /// Packets sent.
        sent: u32,
        /// Zeros.
        zero: [u32; 15],
        /// The last packet that has arrived.
        taken: u32,
        /// The last packet of the group before.
        handed: u32,
        /// The last packet that has certainly left the core.
        finished: u32,
        /// Zeros.
        more: [u32; 13],
    }
    /// One processor.
    Core (256) {
        /// Begin of what `ns` lacks; 0 where nothing has been seen.
        since_ns: u64,
        /// Time by [`IDLE`], [`TASK`], [`CPUMAP`], [`SOFTIRQ`], [`IRQ`].
        ns: [u64; 5],
        /// What the current task is.
        running: u32,
        /// Nested interrupts.
        irq_depth: u32,
        /// Whether a softirq runs.
        in_softirq: u32,
        /// Changes begun.
        begun: u32,
        /// Changes ended.
        ended: u32,
        /// Whether receive work waits.
        net_rx_pending: u32,
        /// Its cpumap thread.
        thread: u64,
        /// Whether that waits for packets.
        asleep: u32,
        /// Frames of the current group.
        group_frames: u32,
        /// When its first frame was sent.
        group_ns: u64,
        /// The same of the group before.
        handed_ns: u64,
        /// The first packet that went straight to the stack.
        direct_ns: u64,
        /// Receiving processors whose packets are under way.
        lanes: u64,
        /// Begin of the window of waits.
        wait_begun_ns: u64,
        /// The longest wait in it.
        wait_ns: u64,
        /// The longest of the window before.
        wait_before_ns: u64,
        /// Frames taken from the cpumap.
        frames: u64,
        /// Packets that went straight to the stack.
        direct: u64,
        /// Frames dropped at the cpumap's full queue.
        dropped: u64,
        /// Frames lost in the cpumap's thread.
        lost: u64,
        /// When the newest frame was sent that it has taken.
        newest_ns: u64,
        /// When the current group began.
        group_begun_ns: u64,
        /// Zeros.
        zero: [u64; 8],
    }
    /// A core in a ranking.
    Candidate (8) {
        /// The load that is compared.
        load: u32,
        /// The core.
        core: u32,
    }
    /// A virtual machine's core in a ranking.
    Own (12) {
        /// The virtual machine.
        vm: u32,
        /// The core's load.
        load: u32,
        /// The core.
        core: u32,
    }
    /// `steer::ranking::Rankings` for the program.
    Rankings (4_656) {
        /// It must not be used later, ns.
        usable_until_ns: u64,
        /// Set of cores that priority flows hold.
        held: u64,
        /// Set of cores that run virtual machines.
        vm_cores: u64,
        /// A core is fit below this.
        high: u32,
        /// How many cores may be held.
        held_limit: u32,
        /// Whether all cores are highly loaded.
        all_high: u32,
        /// Length of `normal`.
        normal_count: u32,
        /// Length of `displacing`.
        displacing_count: u32,
        /// Length of `own`.
        own_count: u32,
        /// Load placed, when it was made.
        placed: [u32; CPUS_MAX],
        /// Priority flows placed, when it was made.
        priority: [u32; CPUS_MAX],
        /// Cores without virtual machines.
        normal: [Candidate; CPUS_MAX],
        /// The same, by the load that remains without flows without priority.
        displacing: [Candidate; CPUS_MAX],
        /// Cores of virtual machines.
        own: [Own; OWN_MAX],
    }
    /// What the program has placed on a core, ever.
    Placement (8) {
        /// Load, millionths, wrapping.
        load: u32,
        /// Priority flows, wrapping.
        priority: u32,
    }
    /// A mask in a view.
    ViewMask (8) {
        /// Its slot.
        slot: u32,
        /// The highest precedence of its entries.
        precedence: u32,
    }
    /// Which masks are looked up.
    View (264) {
        /// How many.
        count: u32,
        /// Zero.
        zero: u32,
        /// The highest precedence first.
        masks: [ViewMask; MASKS_MAX],
    }
    /// Constants of the program, and which tables are current.
    Config (608) {
        /// A choice is forgotten after so long without a packet, ns.
        choice_age_ns: u64,
        /// Least gap after which a flow may move, ns.
        least_wait_ns: u64,
        /// For how long waits are remembered, at least, ns.
        wait_window_ns: u64,
        /// Hashes of flows begin with it.
        seed: u64,
        /// Set of cores with a place in the cpumap.
        usable: u64,
        /// Processors.
        cpus: u32,
        /// Slots.
        slots: u32,
        /// The current ranking, 0 or 1.
        ranking: u32,
        /// The current view, 0 or 1.
        view: u32,
        /// Layout of the flow control field.
        layout: u32,
        /// Whether it is believed.
        trusted: u32,
        /// Whether it is taken off.
        strip: u32,
        /// UDP port of VXLAN.
        vxlan_port: u32,
        /// The cpumap's number.
        cpumap_id: u32,
        /// Zero.
        zero: u32,
        /// Masks.
        views: [View; 2],
    }
    /// The last packet of a choice from one receiving processor.
    Ticket (16) {
        /// Where it went.
        core: u32,
        /// Its number in its lane.
        number: u32,
        /// When, ns.
        sent_ns: u64,
    }
    /// A place in the cpumap.
    CpumapValue (8) {
        /// Frames that wait at most.
        queue: u32,
        /// The program that sees them.
        program: i32,
    }
}

/// The entry names a core.
pub const TARGET_CORE: u8 = 0;
/// One core for all its flows.
pub const TARGET_ENTRY: u8 = 1;
/// A core for each flow.
pub const TARGET_FLOW: u8 = 2;

/// The slot is not used.
pub const SLOT_FREE: u32 = 0;
/// It is.
pub const SLOT_LIVE: u32 = 1;
/// It has aged; a packet makes it live again.
pub const SLOT_RETIRING: u32 = 2;
/// It is being taken out of the table.
pub const SLOT_DEAD: u32 = 3;

/// The flow stayed.
pub const BASIS_STAYED: u32 = 0;
/// The least loaded core.
pub const BASIS_LEAST: u32 = 1;
/// A core that others are about to leave.
pub const BASIS_DISPLACING: u32 = 2;
/// Its virtual machine's core.
pub const BASIS_OWN: u32 = 3;
/// The entry names the core.
pub const BASIS_FIXED: u32 = 4;

/// Time with nothing to do.
pub const IDLE: usize = 0;
/// Time of tasks.
pub const TASK: usize = 1;
/// Time of the cpumap's thread.
pub const CPUMAP: usize = 2;
/// Time of softirqs.
pub const SOFTIRQ: usize = 3;
/// Kinds of time.
pub const BUCKETS: usize = 5;
/// Time of interrupts.
pub const IRQ: usize = 4;

/// Names of the program's counters, in the order of `enum counter`, and what they count.
pub const COUNTERS: [(&str, &str); 19] = [
    ("received", "packets that the program has seen"),
    (
        "unparsed",
        "frames without a whole Ethernet header, which stay",
    ),
    ("miss", "packets that no entry matches, which stay"),
    (
        "fcf_miss",
        "packets with a flow control field that no entry matches, which stay",
    ),
    (
        "fcf_ignored",
        "flow control fields that are not believed here",
    ),
    ("stripped", "flow control fields taken off"),
    ("redirected", "packets sent to another core"),
    ("direct", "packets that were on their core already"),
    (
        "core_gone",
        "packets whose core cannot be used now, which stay",
    ),
    ("chosen", "choices of a core"),
    (
        "stayed_old_ranking",
        "choices to stay, because the ranking is too old",
    ),
    (
        "stayed_all_high",
        "choices to stay, because all cores are highly loaded",
    ),
    ("stayed_none_fit", "choices to stay, because no core is fit"),
    (
        "no_room",
        "packets that stay, because their entry has as many flows as there may be",
    ),
    (
        "no_headroom",
        "packets that stay, because their buffer has no headroom",
    ),
    (
        "retired",
        "packets that stay, because their choice was just being forgotten",
    ),
    ("moved", "flows moved to another core, drained"),
    (
        "kept",
        "packets that stay on the old core, because the flow has not drained",
    ),
    (
        "once",
        "packets that stay, because their flow was new where there are many",
    ),
];
