//! Lines of established connections: read without a lock, claimed by one reader at a time, written
//! and taken away by who has the lock.

use crate::sync::{AtomicU64, Ordering, explore};
use crate::versioned::{Version, Versioned};
use loom::cell::UnsafeCell;
use loom::thread;
use std::sync::Arc;

/// A line, what is read beside it, and the state there that readers change.
struct Line {
    version: AtomicU64,
    words: [AtomicU64; 2],
    /// What is read beside the words, as whole addresses are.
    further: [AtomicU64; 2],
    /// When the connection ends: a packet writes what goes with the words that it has read.
    expires: AtomicU64,
    beside: UnsafeCell<u64>,
}

// SAFETY: loom checks that nobody is at `beside` while another changes it.
unsafe impl Sync for Line {}

impl Line {
    /// A line that may be read, whose words are `number`.
    fn new(number: u64) -> Arc<Line> {
        let line = Line {
            version: AtomicU64::new(0),
            words: [AtomicU64::new(0), AtomicU64::new(0)],
            expires: AtomicU64::new(0),
            further: [AtomicU64::new(0), AtomicU64::new(0)],
            beside: UnsafeCell::new(0),
        };
        line.publish(number);
        Arc::new(line)
    }

    fn publish(&self, number: u64) {
        for word in &self.further {
            word.store(number, Ordering::Relaxed);
        }
        self.expires.store(number, Ordering::Relaxed);
        self.versioned().publish([number; 2]);
    }

    fn versioned(&self) -> Versioned<'_, 2> {
        Versioned {
            version: &self.version,
            words: &self.words,
        }
    }

    fn count(&self) {
        // SAFETY: loom fails where another is there at the same time.
        self.beside.with_mut(|beside| unsafe { *beside += 1 });
    }

    /// Reads the line and what lies beside it, all of which belongs together. None if it changes.
    fn read(&self) -> Option<(u64, Version)> {
        let ([word, second], version) = self.versioned().read()?;
        assert_eq!(word, second, "words of two connections");
        let further = [0, 1].map(|at: usize| self.further[at].load(Ordering::Relaxed));
        if !self.versioned().is_still(version) {
            return None;
        }
        assert_eq!([word; 2], further, "words of two connections");
        Some((word, version))
    }

    /// A packet of TCP. Returns whether it has changed what lies beside.
    fn packet(&self) -> bool {
        let Some((word, version)) = self.read() else {
            return false;
        };
        let claimed = self.versioned().claim(version);
        if claimed {
            self.count();
            self.expires.store(word, Ordering::Relaxed);
            self.versioned().give_back(version);
        }
        claimed
    }

    /// A packet of another protocol, which claims nothing: ten times the number is its later end.
    fn prolong(&self) {
        let expires = self.expires.load(Ordering::Relaxed);
        // Without what lies beside, as for most packets: the exchange alone tells whose end it is.
        if let Some(([word, _], _)) = self.versioned().read() {
            let (old, new) = (expires, 10 * word);
            let replaced =
                (self.expires).compare_exchange(old, new, Ordering::Relaxed, Ordering::Relaxed);
            assert!(replaced.is_err() || old == word, "another's end");
        }
    }
}

/// A packet that claims nothing prolongs its own connection only, while the line is given to
/// another.
pub fn a_packet_prolongs_its_own_connection() {
    explore(3, || {
        let line = Line::new(1);
        let other = {
            let line = Arc::clone(&line);
            thread::spawn(move || line.prolong())
        };
        line.versioned().withdraw();
        line.publish(2);
        other.join().expect("a packet");
    });
}

/// Packets of two workers, while a third one gives the line to another connection.
pub fn a_packet_reads_words_of_one_connection() {
    explore(2, || {
        let line = Line::new(1);
        let packets = [(); 2].map(|()| {
            let line = Arc::clone(&line);
            thread::spawn(move || line.packet())
        });
        line.versioned().withdraw();
        line.count();
        line.publish(2);
        let mut counted = 1;
        for packet in packets {
            counted += u64::from(packet.join().expect("a packet"));
        }
        line.versioned().withdraw();
        assert_eq!(line.expires.load(Ordering::Relaxed), 2, "another's end");
        // SAFETY: nobody else is left.
        line.beside
            .with(|beside| assert_eq!(unsafe { *beside }, counted));
    });
}

/// A line that has been taken away is not read, also by who was at it meanwhile.
pub fn a_line_that_is_withdrawn_stays_so() {
    explore(3, || {
        let line = Line::new(1);
        let other = {
            let line = Arc::clone(&line);
            thread::spawn(move || line.packet())
        };
        line.versioned().withdraw();
        line.count();
        other.join().expect("a packet");
        assert!(line.versioned().is_withdrawn() && line.versioned().read().is_none());
        line.words[0].store(3, Ordering::Relaxed);
        assert!(!line.packet());
    });
}
