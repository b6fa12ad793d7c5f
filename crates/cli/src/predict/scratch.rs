//! A temporary directory for the helper, removed when the command ends, however it ends.

use anyhow::{Context, Result};
use std::path::{Path, PathBuf};
use tempfile::TempDir;

/// Signals that end a command early.
const ENDING: [libc::c_int; 3] = [libc::SIGINT, libc::SIGTERM, libc::SIGHUP];

/// The directory. It remains only if the command is killed by a signal that cannot be caught.
pub(super) struct Scratch(TempDir);

impl Scratch {
    /// Creates the directory. From then on a thread handles ending signals by removing it first, so
    /// it must be created before other threads.
    pub(super) fn new() -> Result<Scratch> {
        // Block first: a signal that comes before the thread runs waits for it.
        let set = block_ending();
        let directory = tempfile::Builder::new().prefix("sluice-predict-").tempdir();
        let directory = directory.context("cannot make a directory for the traffic")?;
        let path = directory.path().to_owned();
        std::thread::Builder::new()
            .name("signals".into())
            .spawn(move || remove_when_ended(&set, path))
            .context("cannot start a thread")?;
        Ok(Scratch(directory))
    }

    pub(super) fn path(&self) -> &Path {
        self.0.path()
    }
}

/// Blocks ending signals in this thread and those that it starts, except signals that were ignored
/// when the command was started (`nohup`). Processes that it starts have none blocked.
fn block_ending() -> libc::sigset_t {
    // SAFETY: the sets and actions are plain data that live until the calls return.
    unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&mut set);
        for signal in ENDING {
            let mut action: libc::sigaction = std::mem::zeroed();
            let asked = libc::sigaction(signal, std::ptr::null(), &mut action);
            if asked == 0 && action.sa_sigaction != libc::SIG_IGN {
                libc::sigaddset(&mut set, signal);
            }
        }
        libc::pthread_sigmask(libc::SIG_BLOCK, &set, std::ptr::null_mut());
        set
    }
}

/// Waits for a signal, removes the directory and ends the process as the signal would have.
fn remove_when_ended(set: &libc::sigset_t, path: PathBuf) {
    let mut signal = 0;
    // SAFETY: the set and the number live until the call returns.
    if unsafe { libc::sigwait(set, &mut signal) } != 0 {
        return;
    }
    let _ = std::fs::remove_dir_all(path);
    // SAFETY: no pointers but to the set; the signal's own effect is to end the process.
    unsafe {
        libc::pthread_sigmask(libc::SIG_UNBLOCK, set, std::ptr::null_mut());
        libc::raise(signal);
    }
}
