//! What a worker's cycles go to, by stage: receiving, parsing, lookup, actions and so on.
//!
//! A thread is in one stage at a time. Code says where a stage begins ([`go`]), or that one begins
//! here and the present one continues behind it ([`enter`]); the cycles since the last such place
//! are charged to the stage that was present. So stages exclude one another, and their sum is the
//! time that has passed, whatever calls whatever. Places are reached once a burst where packets
//! are handled in bursts, and once a packet only where these are handled one by one.
//!
//! The account is off unless somebody asks for it ([`Switch`]). Then each place costs a comparison
//! of a flag of the thread, which changes only between two turns ([`begin_turn`]); while it is on,
//! a read of the time stamp counter and a few additions to memory of the thread. At the end of a
//! turn ([`end_turn`]) these are added to [`Counters`], which others may read at any time.

mod account;
mod clock;
mod counters;

pub use account::{Entered, add_packets, begin_turn, cost, end_turn, enter, go, is_on, relabel};
pub use clock::cycles;
pub use counters::{Counters, Report, Switch, Tally};

/// What a worker is doing.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
#[repr(usize)]
pub enum Stage {
    /// Taking frames from receive queues that had some.
    Receive,
    /// Allocating and freeing packet buffers, where that is a call of its own.
    Memory,
    /// Reading headers into keys, and comparing them with short lists of rules meanwhile.
    Parse,
    /// Looking keys up.
    Lookup,
    /// Carrying out what rules say, other than what has a stage of its own.
    Actions,
    /// NORMAL: learning addresses, finding and tagging for ports.
    Normal,
    /// The connection tracker.
    Track,
    /// Policers, and the queues of shaped ports.
    Queue,
    /// Adding and removing tunnels' headers.
    Tunnel,
    /// Giving frames to devices.
    Send,
    /// Giving frames to other workers, and taking theirs.
    Handover,
    /// All else in turns that found something to do: the loop, control's commands, counters.
    Control,
    /// Looks at receive queues that were empty, and whole turns that found nothing to do.
    EmptyPolls,
    /// Yielding, napping and sleeping.
    Rest,
}

impl Stage {
    /// Number of stages.
    pub const COUNT: usize = 14;

    /// All of them, in the order in which they are shown.
    pub const ALL: [Stage; Stage::COUNT] = [
        Stage::Receive,
        Stage::Memory,
        Stage::Parse,
        Stage::Lookup,
        Stage::Actions,
        Stage::Normal,
        Stage::Track,
        Stage::Queue,
        Stage::Tunnel,
        Stage::Send,
        Stage::Handover,
        Stage::Control,
        Stage::EmptyPolls,
        Stage::Rest,
    ];

    /// Returns its name in reports: a word of `a` to `z` and `_`.
    pub const fn name(self) -> &'static str {
        match self {
            Stage::Receive => "receive",
            Stage::Memory => "memory",
            Stage::Parse => "parse",
            Stage::Lookup => "lookup",
            Stage::Actions => "actions",
            Stage::Normal => "normal",
            Stage::Track => "track",
            Stage::Queue => "queue",
            Stage::Tunnel => "tunnel",
            Stage::Send => "send",
            Stage::Handover => "handover",
            Stage::Control => "control",
            Stage::EmptyPolls => "empty_polls",
            Stage::Rest => "rest",
        }
    }

    /// Returns whether its cycles were spent without anything to do.
    pub const fn is_idle(self) -> bool {
        matches!(self, Stage::EmptyPolls | Stage::Rest)
    }
}
