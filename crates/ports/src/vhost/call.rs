//! Descriptors that notify guests, none of which holds a thread for long.
//!
//! A call descriptor is an eventfd that the front end shares with us, and so are its flags and its
//! counter. A front end that makes it block again, and fills the counter, blocks whoever writes to
//! it next. It can do so at any time, so that checking before each write would not help.
//!
//! So each descriptor is kept in a list until nobody holds it any more, whatever has become of its
//! ring, connection and port: a worker that is blocked in a write may be the last holder. A thread
//! of its own looks at all of them every [`TICK`] and reads those whose counters are full, which
//! releases their writers. That thread never writes to them, and does not wait to read.

use crate::eal;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::io::{Errno, IoSliceMut, ReadWriteFlags};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, Weak};
use std::time::Duration;

/// Interval at which descriptors are checked, and so the longest that a write blocks.
const TICK: Duration = Duration::from_millis(100);

/// All descriptors that somebody holds, and some that nobody does any more.
static CALLS: Mutex<Vec<Weak<Call>>> = Mutex::new(Vec::new());

/// Signalled when the list is no longer empty.
static ADDED: Condvar = Condvar::new();

/// A descriptor that notifies a guest.
#[derive(Debug)]
pub(super) struct Call {
    event: OwnedFd,
    /// Whether the front end has made it block again.
    blocked: AtomicBool,
}

impl Call {
    /// Takes an eventfd into use.
    pub fn new(event: OwnedFd) -> io::Result<Arc<Call>> {
        start()?;
        let call = Arc::new(Call {
            event,
            blocked: AtomicBool::new(false),
        });
        calls().push(Arc::downgrade(&call));
        ADDED.notify_one();
        Ok(call)
    }

    /// Notifies the guest. A descriptor whose counter is full stays raised. The front end can make
    /// this last up to [`TICK`], so it is not called inside a gate.
    pub fn tell(&self) {
        super::device::tell(&self.event);
    }

    /// Returns whether the front end has made it block since this was last asked.
    pub fn has_blocked(&self) -> bool {
        self.blocked.swap(false, Ordering::Relaxed)
    }

    /// Makes the descriptor non-blocking, and releases threads that are blocked in writes to it.
    fn unblock(&self) {
        if set_nonblocking(&self.event) {
            self.blocked.store(true, Ordering::Relaxed);
        }
        // Whatever the flag says now: it may have been another one when a write began.
        if is_full(&self.event) {
            // The guest has been notified often enough.
            drain(&self.event);
        }
    }
}

fn calls() -> MutexGuard<'static, Vec<Weak<Call>>> {
    CALLS.lock().unwrap_or_else(|poison| poison.into_inner())
}

/// Starts the thread, unless it runs.
fn start() -> io::Result<()> {
    static STARTED: OnceLock<()> = OnceLock::new();
    static STARTING: Mutex<()> = Mutex::new(());
    let _alone = STARTING.lock().unwrap_or_else(|poison| poison.into_inner());
    if STARTED.get().is_none() {
        eal::with_signals_blocked(|| {
            let thread = std::thread::Builder::new().name("vhost-calls".into());
            thread.spawn(run)
        })?;
        let _ = STARTED.set(());
    }
    Ok(())
}

fn run() {
    loop {
        let mut calls = calls();
        while calls.is_empty() {
            calls = ADDED
                .wait(calls)
                .unwrap_or_else(|poison| poison.into_inner());
        }
        calls.retain(|call| call.strong_count() > 0);
        let live: Vec<Arc<Call>> = calls.iter().filter_map(Weak::upgrade).collect();
        // Who adds one must not wait for all of these.
        drop(calls);
        live.iter().for_each(|call| call.unblock());
        drop(live);
        std::thread::sleep(TICK);
    }
}

/// Makes a descriptor non-blocking; false if it was already.
pub(super) fn set_nonblocking(file: &OwnedFd) -> bool {
    match fcntl_getfl(file) {
        Ok(flags) if !flags.contains(OFlags::NONBLOCK) => {
            let _ = fcntl_setfl(file, flags | OFlags::NONBLOCK);
            true
        }
        _ => false,
    }
}

/// Returns whether writers of 1 have to wait.
fn is_full(event: &OwnedFd) -> bool {
    let mut asked = [PollFd::new(event, PollFlags::OUT)];
    let ready = poll(&mut asked, Some(&Timespec::default()));
    ready.is_ok() && !asked[0].revents().contains(PollFlags::OUT)
}

/// Reads an event's counter without waiting for it to be raised.
fn drain(event: &OwnedFd) {
    let mut counter = [0; 8];
    let mut room = [IoSliceMut::new(&mut counter)];
    // Whatever the descriptor's flags are by now. This offset stands for none.
    let read = rustix::io::preadv2(event, &mut room, u64::MAX, ReadWriteFlags::NOWAIT);
    if let Err(Errno::NOTSUP | Errno::NOSYS | Errno::INVAL) = read {
        // Linux before 5.8 knows no such reads of events.
        let _ = rustix::io::read(event, &mut counter);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::{EventfdFlags, eventfd};
    use std::time::Instant;

    /// Returns an event, and the front end's descriptor of it.
    fn shared() -> (OwnedFd, OwnedFd) {
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap();
        let theirs = event.try_clone().unwrap();
        (event, theirs)
    }

    fn set_blocking(event: &OwnedFd) {
        let flags = fcntl_getfl(event).unwrap();
        fcntl_setfl(event, flags - OFlags::NONBLOCK).unwrap();
    }

    fn fill(event: &OwnedFd) {
        rustix::io::write(event, &(u64::MAX - 1).to_ne_bytes()).unwrap();
    }

    fn wait_for(what: &str, done: impl Fn() -> bool) {
        let since = Instant::now();
        while !done() {
            assert!(since.elapsed() < Duration::from_secs(20), "{what}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    #[test]
    fn a_write_ends_although_only_the_writer_holds_the_descriptor() {
        let (event, theirs) = shared();
        let call = Call::new(event).unwrap();
        let weak = Arc::downgrade(&call);
        // Several times: where it is looked at just before the write, that ends at once.
        let writer = std::thread::spawn(move || {
            for _ in 0..5 {
                set_nonblocking(&theirs);
                let _ = rustix::io::read(&theirs, &mut [0; 8]);
                fill(&theirs);
                set_blocking(&theirs);
                call.tell();
            }
        });
        wait_for("writes end", || writer.is_finished());
        writer.join().unwrap();
        wait_for("the descriptor is closed", || weak.upgrade().is_none());
    }

    #[test]
    fn a_write_ends_although_the_descriptor_looks_harmless_again() {
        let (event, theirs) = shared();
        fill(&theirs);
        set_blocking(&theirs);
        let call = Arc::new(Call {
            event,
            blocked: AtomicBool::new(false),
        });
        let writer = std::thread::spawn({
            let call = Arc::clone(&call);
            move || call.tell()
        });
        std::thread::sleep(Duration::from_millis(100));
        assert!(!writer.is_finished());
        assert!(set_nonblocking(&theirs));
        call.unblock();
        wait_for("the write ends", || writer.is_finished());
        assert!(!call.has_blocked());
    }

    #[test]
    fn a_counter_that_is_not_full_is_left_alone() {
        let (event, theirs) = shared();
        let call = Call::new(event).unwrap();
        call.tell();
        set_blocking(&theirs);
        wait_for("it does not block", || call.has_blocked());
        assert!(!call.has_blocked());
        let mut counter = [0; 8];
        rustix::io::read(&theirs, &mut counter).unwrap();
        assert_eq!(u64::from_ne_bytes(counter), 1);
    }

    #[test]
    fn an_empty_counter_is_not_waited_for() {
        let (event, theirs) = shared();
        set_blocking(&theirs);
        let reader = std::thread::spawn(move || drain(&event));
        wait_for("the read ends", || reader.is_finished());
    }
}
