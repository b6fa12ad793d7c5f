//! Fragments whose walks wait at a `ct` step for the rest of their datagram.
//!
//! Unlike a walk that is held for a rule, this one may wait for seconds and go on at another
//! worker. So it is kept as a [`Frozen`], with copies of its steps, like one that a controller has
//! paused; beside it the frame, and what the walk knows that the frame does not tell. Of a walk in
//! a clone or bucket only that part waits; what it was cloned from continues at once, as in Open
//! vSwitch.

use crate::actions::Op;
use crate::epoch::Guard;
use crate::exec::Engine;
use crate::exec::interpreter::{Aside, Burst, Saved, Walk};
use crate::exec::suspend::freeze::Frozen;
use crate::host::{DropReason, Host, ResumePoint};
use crate::table::Bridge;
use conntrack::{Earlier, Request, Tracked};
use packet::fragment::Fragment;
use packet::key::at;
use packet::{FlowKey, Frame, WordSet, parse};

/// A fragment and the rest of its walk, which begins with the `ct` step that it has come to.
pub struct Parked<F> {
    /// None where there was no memory for a copy.
    frame: Option<F>,
    key: FlowKey,
    /// The words of the key that are filled.
    valid: WordSet,
    rest: Frozen,
    place: ResumePoint,
    tracked: Earlier,
    recirculated: u8,
    packet_out: bool,
    sent: bool,
    /// For whoever holds it: how often copies of its frame may still be walked again.
    pub walks: usize,
}

impl<F> Parked<F> {
    /// Returns where it was.
    pub fn place(&self) -> ResumePoint {
        self.place
    }

    /// Returns its frame; None where there was no memory for a copy.
    pub fn frame(&self) -> Option<&F> {
        self.frame.as_ref()
    }

    /// Returns whether its packet is a packet-out's.
    pub fn is_of_packet_out(&self) -> bool {
        self.packet_out
    }
}

/// A fragment that has come to a `ct` step.
#[derive(Clone, Copy, Debug)]
pub struct Arrived<'a> {
    /// What its headers say.
    pub fragment: &'a Fragment,
    /// How often it has been looked up behind the tracker.
    pub pass: u8,
    /// Its ingress port.
    pub in_port: u32,
    /// Bytes of its frame.
    pub length: usize,
    /// Segments of its frame, each of which takes a buffer.
    pub segments: usize,
    /// Steps that would be held with it.
    pub steps: usize,
    /// What the datagram's last lookup said.
    pub earlier: Earlier,
    /// What is asked of the tracker, for the whole datagram if this is the fragment that completes
    /// it.
    pub request: &'a Request<'a>,
}

impl<F: Frame> Walk<F> {
    /// Offers the host a fragment to hold until its datagram is whole; the walk is at a `ct` step.
    /// Returns false if it does not: then the tracker answers for the fragment alone.
    pub(crate) fn park<H: Host<F>>(
        &mut self,
        burst: &Burst<'_, '_>,
        host: &mut H,
        request: &Request<'_>,
    ) -> bool {
        let steps = self.at.steps.get();
        let here = self.at.next.checked_sub(1);
        if !matches!(here.and_then(|at| steps.get(at)), Some(Op::Track(_))) {
            return false;
        }
        let l3 = usize::from(self.layers.l3);
        let eth_type = self.key.u16(at::ETH_TYPE);
        let read = (self.frame.as_mut()).map(|frame| Fragment::read_behind(frame, l3, eth_type));
        let Some(Ok(Some(fragment))) = read else {
            return false;
        };
        let arrived = Arrived {
            fragment: &fragment,
            pass: self.recirculated,
            in_port: self.key.u32(at::IN_PORT),
            length: self.frame.as_ref().map_or(0, Frame::len),
            segments: self.frame.as_ref().map_or(0, Frame::segment_count),
            steps: self.steps_left(self.innermost_clone()),
            earlier: self.tracked,
            request,
        };
        let place = host.place();
        host.hold_fragment(&arrived, &mut || self.leave_parked(burst, place))
    }

    /// Moves the walk, or the clone that it is in, out of the burst.
    fn leave_parked(&mut self, burst: &Burst<'_, '_>, place: ResumePoint) -> Box<Parked<F>> {
        let frame = self.frame.take();
        // The `ct` step runs when it goes on.
        self.at.next -= 1;
        let clone = self.innermost_clone();
        let saved = self.saved_at(clone);
        let is_main = saved.is_none_or(|saved| saved.by == Aside::Fork);
        let is_bucket = saved.is_some_and(|saved| saved.by == Aside::Bucket);
        let mut rest = self.frozen(clone);
        // The action set is no bucket's own: the walk runs it when the bucket is done.
        rest.set_run |= is_bucket;
        let set = is_bucket.then(|| self.set.clone());
        let parked = Parked {
            frame,
            key: self.key,
            valid: burst.valid,
            rest,
            place,
            tracked: self.tracked,
            recirculated: self.recirculated,
            packet_out: self.packet_out,
            // Whoever goes on with the packet itself counts it as dropped if it is not sent.
            sent: self.sent || !is_main,
            walks: 0,
        };
        self.sent |= is_main;
        // It reaches the local port when it goes on.
        self.at_local |= is_main;
        self.leave(clone);
        if let Some(set) = set {
            self.set = set;
        }
        Box::new(parked)
    }

    /// Returns what the clone whose list is at this position has saved.
    fn saved_at(&self, clone: Option<usize>) -> Option<&Saved<F>> {
        let mut lists = self.stack.iter().chain([&self.at]);
        lists.nth(clone?)?.saved.as_deref()
    }

    /// Returns how many steps are left, in all or in the clone whose list is at this position.
    fn steps_left(&self, clone: Option<usize>) -> usize {
        let lists = self.stack.iter().chain([&self.at]);
        let lists = lists.skip(clone.unwrap_or(0));
        let left = lists.map(|list| list.steps.get().len() - list.next);
        left.sum::<usize>() + self.set.steps().len() + self.values.len()
    }
}

impl<F: Frame> Engine<F> {
    /// Resumes a fragment's walk behind its `ct` step with the tracker's answer, in its bridge and
    /// the guard's epoch.
    pub fn resume_fragment<H: Host<F>>(
        &mut self,
        parked: Parked<F>,
        answer: &Tracked,
        bridge: &Bridge,
        guard: &Guard<'_>,
        now_ms: u64,
        host: &mut H,
    ) {
        let _stage = stages::enter(stages::Stage::Actions, 1);
        let Parked {
            frame,
            key,
            valid,
            rest,
            tracked,
            recirculated,
            packet_out,
            sent,
            ..
        } = parked;
        let Some(mut frame) = frame else {
            return host.dropped(DropReason::NoBuffer);
        };
        let burst = Burst::of_one(bridge, guard, rest.words().union(valid), now_ms, host);
        if self.walks.is_empty() {
            self.walks.push(Walk::new());
        }
        let walk = &mut self.walks[0];
        let in_port = key.u32(at::IN_PORT);
        walk.layers = parse::parse_frame(&mut frame, in_port, burst.valid, &mut walk.key);
        for word in burst.valid.minus(parse::PACKET_WORDS).iter() {
            walk.key.words[word] = match valid.contains(word) {
                true => key.words[word],
                false => 0,
            };
        }
        walk.key.set_u32(at::IN_PORT, in_port);
        walk.begin_again(frame, rest);
        walk.tracked = tracked;
        walk.recirculated = recirculated;
        walk.packet_out = packet_out;
        walk.sent = sent;
        let step = walk.at.steps.get().get(walk.at.next);
        let next = match step {
            Some(Op::Track(track)) => {
                walk.at.next += 1;
                let behind = walk.go_on_tracked(&burst, host, track, answer);
                behind.unwrap_or_else(|| walk.run(&burst, host))
            }
            _ => walk.run(&burst, host),
        };
        self.run_to_end(&burst, host, 0, next);
    }
}
