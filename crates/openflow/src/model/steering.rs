//! Sluice's own extension: capabilities, mode and tables of steering, and the virtual machines that
//! controllers are told of. docs/protocol-extensions.md has the byte layouts.

use crate::model::action::{Action, Instruction};

/// Experimenter id of Sluice: the OUI 02-53-4C, locally administered, so that nobody else can have
/// been assigned it.
pub const EXPERIMENTER: u32 = 0x0002_534c;

/// The highest VM id of any layout.
pub const VM_ID_MAX: u16 = 4094;
/// Bytes of a device's name, the ending zero among them, as the kernel has it.
pub const NAME_LEN: usize = 16;
/// Bytes of a match's text at most.
pub const MATCH_MAX: usize = 1024;
/// A core that is not known, or that is left to the switch.
pub const NO_CORE: u32 = u32::MAX;

/// Where the flow control field is in a frame.
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
    /// Every layout with its name.
    pub const ALL: [(&'static str, Layout); 3] = [
        ("dscp6", Layout::Dscp6),
        ("tos8", Layout::Tos8),
        ("vlan", Layout::Vlan),
    ];

    /// The layout of a number.
    pub fn from_wire(number: u8) -> Option<Layout> {
        let mut all = Layout::ALL.into_iter();
        all.find_map(|(_, layout)| (layout as u8 == number).then_some(layout))
    }

    /// Its name.
    pub fn name(self) -> &'static str {
        Layout::ALL[self as usize - 1].0
    }

    /// The highest VM id that it has room for; the lowest is 1.
    pub fn highest_vm(self) -> u16 {
        match self {
            Layout::Dscp6 => 31,
            Layout::Tos8 => 127,
            Layout::Vlan => VM_ID_MAX,
        }
    }
}

/// What the flow control field says.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Fcf {
    /// The virtual machine, 1 to [`VM_ID_MAX`].
    pub vm: u16,
    /// The priority bit.
    pub priority: bool,
}

/// Bit of [`Fcf::word`] that says that there is a field.
const PRESENT: u16 = 0x8000;
/// Bit of [`Fcf::word`] for the priority bit.
const PRIORITY: u16 = 0x4000;

impl Fcf {
    /// The field as one number, which is never 0.
    pub fn word(self) -> u16 {
        PRESENT | if self.priority { PRIORITY } else { 0 } | self.vm & 0xfff
    }

    /// What [`Fcf::word`] gave; None of 0.
    pub fn from_word(word: u16) -> Option<Fcf> {
        (word & PRESENT != 0).then_some(Fcf {
            vm: word & 0xfff,
            priority: word & PRIORITY != 0,
        })
    }
}

/// The first bytes of the note that stands for `set_fcf` where experimenter actions are not
/// understood: the OUI and the action's number.
const NOTE: [u8; 4] = [0x02, 0x53, 0x4c, 0x01];

/// A `note` that stands for `set_fcf`. Open vSwitch's tools give up on a dump that has an
/// experimenter action of somebody else's; notes they print, and read back.
pub fn to_note(fcf: Fcf) -> Action {
    let word = fcf.vm | if fcf.priority { 0x8000 } else { 0 };
    let mut bytes = NOTE.to_vec();
    bytes.extend_from_slice(&word.to_be_bytes());
    Action::Note(bytes)
}

/// What a note's bytes say, where they stand for `set_fcf`; the VM id is not judged.
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

/// Puts notes in place of every `set_fcf` of a list.
pub fn notes_in_actions(actions: &mut [Action]) {
    for action in actions {
        match action {
            Action::SetFcf(fcf) => *action = to_note(*fcf),
            Action::Clone(inner) => notes_in_actions(inner),
            _ => {}
        }
    }
}

/// A rule with notes in place of every `set_fcf`; None where it has none.
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

/// Whether a list has a `set_fcf`.
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
    /// The one that receives it.
    Off = 0,
    /// Whichever a hash says.
    Rss = 1,
    /// A less loaded one where the receiving one is highly loaded.
    Adaptive = 2,
    /// The switch decides: adaptive where that may gain something, else off.
    Auto = 3,
}

impl Mode {
    /// The mode of a number.
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
    /// Nobody.
    Default = 0,
    /// A controller.
    Controller = 1,
    /// `other_config:sluice-steering`, which goes before controllers.
    Database = 2,
}

impl ModeSource {
    /// The source of a number.
    pub fn from_wire(number: u8) -> Option<ModeSource> {
        use ModeSource::*;
        let mut all = [Default, Controller, Database].into_iter();
        all.find(|source| *source as u8 == number)
    }
}

bitflags::bitflags! {
    /// What a host can do.
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
    pub struct Abilities: u32 {
        /// A port has several receive queues, among which its card hashes flows.
        const RSS = 1;
        /// Cards can be told which queue a flow goes to.
        const FLOW_DIRECTOR = 1 << 1;
        /// Some device is steered by XDP in its driver.
        const XDP_DRIVER = 1 << 2;
        /// The kernel can steer by XDP in its receive path.
        const XDP_GENERIC = 1 << 3;
        /// Workers hand flows to each other.
        const WORKERS = 1 << 4;
    }
}

/// How a device's program is attached.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum XdpMode {
    /// Whoever steers the device has not answered in time.
    Unknown = 0,
    /// In the driver.
    Driver = 1,
    /// In the kernel's receive path.
    Generic = 2,
}

impl XdpMode {
    /// The mode of a number.
    pub fn from_wire(number: u8) -> Option<XdpMode> {
        use XdpMode::*;
        let mut all = [Unknown, Driver, Generic].into_iter();
        all.find(|mode| *mode as u8 == number)
    }
}

/// A kernel interface that is steered.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Device {
    /// Its name, 15 bytes at most.
    pub name: String,
    /// How.
    pub mode: XdpMode,
    /// Where the flow control field is in what it receives.
    pub layout: Option<Layout>,
    /// Whether the field is believed there.
    pub trusted: bool,
}

/// What a host can do, and does.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct HostCapabilities {
    /// Processors.
    pub cores: u16,
    /// Workers.
    pub workers: u16,
    /// How workers steer.
    pub mode: Mode,
    /// Who says so.
    pub source: ModeSource,
    /// Layouts that SET_FCF can write.
    pub layouts: Vec<Layout>,
    /// The one of this bridge; none where it has no flow control field.
    pub layout: Option<Layout>,
    /// Abilities.
    pub abilities: Abilities,
    /// Interfaces that the kernel steers.
    pub devices: Vec<Device>,
}

/// What became of a choice of mode.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ModeReply {
    /// The mode in force.
    pub mode: Mode,
    /// Who has chosen it; where that is the database, a controller's choice waits.
    pub source: ModeSource,
    /// What controllers have chosen last.
    pub chosen: Option<Mode>,
}

/// What happened to a virtual machine.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum VmReason {
    /// It has started, or was there when the controller asked for capabilities.
    Started = 0,
    /// Its port, core, tenant or priority is another.
    Moved = 1,
    /// It has stopped.
    Stopped = 2,
}

impl VmReason {
    /// The reason of a number.
    pub fn from_wire(number: u8) -> Option<VmReason> {
        use VmReason::*;
        let mut all = [Started, Moved, Stopped].into_iter();
        all.find(|reason| *reason as u8 == number)
    }
}

/// A virtual machine behind a port.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct VmStatus {
    /// What happened.
    pub reason: VmReason,
    /// Its number, unique on its host.
    pub vm: u16,
    /// Whether its traffic has priority.
    pub priority: bool,
    /// The port, numbered as from 1.1 on.
    pub port: u32,
    /// Whose it is; 0 where nobody has said.
    pub tenant: u32,
    /// The core that it runs on, or [`NO_CORE`].
    pub core: u32,
}

/// Which steering table is meant.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Target {
    /// That of the switch's workers.
    Datapath,
    /// That of a kernel interface.
    Device(String),
}

/// What is done to the steering table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Command {
    /// Adds an entry, in place of one with the same match and precedence.
    Add = 0,
    /// Changes the entry of this match and precedence.
    Modify = 1,
    /// Deletes all entries within the match.
    Delete = 2,
    /// Deletes the entry of this match and precedence.
    DeleteStrict = 3,
}

impl Command {
    /// The command of a number.
    pub fn from_wire(number: u8) -> Option<Command> {
        use Command::*;
        let mut all = [Add, Modify, Delete, DeleteStrict].into_iter();
        all.find(|command| *command as u8 == number)
    }
}

/// SET_IRQ_CORE: which core packets of an entry go to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum IrqCore {
    /// One is chosen: for the entry where it matches the flow control field, else for each flow.
    Choose,
    /// One is chosen for all that matches.
    PerEntry,
    /// One is chosen for each flow.
    PerFlow,
    /// This one.
    Core(u32),
}

/// A change of a steering table.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SteeringMod {
    /// What is done.
    pub command: Command,
    /// A number of the controller's.
    pub cookie: u64,
    /// The entry of the highest precedence is used.
    pub precedence: u16,
    /// Which core.
    pub core: IrqCore,
    /// Seconds without a packet after which it goes; 0 for never.
    pub idle_timeout: u16,
    /// Seconds after which it goes; 0 for never.
    pub hard_timeout: u16,
    /// The virtual machine that packets are for.
    pub vm: Option<u16>,
    /// The priority bit.
    pub priority: bool,
    /// What it matches, as `sluice steer set add` reads it; [`MATCH_MAX`] bytes at most.
    pub matching: String,
}

/// An entry of a steering table, and its counters.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SteeringStats {
    /// The controller's number.
    pub cookie: u64,
    /// Packets that matched, and whose choice is the entry's own.
    pub packets: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Precedence.
    pub precedence: u16,
    /// Which core, as it was asked for.
    pub core: IrqCore,
    /// The core that was chosen for the entry, or [`NO_CORE`].
    pub chosen: u32,
    /// The virtual machine that packets are for.
    pub vm: Option<u16>,
    /// The priority bit.
    pub priority: bool,
    /// What it matches.
    pub matching: String,
}

/// A message of the extension.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Steering {
    /// What can the host do?
    CapabilitiesRequest,
    /// What it can do.
    CapabilitiesReply(HostCapabilities),
    /// Choose a mode, or only ask for it.
    ModeRequest(Option<Mode>),
    /// The mode now.
    ModeReply(ModeReply),
    /// A virtual machine has started, moved or stopped.
    VmStatus(VmStatus),
    /// Change a steering table; only inside a packet-out, which names the table.
    Mod(SteeringMod),
    /// What is in a steering table?
    StatsRequest(Target),
    /// What is in it, or a part of it.
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
