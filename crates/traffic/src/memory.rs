//! A port of memory whose frames come back after a known time: what the generator is calibrated
//! and tested against.

use crate::clock::Clock;
use packet::Frame;
use packet::io::{BURST, RxQueue, TxOutcome, TxQueue};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

/// Frames on their way, with the times at which they come out.
type Line<F> = Arc<Mutex<VecDeque<(u64, F)>>>;

/// The end that frames go into.
pub struct Into<F> {
    line: Line<F>,
    clock: Clock,
    delay: u64,
    room: usize,
}

/// The end that they come out of.
pub struct OutOf<F> {
    line: Line<F>,
    clock: Clock,
}

/// Makes a port that holds each frame for `delay` nanoseconds, and at most `room` frames.
pub fn line<F: Frame>(clock: &Clock, delay: u64, room: usize) -> (Into<F>, OutOf<F>) {
    let line: Line<F> = Arc::default();
    let into = Into {
        line: Arc::clone(&line),
        clock: clock.clone(),
        delay,
        room,
    };
    let clock = clock.clone();
    (into, OutOf { line, clock })
}

impl<F: Frame> TxQueue<F> for Into<F> {
    fn send(&mut self, frames: &mut Vec<F>) -> TxOutcome {
        let out = self.clock.now() + self.delay;
        let mut line = self.line.lock().unwrap_or_else(PoisonError::into_inner);
        let mut outcome = TxOutcome::default();
        let room = self.room.saturating_sub(line.len());
        outcome.full = frames.len().saturating_sub(room) as u64;
        frames.truncate(room);
        for frame in frames.drain(..) {
            outcome.packets += 1;
            outcome.bytes += frame.len() as u64;
            line.push_back((out, frame));
        }
        outcome
    }
}

impl<F: Frame> RxQueue<F> for OutOf<F> {
    fn receive(&mut self, out: &mut Vec<F>) -> usize {
        let now = self.clock.now();
        let mut line = self.line.lock().unwrap_or_else(PoisonError::into_inner);
        let mut count = 0;
        while count < BURST && line.front().is_some_and(|(time, _)| *time <= now) {
            out.extend(line.pop_front().map(|(_, frame)| frame));
            count += 1;
        }
        count
    }
}
