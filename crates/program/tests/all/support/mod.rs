//! Shared by tests of walks.

use packet::parse::Malformed;
use packet::{Frame, HeapFrame};
use program::actions::{PortNo, ToController};
use program::host::{Context, DropReason, Host};

/// The ports that packets left by, and the packets, in order. For rules that only send: anything
/// else that becomes of a packet fails the test.
#[derive(Default)]
pub struct Met(pub Vec<(PortNo, Vec<u8>)>);

impl Host<HeapFrame> for Met {
    fn port_is_live(&self, _: PortNo) -> bool {
        true
    }
    fn now_ns(&mut self) -> u64 {
        unreachable!("no rule asks for the time")
    }
    fn output(&mut self, context: Context<'_>, port: PortNo, frame: HeapFrame, _: bool) {
        *context.sent = true;
        self.0.push((port, frame.to_vec()));
    }
    fn output_all(&mut self, _: Context<'_>, _: HeapFrame, _: bool) {
        unreachable!("no rule floods");
    }
    fn normal(&mut self, _: Context<'_>, _: HeapFrame) {
        unreachable!("no rule switches");
    }
    fn controller(&mut self, _: Context<'_>, _: &ToController, _: &HeapFrame) {
        unreachable!("no rule asks a controller");
    }
    fn malformed(&mut self, what: Malformed) {
        unreachable!("{what:?}");
    }
    fn dropped(&mut self, reason: DropReason) {
        unreachable!("{reason:?}");
    }
}
