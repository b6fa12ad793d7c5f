//! Signals that end the lab.

use super::{Cleaned, PLACES, take_away};
use crate::subject::Error;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::pipe::{PipeFlags, pipe_with};
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::IntoRawFd;
use std::sync::atomic::{AtomicI32, Ordering};
use std::time::{Duration, Instant};

const ENDING: [libc::c_int; 3] = [libc::SIGINT, libc::SIGTERM, libc::SIGHUP];

/// The first signal that came; 0: none.
static CAME: AtomicI32 = AtomicI32::new(0);
/// Where the handler writes.
static PIPE: AtomicI32 = AtomicI32::new(-1);

/// The signal that asked the lab to end, if any. From then on waits end with an error, and nothing
/// more is made.
pub fn interrupted() -> Option<i32> {
    Some(CAME.load(Ordering::Relaxed)).filter(|signal| *signal != 0)
}

/// Has SIGINT, SIGTERM and SIGHUP end the lab in good order.
///
/// The first is noted ([`interrupted`]), so that who runs the lab can stop, drop its places, save
/// what it has and end. Where places are still there after `grace`, or another signal comes, they
/// are removed and the process ends as the signal would have ended it. Signals that were ignored
/// when the process was started (`nohup`) still are.
pub fn heed_signals(grace: Duration) -> Result<(), Error> {
    let problem = |what: &str, error: io::Error| Error::Failed(format!("{what}: {error}"));
    let (reader, writer) = pipe_with(PipeFlags::CLOEXEC)
        .map_err(|error| problem("a pipe for signals", error.into()))?;
    // It stays open, for the handler.
    PIPE.store(writer.into_raw_fd(), Ordering::Relaxed);
    let reader = File::from(reader);
    std::thread::Builder::new()
        .name("signals".into())
        .spawn(move || watch(reader, grace))
        .map_err(|error| Error::Failed(format!("a thread for signals: {error}")))?;
    for signal in ENDING {
        // SAFETY: the actions are plain data that live until the calls return; the handler only
        // stores, and writes to a pipe, which a handler may.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            if libc::sigaction(signal, std::ptr::null(), &mut action) == 0
                && action.sa_sigaction == libc::SIG_IGN
            {
                continue;
            }
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = note as *const () as usize;
            action.sa_flags = libc::SA_RESTART;
            if libc::sigaction(signal, &action, std::ptr::null_mut()) != 0 {
                return Err(problem("a signal's handler", io::Error::last_os_error()));
            }
        }
    }
    Ok(())
}

extern "C" fn note(signal: libc::c_int) {
    let _ = CAME.compare_exchange(0, signal, Ordering::Relaxed, Ordering::Relaxed);
    let byte = signal as u8;
    // SAFETY: errno is this thread's, and is put back; the byte lives until the call returns.
    unsafe {
        let errno = libc::__errno_location();
        let before = *errno;
        libc::write(PIPE.load(Ordering::Relaxed), (&raw const byte).cast(), 1);
        *errno = before;
    }
}

fn watch(mut reader: File, grace: Duration) {
    let mut byte = [0];
    if reader.read_exact(&mut byte).is_err() {
        return;
    }
    let signal = i32::from(byte[0]);
    let end = Instant::now() + grace;
    loop {
        let left = end.saturating_duration_since(Instant::now());
        let places_left = || !PLACES.lock().map_or(true, |places| places.made.is_empty());
        if readable(&reader, left.min(Duration::from_millis(100)))
            || left.is_zero() && places_left()
        {
            break;
        }
    }
    // The lock is kept, so that nothing more is made.
    let mut places = PLACES
        .lock()
        .unwrap_or_else(|poisoned| poisoned.into_inner());
    places.closed = true;
    let mut cleaned = Cleaned::default();
    for place in std::mem::take(&mut places.made) {
        take_away(&place, &mut cleaned);
    }
    for problem in cleaned.failed {
        eprintln!("lab: {problem}");
    }
    // SAFETY: no pointers; the signal's own effect is to end the process.
    unsafe {
        libc::signal(signal, libc::SIG_DFL);
        libc::raise(signal);
    }
    std::process::exit(128 + signal);
}

/// Whether another signal comes within the time.
fn readable(reader: &File, limit: Duration) -> bool {
    let limit = Timespec {
        tv_sec: limit.as_secs() as i64,
        tv_nsec: limit.subsec_nanos().into(),
    };
    let least = Timespec {
        tv_sec: 0,
        tv_nsec: 20_000_000,
    };
    let mut polls = [PollFd::new(reader, PollFlags::IN)];
    poll(&mut polls, Some(&limit.max(least))) == Ok(1)
}
