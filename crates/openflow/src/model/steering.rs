//! Sluice's own extension: capabilities, mode and tables of steering, and reports of virtual
//! machines. docs/protocol-extensions.md has the byte layouts.

use crate::model::action::{Action, Instruction};

/// Sluice's experimenter id: the OUI 02-53-4C, which is locally administered, so that it cannot be
/// assigned to anybody else.
pub const EXPERIMENTER: u32 = 0x0002_534c;

/// The highest VM id of any layout.
pub const VM_ID_MAX: u16 = 4094;
/// Length of a device's name in bytes, including the terminating zero, as in the kernel.
pub const NAME_LEN: usize = 16;
/// Maximum length of a match's text in bytes.
pub const MATCH_MAX: usize = 1024;
/// An unknown core, or one that the switch is to choose.
pub const NO_CORE: u32 = u32::MAX;

/// The position of the flow control field in a frame.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum Layout {
    /// The DSCP: bit 5 is the priority bit, bits 4-0 are the VM id.
    Dscp6 = 1,
    /// The ToS byte: bit 7 is the priority bit, bits 6-0 are the VM id.
    Tos8 = 2,
    /// An 802.1Q tag: the top bit of its PCP is the priority bit, its VLAN id is the VM id.
    Vlan = 3,
}

impl Layout {
    /// All layouts with their names.
    pub const ALL: [(&'static str, Layout); 3] = [
        ("dscp6", Layout::Dscp6),
        ("tos8", Layout::Tos8),
        ("vlan", Layout::Vlan),
    ];

    /// Returns the layout with a wire number.
    pub fn from_wire(number: u8) -> Option<Layout> {
        let mut all = Layout::ALL.into_iter();
        all.find_map(|(_, layout)| (layout as u8 == number).then_some(layout))
    }

    /// Returns its name.
    pub fn name(self) -> &'static str {
        Layout::ALL[self as usize - 1].0
    }

    /// Returns the highest VM id that fits; the lowest is 1.
    pub fn highest_vm(self) -> u16 {
        match self {
            Layout::Dscp6 => 31,
            Layout::Tos8 => 127,
            Layout::Vlan => VM_ID_MAX,
        }
    }
}

/// The contents of the flow control field.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Fcf {
    /// The virtual machine, 1 to [`VM_ID_MAX`].
    pub vm: u16,
    /// The priority bit.
    pub priority: bool,
}

/// Bit of [`Fcf::word`]: the field is present.
const PRESENT: u16 = 0x8000;
/// Bit of [`Fcf::word`]: the priority bit.
const PRIORITY: u16 = 0x4000;

impl Fcf {
    /// Encodes the field as one number, which is never 0.
    pub fn word(self) -> u16 {
        PRESENT | if self.priority { PRIORITY } else { 0 } | self.vm & 0xfff
    }

    /// Decodes [`Fcf::word`]; None for 0.
    pub fn from_word(word: u16) -> Option<Fcf> {
        (word & PRESENT != 0).then_some(Fcf {
            vm: word & 0xfff,
            priority: word & PRIORITY != 0,
        })
    }
}

/// The first bytes of a note that represents `set_fcf` for peers that do not understand
/// experimenter actions: the OUI and the action's number.
const NOTE: [u8; 4] = [0x02, 0x53, 0x4c, 0x01];

/// Returns a `note` that represents `set_fcf`. Open vSwitch's tools give up on a dump that has an
/// unknown experimenter action; notes they print and read back.
pub fn to_note(fcf: Fcf) -> Action {
    let word = fcf.vm | if fcf.priority { 0x8000 } else { 0 };
    let mut bytes = NOTE.to_vec();
    bytes.extend_from_slice(&word.to_be_bytes());
    Action::Note(bytes)
}

/// Decodes a note that represents `set_fcf`; None for other notes. The VM id is not checked.
pub fn from_note(bytes: &[u8]) -> Option<Fcf> {
    let [high, low] = *bytes.strip_prefix(&NOTE)? else {
        return None;
    };
    let word = u16::from_be_bytes([high, low]);
    Some(Fcf {
        vm: word & 0x7fff,
        priority: word & 0x8000 != 0,
    })
}

/// Replaces every `set_fcf` of a list by a note.
pub fn notes_in_actions(actions: &mut [Action]) {
    for action in actions {
        match action {
            Action::SetFcf(fcf) => *action = to_note(*fcf),
            Action::Clone(inner) => notes_in_actions(inner),
            _ => {}
        }
    }
}

/// Returns a rule's instructions with every `set_fcf` replaced by a note; None if there is none.
pub fn with_notes(instructions: &[Instruction]) -> Option<Vec<Instruction>> {
    let sets = |instruction: &Instruction| match instruction {
        Instruction::ApplyActions(actions) | Instruction::WriteActions(actions) => has_fcf(actions),
        _ => false,
    };
    if !instructions.iter().any(sets) {
        return None;
    }
    let mut plain = instructions.to_vec();
    for instruction in &mut plain {
        if let Instruction::ApplyActions(actions) | Instruction::WriteActions(actions) = instruction
        {
            notes_in_actions(actions);
        }
    }
    Some(plain)
}

/// Returns whether a list contains a `set_fcf`.
pub fn has_fcf(actions: &[Action]) -> bool {
    actions.iter().any(|action| match action {
        Action::SetFcf(_) => true,
        Action::Clone(inner) => has_fcf(inner),
        _ => false,
    })
}

/// Which worker processes which flow.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Mode {
    /// The worker that receives it.
    Off = 0,
    /// A worker chosen by a hash.
    Rss = 1,
    /// A less loaded worker if the receiving one is highly loaded.
    Adaptive = 2,
    /// Chosen by the switch: adaptive if that may gain something, otherwise off.
    Auto = 3,
}

impl Mode {
    /// Returns the mode with a wire number.
    pub fn from_wire(number: u8) -> Option<Mode> {
        use Mode::*;
        let mut all = [Off, Rss, Adaptive, Auto].into_iter();
        all.find(|mode| *mode as u8 == number)
    }
}

/// Who has chosen the mode.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum ModeSource {
    /// Nobody: the default applies.
    Default = 0,
    /// A controller.
    Controller = 1,
    /// `other_config:sluice-steering`, which takes precedence over controllers.
    Database = 2,
}

impl ModeSource {
    /// Returns the source with a wire number.
    pub fn from_wire(number: u8) -> Option<ModeSource> {
        use ModeSource::*;
        let mut all = [Default, Controller, Database].into_iter();
        all.find(|source| *source as u8 == number)
    }
}

bitflags::bitflags! {
    /// Steering features of a host.
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
    pub struct Abilities: u32 {
        /// A port has several receive queues, over which its card spreads flows by a hash.
        const RSS = 1;
        /// Cards can direct a given flow to a queue.
        const FLOW_DIRECTOR = 1 << 1;
        /// A device is steered by XDP in its driver.
        const XDP_DRIVER = 1 << 2;
        /// The kernel can steer by XDP in its receive path.
        const XDP_GENERIC = 1 << 3;
        /// Workers hand over flows to each other.
        const WORKERS = 1 << 4;
        /// A port's card has an indirection table, by which flows move between workers.
        const INDIRECTION = 1 << 5;
    }
}

/// How a device's XDP program is attached.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum XdpMode {
    /// The program that steers the device has not answered in time.
    Unknown = 0,
    /// In the driver.
    Driver = 1,
    /// In the kernel's receive path.
    Generic = 2,
}

impl XdpMode {
    /// Returns the mode with a wire number.
    pub fn from_wire(number: u8) -> Option<XdpMode> {
        use XdpMode::*;
        let mut all = [Unknown, Driver, Generic].into_iter();
        all.find(|mode| *mode as u8 == number)
    }
}

/// A kernel interface whose packets are steered.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Device {
    /// Its name, 15 bytes at most.
    pub name: String,
    /// How its program is attached.
    pub mode: XdpMode,
    /// Position of the flow control field in received frames.
    pub layout: Option<Layout>,
    /// Whether the field of received frames is trusted.
    pub trusted: bool,
}

/// A host's steering features and configuration.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct HostCapabilities {
    /// Number of processors.
    pub cores: u16,
    /// Number of workers.
    pub workers: u16,
    /// The steering mode of the workers.
    pub mode: Mode,
    /// Who has chosen the mode.
    pub source: ModeSource,
    /// Layouts that SET_FCF can write.
    pub layouts: Vec<Layout>,
    /// This bridge's layout; None if it has no flow control field.
    pub layout: Option<Layout>,
    /// Steering features.
    pub abilities: Abilities,
    /// Interfaces steered in the kernel.
    pub devices: Vec<Device>,
}

/// The result of a mode request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ModeReply {
    /// The mode in force.
    pub mode: Mode,
    /// Who has chosen it; a controller's choice has no effect while the database has one.
    pub source: ModeSource,
    /// The last choice of a controller.
    pub chosen: Option<Mode>,
}

/// What happened to a virtual machine.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum VmReason {
    /// It has started, or was running when the controller asked for capabilities.
    Started = 0,
    /// Its port, core, tenant or priority has changed.
    Moved = 1,
    /// It has stopped.
    Stopped = 2,
}

impl VmReason {
    /// Returns the reason with a wire number.
    pub fn from_wire(number: u8) -> Option<VmReason> {
        use VmReason::*;
        let mut all = [Started, Moved, Stopped].into_iter();
        all.find(|reason| *reason as u8 == number)
    }
}

/// A virtual machine behind a port.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct VmStatus {
    /// The reason.
    pub reason: VmReason,
    /// Its number, unique on its host.
    pub vm: u16,
    /// Whether its traffic has priority.
    pub priority: bool,
    /// The port, in the numbering of OpenFlow 1.1 and later.
    pub port: u32,
    /// The tenant that owns it; 0 if unknown.
    pub tenant: u32,
    /// The core that it runs on, or [`NO_CORE`].
    pub core: u32,
}

/// The steering table that a message is for.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Target {
    /// The table of the switch's workers.
    Datapath,
    /// The table of a kernel interface.
    Device(String),
}

/// Commands for a steering table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Command {
    /// Adds an entry, replacing one with the same match and precedence.
    Add = 0,
    /// Changes the entry of this match and precedence.
    Modify = 1,
    /// Deletes all entries within the match.
    Delete = 2,
    /// Deletes the entry of this match and precedence.
    DeleteStrict = 3,
}

impl Command {
    /// Returns the command with a wire number.
    pub fn from_wire(number: u8) -> Option<Command> {
        use Command::*;
        let mut all = [Add, Modify, Delete, DeleteStrict].into_iter();
        all.find(|command| *command as u8 == number)
    }
}

/// SET_IRQ_CORE: the core to which an entry's packets go.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum IrqCore {
    /// One is chosen, for the whole entry if it matches the flow control field, otherwise for each
    /// flow.
    Choose,
    /// One is chosen for the whole entry.
    PerEntry,
    /// One is chosen for each flow.
    PerFlow,
    /// A fixed core.
    Core(u32),
}

/// A change of a steering table.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SteeringMod {
    /// The command.
    pub command: Command,
    /// A number of the controller's.
    pub cookie: u64,
    /// Of several matching entries, the one with the highest precedence is used.
    pub precedence: u16,
    /// The core.
    pub core: IrqCore,
    /// Idle timeout in seconds; 0 for none.
    pub idle_timeout: u16,
    /// Hard timeout in seconds; 0 for none.
    pub hard_timeout: u16,
    /// The virtual machine to which packets are sent.
    pub vm: Option<u16>,
    /// The priority bit.
    pub priority: bool,
    /// The match, as `sluice steer set add` reads it; at most [`MATCH_MAX`] bytes.
    pub matching: String,
}

/// An entry of a steering table, and its counters.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SteeringStats {
    /// The controller's number.
    pub cookie: u64,
    /// Packets that matched and use the entry's own choice.
    pub packets: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Precedence.
    pub precedence: u16,
    /// The core, as requested.
    pub core: IrqCore,
    /// The core chosen for the entry, or [`NO_CORE`].
    pub chosen: u32,
    /// The virtual machine to which packets are sent.
    pub vm: Option<u16>,
    /// The priority bit.
    pub priority: bool,
    /// The match.
    pub matching: String,
}

/// A message of the extension.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Steering {
    /// Asks for the host's capabilities.
    CapabilitiesRequest,
    /// The host's capabilities.
    CapabilitiesReply(HostCapabilities),
    /// Sets the mode; None only asks for it.
    ModeRequest(Option<Mode>),
    /// The mode in force.
    ModeReply(ModeReply),
    /// A virtual machine has started, moved or stopped.
    VmStatus(VmStatus),
    /// Changes a steering table; only inside a packet-out, which names the table.
    Mod(SteeringMod),
    /// Asks for the entries of a steering table.
    StatsRequest(Target),
    /// The entries, or a part of them.
    StatsReply {
        /// Entries.
        entries: Vec<SteeringStats>,
        /// Whether more parts follow.
        more: bool,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_field_is_one_number() {
        for vm in [1, 31, 127, VM_ID_MAX] {
            for priority in [false, true] {
                let fcf = Fcf { vm, priority };
                assert_eq!(Fcf::from_word(fcf.word()), Some(fcf));
                let Action::Note(bytes) = to_note(fcf) else {
                    panic!("a note");
                };
                assert_eq!(from_note(&bytes), Some(fcf));
            }
        }
        assert_eq!(Fcf::from_word(0), None);
        assert_eq!(from_note(b"hello!"), None);
        assert_eq!(from_note(&[2, 0x53, 0x4c, 1, 0, 5, 0]), None, "longer");
    }

    #[test]
    fn layouts_have_names_and_room() {
        for (name, layout) in Layout::ALL {
            assert_eq!(layout.name(), name);
            assert_eq!(Layout::from_wire(layout as u8), Some(layout));
        }
        assert_eq!(Layout::from_wire(0), None);
        let room: Vec<u16> = Layout::ALL.iter().map(|(_, l)| l.highest_vm()).collect();
        assert_eq!(room, [31, 127, 4094]);
    }
}
