//! Structures shared by the programs and user space: `bpf/layout.h` in Rust. Their sizes are
//! checked when either side is compiled, and against the maps when they are loaded.

use crate::object::Plain;

/// Most processors: the number of lanes is about the square of this, and sets of cores are one
/// word.
pub const CPUS_MAX: usize = 64;
/// Most cores of virtual machines in a ranking.
pub const OWN_MAX: usize = 256;
/// Number for no core.
pub const NONE: u32 = u32::MAX;
/// Bytes of a key.
pub const KEY_BYTES: usize = 128;
/// Most masks of a table.
pub const MASKS_MAX: usize = steer::table::MASKS_MAX;

/// Declares the shared structures, which are plain data.
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
    /// Key of an entry in the map of entries: mask and masked key.
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
    /// An entry, as the program needs it.
    Entry (32) {
        /// Its number; lower ones were added first.
        id: u64,
        /// The slot of its own choice and its counters.
        slot: u32,
        /// Expected load of a new flow, millionths of a core.
        expected: u32,
        /// The core for [`TARGET_CORE`].
        core: u32,
        /// The higher one wins.
        precedence: u16,
        /// Virtual machine, if `has_vm`.
        vm: u16,
        /// Whether `vm` is known.
        has_vm: u8,
        /// The priority bit.
        priority: u8,
        /// [`TARGET_CORE`], [`TARGET_ENTRY`] or [`TARGET_FLOW`].
        target: u8,
        /// Whether some flows have their own choices.
        overrides: u8,
        /// Zero.
        zero: u32,
    }
    /// Key of a flow's choice.
    FlowKey (16) {
        /// The entry's number.
        entry: u64,
        /// The flow's hash.
        flow: u64,
    }
    /// A choice of a core, and an entry's counters.
    Slot (128) {
        /// [`SLOT_LIVE`] etc.
        state: u32,
        /// The core, or [`NONE`].
        core: u32,
        /// The core to which it is to move, or [`NONE`].
        wanted: u32,
        /// Reason for this core: [`BASIS_STAYED`] etc.
        basis: u32,
        /// The entry's number.
        entry: u64,
        /// The flow's hash.
        flow: u64,
        /// Time of the last packet, ns.
        used_ns: u64,
        /// Time of the last choice or move, ns.
        chosen_ns: u64,
        /// Packets that followed this choice.
        packets: u64,
        /// Their bytes.
        bytes: u64,
        /// Packets that matched the entry.
        all_packets: u64,
        /// Their bytes.
        all_bytes: u64,
        /// Time of the last of them, ns.
        all_used_ns: u64,
        /// Number of moves.
        moves: u64,
        /// Packets that went to the old core while a move was pending.
        kept: u64,
        /// How many times a core was chosen.
        chosen: u32,
        /// Load expected at that time, millionths of a core.
        load: u32,
        /// The processor that received its last packet, and whether the packet went directly.
        last: u32,
        /// Of an entry: how many of its flows have slots.
        flows: u32,
        /// Zeros.
        zero: [u32; 2],
    }
    /// Free slots for new flows.
    Room (8) {
        /// Number of slots.
        vacant: u32,
        /// Zero.
        zero: u32,
    }
    /// The lane from one receiving processor to one core.
    Lane (128) {
        /// Packets sent.
        sent: u32,
        /// Zeros.
        zero: [u32; 15],
        /// The last packet that has arrived.
        taken: u32,
        /// The last packet of the previous group.
        handed: u32,
        /// The last packet that has certainly left the core.
        finished: u32,
        /// Zeros.
        more: [u32; 13],
    }
    /// One processor.
    Core (256) {
        /// Begin of the time that `ns` does not include yet; 0 if nothing has been seen.
        since_ns: u64,
        /// Time by [`IDLE`], [`TASK`], [`CPUMAP`], [`SOFTIRQ`], [`IRQ`].
        ns: [u64; 5],
        /// Kind of the current task.
        running: u32,
        /// Depth of nested interrupts.
        irq_depth: u32,
        /// Whether a softirq is running.
        in_softirq: u32,
        /// Number of changes begun.
        begun: u32,
        /// Number of changes ended.
        ended: u32,
        /// Whether receive work is pending.
        net_rx_pending: u32,
        /// Its cpumap thread.
        thread: u64,
        /// Whether the thread waits for packets.
        asleep: u32,
        /// Frames of the current group.
        group_frames: u32,
        /// When the group's first frame was sent, ns.
        group_ns: u64,
        /// The same for the previous group, ns.
        handed_ns: u64,
        /// When the first packet since the last completion went straight to the stack, ns.
        direct_ns: u64,
        /// Set of receiving processors whose packets have not all finished.
        lanes: u64,
        /// Begin of the window for waits, ns.
        wait_begun_ns: u64,
        /// The longest wait in it, ns.
        wait_ns: u64,
        /// The longest wait in the previous window, ns.
        wait_before_ns: u64,
        /// Frames taken from the cpumap.
        frames: u64,
        /// Packets that went straight to the stack.
        direct: u64,
        /// Frames dropped at the cpumap's full queue.
        dropped: u64,
        /// Frames lost in the cpumap's thread.
        lost: u64,
        /// When the newest frame taken was sent, ns.
        newest_ns: u64,
        /// When the current group began, ns.
        group_begun_ns: u64,
        /// Zeros.
        zero: [u64; 8],
    }
    /// A core in a ranking.
    Candidate (8) {
        /// The load to compare, millionths of a core.
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
    /// `steer::ranking::Rankings` in the program's form.
    Rankings (4_656) {
        /// Time until which it may be used, ns.
        usable_until_ns: u64,
        /// Set of cores held by priority flows.
        held: u64,
        /// Set of cores that run virtual machines.
        vm_cores: u64,
        /// Load below which a core is fit.
        high: u32,
        /// Most cores that may be held.
        held_limit: u32,
        /// Whether all cores are highly loaded.
        all_high: u32,
        /// Length of `normal`.
        normal_count: u32,
        /// Length of `displacing`.
        displacing_count: u32,
        /// Length of `own`.
        own_count: u32,
        /// Load placed by the time it was made.
        placed: [u32; CPUS_MAX],
        /// Priority flows placed by the time it was made.
        priority: [u32; CPUS_MAX],
        /// Cores without virtual machines.
        normal: [Candidate; CPUS_MAX],
        /// The same cores, by their load without that of flows without priority.
        displacing: [Candidate; CPUS_MAX],
        /// Cores of virtual machines.
        own: [Own; OWN_MAX],
    }
    /// All that the program has ever placed on a core.
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
    /// The masks to look up.
    View (264) {
        /// Number of masks.
        count: u32,
        /// Zero.
        zero: u32,
        /// Masks, the highest precedence first.
        masks: [ViewMask; MASKS_MAX],
    }
    /// Constants of the program, and which tables are current.
    Config (608) {
        /// Time without a packet after which a choice is forgotten, ns.
        choice_age_ns: u64,
        /// Shortest gap after which a flow may move, ns.
        least_wait_ns: u64,
        /// Shortest time for which waits are remembered, ns.
        wait_window_ns: u64,
        /// Seed of flows' hashes.
        seed: u64,
        /// Set of cores with a place in the cpumap.
        usable: u64,
        /// Number of processors.
        cpus: u32,
        /// Number of slots.
        slots: u32,
        /// The current ranking, 0 or 1.
        ranking: u32,
        /// The current view, 0 or 1.
        view: u32,
        /// Layout of the flow control field.
        layout: u32,
        /// Whether it is trusted.
        trusted: u32,
        /// Whether it is removed.
        strip: u32,
        /// VXLAN's UDP port.
        vxlan_port: u32,
        /// The cpumap's id.
        cpumap_id: u32,
        /// Zero.
        zero: u32,
        /// Masks.
        views: [View; 2],
    }
    /// The last packet of a choice from one receiving processor.
    Ticket (16) {
        /// The core that it went to.
        core: u32,
        /// Its number in its lane.
        number: u32,
        /// When it was sent, ns.
        sent_ns: u64,
    }
    /// Value of a core in the cpumap.
    CpumapValue (8) {
        /// Most frames in its queue.
        queue: u32,
        /// The program that runs on them.
        program: i32,
    }
}

/// Target of an entry that names a core.
pub const TARGET_CORE: u8 = 0;
/// Target: one core for all flows of the entry.
pub const TARGET_ENTRY: u8 = 1;
/// Target: a core for each flow.
pub const TARGET_FLOW: u8 = 2;

/// State of a slot that is not used.
pub const SLOT_FREE: u32 = 0;
/// State of a slot in use.
pub const SLOT_LIVE: u32 = 1;
/// State of a slot that has aged; a packet makes it live again.
pub const SLOT_RETIRING: u32 = 2;
/// State of a slot that is being removed.
pub const SLOT_DEAD: u32 = 3;

/// Basis of a choice: the flow stayed.
pub const BASIS_STAYED: u32 = 0;
/// Basis: the least loaded core.
pub const BASIS_LEAST: u32 = 1;
/// Basis: a core that flows without priority are about to leave.
pub const BASIS_DISPLACING: u32 = 2;
/// Basis: the virtual machine's core.
pub const BASIS_OWN: u32 = 3;
/// Basis: the entry names the core.
pub const BASIS_FIXED: u32 = 4;

/// Index of idle time.
pub const IDLE: usize = 0;
/// Index of tasks' time.
pub const TASK: usize = 1;
/// Index of the cpumap's thread's time.
pub const CPUMAP: usize = 2;
/// Index of softirqs' time.
pub const SOFTIRQ: usize = 3;
/// Number of kinds of time.
pub const BUCKETS: usize = 5;
/// Index of interrupts' time.
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
