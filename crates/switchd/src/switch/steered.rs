//! Kernel interfaces that the daemon steers itself (`other_config:sluice-steer`), as `sluice steer
//! run` does.
//!
//! Each has a thread of its own, which loads and holds the programs, samples, and serves the
//! interface's socket in the run directory; so neither a slow kernel nor an interface that is
//! missing delays anything else. Control only tells it what is wanted ([`Holder::want`]) and reads
//! what has become of it. The kernel detaches the programs with the process, however that ends.
//!
//! An interface that cannot be steered is tried again after [`AGAIN`], or [`AGAIN_LATER`] where the
//! kernel has refused something. Entries and virtual machines survive changes of options, and an
//! interface that goes and comes back, because nobody else may know that they are to be added
//! again.

use crate::config::steered::{DEVICES, Steered as Wanted};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use softirq::control::{End, Owner, check_free, listen, serve};
use softirq::device::{Device, DeviceError};
use softirq::session::{Kept, Options, Session, SessionError};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Pause before an interface is tried again that is missing, or that others steer.
const AGAIN: Duration = Duration::from_secs(1);
/// Pause after any other failure: loading the programs takes the kernel a second of work.
const AGAIN_LATER: Duration = Duration::from_secs(10);

/// What has become of an interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State {
    /// Its thread has not got that far.
    Beginning,
    /// It is steered; how, as text.
    Steered(String),
    /// It is not steered, for this reason; it is tried again.
    Waits(String),
}

/// What control and an interface's thread share.
struct Shared {
    /// What is wanted; none if the interface is to be released.
    wanted: Option<Options>,
    state: State,
    /// Whether the thread has released the interface, and takes no more wishes.
    ended: bool,
}

/// An interface's thread, as control sees it.
struct Holder {
    shared: Arc<Mutex<Shared>>,
    /// A byte wakes the thread.
    call: UnixStream,
    thread: JoinHandle<()>,
}

/// The interfaces that the daemon steers or waits for.
#[derive(Default)]
pub struct Steered {
    holders: RefCell<BTreeMap<String, Holder>>,
}

fn lock(shared: &Mutex<Shared>) -> MutexGuard<'_, Shared> {
    shared
        .lock()
        .unwrap_or_else(|poisoned| poisoned.into_inner())
}

impl Steered {
    /// Steers these interfaces, and releases others. Waits for nothing.
    ///
    /// # Errors
    ///
    /// A thread could not be started.
    pub fn set(&self, wanted: &Wanted, rundir: &Path) -> Result<(), String> {
        let mut holders = self.holders.borrow_mut();
        for (name, holder) in holders.iter() {
            if !wanted.devices.contains(name) {
                holder.want(None);
            }
        }
        holders.retain(|_, holder| !lock(&holder.shared).ended);
        for name in &wanted.devices {
            let options = wanted.options(name);
            let known = holders.get(name);
            if known.is_some_and(|holder| holder.want(Some(options.clone()))) {
                continue;
            }
            let holder = Holder::start(options, rundir.to_owned())
                .map_err(|error| format!("{name}: no thread to steer it: {error}"))?;
            holders.insert(name.clone(), holder);
        }
        Ok(())
    }

    /// Returns the interfaces that are wanted, and what has become of them.
    pub fn states(&self) -> Vec<(String, State)> {
        let holders = self.holders.borrow();
        let states = holders.iter().filter_map(|(name, holder)| {
            let shared = lock(&holder.shared);
            shared.wanted.as_ref()?;
            Some((name.clone(), shared.state.clone()))
        });
        states.collect()
    }

    /// Releases all interfaces. Does not wait for it; [`Steered::finish`] does.
    pub fn release_all(&self) {
        for holder in self.holders.borrow().values() {
            holder.want(None);
        }
    }

    /// Waits until all interfaces have been released, for `limit` at most.
    pub fn finish(&self, limit: Duration) {
        let begin = Instant::now();
        for (name, holder) in std::mem::take(&mut *self.holders.borrow_mut()) {
            while !holder.thread.is_finished() {
                if begin.elapsed() > limit {
                    tracing::warn!(target: "steering", "{name}: the kernel takes long to release it");
                    return;
                }
                std::thread::sleep(Duration::from_millis(1));
            }
        }
    }
}

impl Holder {
    fn start(options: Options, rundir: PathBuf) -> std::io::Result<Holder> {
        let (call, called) = UnixStream::pair()?;
        call.set_nonblocking(true)?;
        called.set_nonblocking(true)?;
        // Threads' names have 15 bytes, and the interface's end tells more than its beginning.
        let name = &options.device;
        let end = &name[name.len().saturating_sub(9)..];
        let thread = std::thread::Builder::new().name(format!("steer-{end}"));
        let shared = Arc::new(Mutex::new(Shared {
            wanted: Some(options),
            state: State::Beginning,
            ended: false,
        }));
        let mut keeper = Keeper {
            shared: Arc::clone(&shared),
            called,
            rundir,
            kept: Kept::default(),
            told: None,
        };
        let thread = thread.spawn(move || keeper.run())?;
        Ok(Holder {
            shared,
            call,
            thread,
        })
    }

    /// Says what is wanted. Returns false if the thread has ended.
    fn want(&self, wanted: Option<Options>) -> bool {
        let mut shared = lock(&self.shared);
        if shared.ended {
            return false;
        }
        if shared.wanted != wanted {
            shared.wanted = wanted;
            // If there is no room for the byte, the thread has been woken already.
            let _ = (&self.call).write(&[1]);
        }
        true
    }
}

/// Why an interface is not steered.
struct Failure {
    text: String,
    again: Duration,
    /// Whether this is nothing unusual: the interface does not exist yet.
    is_missing: bool,
}

impl Failure {
    fn new(text: impl ToString, again: Duration) -> Failure {
        let (text, is_missing) = (text.to_string(), false);
        Failure {
            text,
            again,
            is_missing,
        }
    }
}

impl From<DeviceError> for Failure {
    fn from(error: DeviceError) -> Failure {
        Failure {
            is_missing: matches!(error, DeviceError::Unknown(_)),
            ..Failure::new(error, AGAIN)
        }
    }
}

impl From<SessionError> for Failure {
    fn from(error: SessionError) -> Failure {
        match error {
            SessionError::Device(error) => error.into(),
            error => Failure::new(error, AGAIN_LATER),
        }
    }
}

/// An interface's thread.
struct Keeper {
    shared: Arc<Mutex<Shared>>,
    called: UnixStream,
    rundir: PathBuf,
    /// What the last session has left to the next one.
    kept: Kept,
    /// The failure that was logged last.
    told: Option<String>,
}

impl Keeper {
    fn run(&mut self) {
        while let Some(options) = self.wanted() {
            let pause = match self.steer(options) {
                Ok(()) => continue,
                Err(failure) => self.fail(failure),
            };
            self.wait(pause);
        }
    }

    /// Returns what is wanted. None: the thread must end, and control knows that it does.
    fn wanted(&mut self) -> Option<Options> {
        // Wishes that come from here on wake the thread again.
        while matches!((&self.called).read(&mut [0; 64]), Ok(length) if length > 0) {}
        let mut shared = lock(&self.shared);
        shared.ended = shared.wanted.is_none();
        shared.wanted.clone()
    }

    fn set_state(&self, state: State) {
        lock(&self.shared).state = state;
    }

    /// Notes why the interface is not steered, and logs it if it is news; returns the pause until
    /// it is tried again.
    fn fail(&mut self, failure: Failure) -> Duration {
        if self.told.as_ref() != Some(&failure.text) {
            let text = super::steering::printable(&failure.text);
            match failure.is_missing {
                true => tracing::info!(target: "steering", "{text}; it is waited for"),
                false => tracing::warn!(target: "steering", "not steered: {text}"),
            }
        }
        self.set_state(State::Waits(failure.text.clone()));
        self.told = Some(failure.text);
        failure.again
    }

    /// Waits for a wish, for `limit` at most.
    fn wait(&self, limit: Duration) {
        let limit = Timespec::try_from(limit).ok();
        // An interrupted wait is a short one.
        let _ = poll(
            &mut [PollFd::new(&self.called, PollFlags::IN)],
            limit.as_ref(),
        );
    }

    /// Steers the interface until it is to be released or steered with other options. Fails if it
    /// cannot be steered, or no longer.
    fn steer(&mut self, mut options: Options) -> Result<(), Failure> {
        let device = options.device.clone();
        // These are checked before there is a socket, so that none comes and goes meanwhile.
        let found = Device::find(&device)?;
        check_free(&self.rundir, &device).map_err(|error| Failure::new(error, AGAIN))?;
        found.check_vacant()?;
        let mut server =
            listen(&self.rundir, &device).map_err(|error| Failure::new(error, AGAIN))?;
        let mut session = Session::start(&options)?;
        for text in session.take_over(&self.kept) {
            tracing::warn!(target: "steering", "{device}: not kept: {}", super::steering::printable(&text));
        }
        for text in session.warnings() {
            tracing::warn!(target: "steering", "{device}: {text}");
        }
        let mode = session.mode();
        let how = format!("in {} mode: {}", mode.mode.name(), mode.reason);
        tracing::info!(target: "steering", "{device}: steered {how}");
        self.told = None;
        self.set_state(State::Steered(how));
        loop {
            let hint = format!(
                "{device}: is steered by the switch; take it out of other_config:{DEVICES} in \
                 table Open_vSwitch instead"
            );
            let owner = Owner {
                calls: self.called.as_fd(),
                keeps: Some(&hint),
            };
            let end = serve(&mut session, &mut server, &owner);
            self.kept = session.keep();
            match end {
                Ok(End::Asked) => {}
                Ok(End::Detached) => {
                    let text = "the interface has gone, or somebody has taken the program off";
                    return Err(Failure::new(format!("{device}: {text}"), AGAIN));
                }
                Err(error) => return Err(Failure::new(format!("{device}: {error}"), AGAIN)),
            }
            let Some(wanted) = self.peek() else {
                tracing::info!(target: "steering", "{device}: no longer steered");
                return Ok(());
            };
            // Constants change without a new session, which would forget all choices.
            let same = Options {
                settings: options.settings,
                ..wanted.clone()
            };
            if same != options {
                return Ok(());
            }
            let set = session.set_settings(wanted.settings);
            set.map_err(Failure::from)?;
            options = wanted;
        }
    }

    /// Returns what is wanted now; none if the interface is to be released.
    fn peek(&self) -> Option<Options> {
        while matches!((&self.called).read(&mut [0; 64]), Ok(length) if length > 0) {}
        lock(&self.shared).wanted.clone()
    }
}
