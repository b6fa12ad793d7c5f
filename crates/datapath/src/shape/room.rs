//! How many frames may wait at all shaped ports together: they hold buffers that all ports receive
//! into.

use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes of a frame that holds one buffer.
const FRAME_BYTES: u64 = 2048;

/// Room for frames that wait, shared by all shaped ports.
///
/// A port may have twice as many frames waiting as there is room left (dynamic thresholds, as
/// within a port: [`qos::shaper`]). So one port that is flooded uses up to two thirds of the room,
/// eight use 16 parts in 17 together, and one that was quiet finds room always.
pub(crate) struct Room {
    /// Frames that may wait.
    limit: AtomicU64,
    /// Frames that wait, as owners of ports have said last.
    used: AtomicU64,
}

impl Room {
    /// Without a limit.
    pub fn new() -> Room {
        Room {
            limit: AtomicU64::new(u64::MAX),
            used: AtomicU64::new(0),
        }
    }

    /// Sets the limit, in frames of one buffer each.
    pub fn limit(&self, frames: u64) {
        self.limit.store(frames, Ordering::Relaxed);
    }

    /// Returns how many frames may wait at a port that uses so many. Only three quarters of what is
    /// left may be added, since many may come before that is asked again.
    #[inline]
    pub fn of_one(&self, used: u64) -> u32 {
        let left =
            (self.limit.load(Ordering::Relaxed)).saturating_sub(self.used.load(Ordering::Relaxed));
        let most = left
            .saturating_mul(2)
            .min(used.saturating_add(left - left / 4));
        u32::try_from(most).unwrap_or(u32::MAX)
    }

    /// Notes that so many wait at a port where so many did.
    #[inline]
    pub fn note(&self, before: u64, now: u64) {
        if before != now {
            self.used
                .fetch_add(now.wrapping_sub(before), Ordering::Relaxed);
        }
    }

    #[cfg(test)]
    pub fn used(&self) -> u64 {
        self.used.load(Ordering::Relaxed)
    }
}

/// What so many frames with so many bytes take of the room: large segments hold a buffer for each
/// [`FRAME_BYTES`].
#[inline]
pub(super) fn frames(count: usize, bytes: u64) -> u64 {
    (count as u64).max(bytes / FRAME_BYTES)
}

/// Bytes that may wait where so many frames may.
#[inline]
pub(super) fn bytes(frames: u32) -> u64 {
    match frames {
        u32::MAX => u64::MAX,
        frames => u64::from(frames) * FRAME_BYTES,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_takes_two_thirds_and_others_find_room() {
        let room = Room::new();
        assert_eq!(room.of_one(0), u32::MAX);
        room.limit(24_576);
        let mut held = Vec::new();
        for ports in 1..=100 {
            held.push(0u64);
            // Each is flooded: a frame leaves, and more come than find room.
            for _ in 0..1000 {
                for port in &mut held {
                    let left = port.saturating_sub(1);
                    room.note(*port, left);
                    let free = u64::from(room.of_one(left))
                        .min(16_384)
                        .saturating_sub(left);
                    // As many as the ring of another worker may hold.
                    *port = left + free.min(4096);
                    room.note(left, *port);
                }
            }
            let (most, least) = (held.iter().max().unwrap(), held.iter().min().unwrap());
            assert!(room.used() < 24_576, "{ports} ports use {}", room.used());
            assert!(*least > 24_576 / 1000, "{ports} ports: one has {least}");
            if ports == 1 {
                assert_eq!(*most, 16_384);
            }
        }
        for port in held {
            room.note(port, 0);
        }
        assert_eq!(room.used(), 0);
    }

    #[test]
    fn large_segments_take_as_many_as_they_hold() {
        assert_eq!(frames(3, 64), 3);
        assert_eq!(frames(1, 65_536), 32);
        assert_eq!(bytes(2), 4096);
        assert_eq!(bytes(u32::MAX), u64::MAX);
    }
}
