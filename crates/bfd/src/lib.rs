//! Bidirectional Forwarding Detection, RFC 5880 in asynchronous mode, as far as Open vSwitch 3.1
//! has it: a session for each interface, without authentication, echo or demand mode.
//!
//! * [`wire`]: a control message's bytes, and the frame around it.
//! * [`session`]: what a session does with messages and time. No I/O; time comes in as an argument,
//!   in ms of a clock that never goes back.
//! * [`text`]: how `ovs-appctl bfd/show` shows a session.

pub mod session;
pub mod text;
pub mod wire;

pub use session::{Rejected, Session, Settings, Step};
pub use wire::{Diagnostic, Malformed, Message, State};
