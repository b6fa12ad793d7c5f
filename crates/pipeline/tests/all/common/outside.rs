//! What tests do with packets that leave a walk.

use conntrack::{Earlier, Request as TrackRequest, Tracked, Tracker};
use packet::HeapFrame;
use packet::parse::{Layers, Malformed};
use program::actions::ToController;
use program::actions::learn::{Ended, Request};
use program::exec::Frozen;
use program::host::{Context, DropReason, Host, ResumePoint};

/// A [`Host`], as far as these tests need one, that can stand behind `dyn`. What has a default
/// here is not to happen, or does not matter, in most tests.
pub trait Outside {
    fn output(&mut self, context: Context<'_>, port: u32, frame: HeapFrame, to_in_port: bool);
    fn output_all(&mut self, _: Context<'_>, _: HeapFrame, _: bool) {
        unreachable!("no rule floods");
    }
    fn normal(&mut self, _: Context<'_>, _: HeapFrame) {
        unreachable!("no rule switches");
    }
    fn controller(&mut self, _: Context<'_>, _: &ToController, _: &HeapFrame) {}
    fn pause(&mut self, context: Context<'_>, to: &ToController, frame: &HeapFrame, _: Frozen) {
        self.controller(context, to, frame);
    }
    fn learn(&mut self, _: Request) -> bool {
        false
    }
    fn connection_ended(&mut self, _: Ended) -> bool {
        false
    }
    fn port_is_live(&self, _: u32) -> bool {
        true
    }
    fn now_ns(&mut self) -> u64 {
        0
    }
    fn track(&mut self, _: &HeapFrame, _: &Layers, _: Earlier, _: &TrackRequest<'_>) -> Tracked {
        unreachable!("no rule tracks");
    }
    fn tracker(&mut self) -> Option<(&Tracker, u64)> {
        None
    }
    fn reads_tunnel(&self, _: u32) -> bool {
        false
    }
    fn dropped(&mut self, _: DropReason) {}
    fn place(&self) -> ResumePoint {
        ResumePoint::default()
    }
}

/// The only host of these tests: each other type would have the whole engine compiled again.
pub struct To<'a>(pub &'a mut dyn Outside);

impl Host<HeapFrame> for To<'_> {
    fn output(&mut self, context: Context<'_>, port: u32, frame: HeapFrame, to_in_port: bool) {
        self.0.output(context, port, frame, to_in_port);
    }
    fn output_all(&mut self, context: Context<'_>, frame: HeapFrame, flood: bool) {
        self.0.output_all(context, frame, flood);
    }
    fn normal(&mut self, context: Context<'_>, frame: HeapFrame) {
        self.0.normal(context, frame);
    }
    fn controller(&mut self, context: Context<'_>, to: &ToController, frame: &HeapFrame) {
        self.0.controller(context, to, frame);
    }
    fn pause(&mut self, context: Context<'_>, to: &ToController, frame: &HeapFrame, rest: Frozen) {
        self.0.pause(context, to, frame, rest);
    }
    fn learn(&mut self, request: Request) -> bool {
        self.0.learn(request)
    }
    fn connection_ended(&mut self, ended: Ended) -> bool {
        self.0.connection_ended(ended)
    }
    fn track(
        &mut self,
        frame: &HeapFrame,
        layers: &Layers,
        earlier: Earlier,
        request: &TrackRequest<'_>,
    ) -> Tracked {
        self.0.track(frame, layers, earlier, request)
    }
    fn tracker(&mut self) -> Option<(&Tracker, u64)> {
        self.0.tracker()
    }
    fn port_is_live(&self, port: u32) -> bool {
        self.0.port_is_live(port)
    }
    fn now_ns(&mut self) -> u64 {
        self.0.now_ns()
    }
    fn reads_tunnel(&self, port: u32) -> bool {
        self.0.reads_tunnel(port)
    }
    /// Some ports, of those that are told packets' tunnel metadata and of others.
    fn sends_together(&self, ports: impl Iterator<Item = (usize, u32)> + Clone) -> u64 {
        let some = ports.filter(|(_, port)| port % 3 == 0);
        some.fold(0, |bits, (place, _)| bits | 1 << place)
    }
    fn malformed(&mut self, _: Malformed) {}
    fn place(&self) -> ResumePoint {
        self.0.place()
    }
    fn dropped(&mut self, reason: DropReason) {
        self.0.dropped(reason);
    }
}
