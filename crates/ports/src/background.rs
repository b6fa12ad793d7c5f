//! What the kernel takes its time for, done on threads of their own.
//!
//! To close a packet socket, or to give one a ring, is to wait until no processor looks at what was
//! there before (a grace period of RCU), some 10 to 30 ms, with the control thread or a worker
//! standing still. So they hand it over: by a socket that is being closed nothing is received or
//! sent any more, and the interface may be given away, removed or used again meanwhile, since any
//! number of such sockets may be bound to one.
//!
//! Whoever waits does nothing else, and all who wait at a time wait for the same grace period: so
//! each has a thread, [`THREADS`] at most, which ends when nothing is left to do. 1,000 sockets
//! that are closed one after the other take 14 s, by 64 threads 0.2 s.

use std::collections::VecDeque;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::{Condvar, Mutex, MutexGuard, Once, OnceLock};
use std::time::{Duration, Instant};

/// Jobs that may wait, of which few hold more than a socket ([`crate::kernel`] bounds the rings).
/// What comes beyond is done by who brings it.
const QUEUE_LENGTH: usize = 4096;
/// Threads at most, the one that stays included.
const THREADS: usize = 64;
/// Bytes of such a thread's stack.
const STACK: usize = 128 << 10;

type Job = Box<dyn FnOnce() + Send>;

#[derive(Default)]
struct State {
    jobs: VecDeque<Job>,
    threads: usize,
    /// Threads that wait for a job.
    idle: usize,
}

/// Threads and what they are to do.
#[derive(Default)]
struct Pool {
    state: Mutex<State>,
    more: Condvar,
    less: Condvar,
}

static POOL: OnceLock<Pool> = OnceLock::new();
static STARTED: Once = Once::new();

/// Starts the thread that stays, once. It and those that it starts inherit what its caller has of
/// processors and priority, so this is for the control thread to call. `tend` is called
/// on it whenever `every` has passed.
pub(crate) fn start(every: Duration, tend: fn()) {
    STARTED.call_once(|| {
        let pool = POOL.get_or_init(Pool::default);
        pool.state().threads = 1;
        if !spawn(move || pool.stay(every, tend)) {
            pool.state().threads = 0;
        }
    });
}

fn spawn(work: impl FnOnce() + Send + 'static) -> bool {
    let thread = std::thread::Builder::new()
        .name("close".to_owned())
        .stack_size(STACK);
    let begun = thread.spawn(work);
    if let Err(error) = &begun {
        tracing::warn!("no thread to close sockets: {error}; ports come and go slowly");
    }
    begun.is_ok()
}

impl Pool {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// The thread that stays.
    fn stay(&'static self, every: Duration, tend: fn()) {
        let mut due = Instant::now() + every;
        loop {
            let mut state = self.state();
            while state.jobs.is_empty() && Instant::now() < due {
                let left = due.saturating_duration_since(Instant::now());
                state.idle += 1;
                state = match self.more.wait_timeout(state, left) {
                    Ok((state, _)) => state,
                    Err(poisoned) => poisoned.into_inner().0,
                };
                state.idle -= 1;
            }
            drop(state);
            self.work_off();
            if Instant::now() >= due {
                tend();
                due = Instant::now() + every;
            }
        }
    }

    /// Does what there is to do, and has others do the rest meanwhile.
    fn work_off(&'static self) {
        loop {
            let mut state = self.state();
            let Some(job) = state.jobs.pop_front() else {
                return;
            };
            let helped = !state.jobs.is_empty() && state.idle == 0 && state.threads < THREADS;
            state.threads += usize::from(helped);
            drop(state);
            if helped && !spawn(move || self.help()) {
                self.state().threads -= 1;
            }
            // One that fails must not take the thread with it: others wait for it.
            let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(job));
            self.less.notify_all();
        }
    }

    /// A thread that goes when there is nothing to do.
    fn help(&'static self) {
        self.work_off();
        self.state().threads -= 1;
        self.less.notify_all();
    }

    /// Takes a job; gives it back where too many wait, or nobody is there to do it.
    fn take(&self, job: Job) -> Result<(), Job> {
        let mut state = self.state();
        if state.threads == 0 || state.jobs.len() >= QUEUE_LENGTH {
            return Err(job);
        }
        state.jobs.push_back(job);
        drop(state);
        self.more.notify_one();
        Ok(())
    }
}

/// Does something soon, on another thread; on this one where too much waits already.
pub(crate) fn run(job: impl FnOnce() + Send + 'static) {
    let job: Job = Box::new(job);
    match POOL.get() {
        Some(pool) => {
            if let Err(job) = pool.take(job) {
                job();
            }
        }
        None => job(),
    }
}

/// Drops something soon, and never waits for it but where too much waits already.
pub(crate) fn later(thing: impl Send + 'static) {
    run(move || drop(thing));
}

/// Waits until all that was handed over has been done, for `limit` at most; whether it has. To be
/// called before the process ends: the kernel would close its sockets one after the other.
pub fn finish(limit: Duration) -> bool {
    let Some(pool) = POOL.get() else {
        return true;
    };
    let deadline = Instant::now() + limit;
    let mut state = pool.state();
    // The thread that stays is idle when it has nothing to do.
    while !state.jobs.is_empty() || state.threads > state.idle {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return false;
        }
        // The one that stays goes to rest without a word.
        let left = left.min(Duration::from_millis(5));
        state = match pool.less.wait_timeout(state, left) {
            Ok((state, _)) => state,
            Err(poisoned) => poisoned.into_inner().0,
        };
    }
    true
}

/// A socket that is closed [`later`].
pub(crate) struct Lingering(Option<OwnedFd>);

impl Lingering {
    pub(crate) fn new(fd: OwnedFd) -> Lingering {
        Lingering(Some(fd))
    }
}

impl AsRawFd for Lingering {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_ref().map_or(-1, AsRawFd::as_raw_fd)
    }
}

impl Drop for Lingering {
    fn drop(&mut self) {
        if let Some(fd) = self.0.take() {
            later(fd);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::mpsc::{Receiver, Sender, channel};

    fn begin() {
        start(Duration::from_secs(3600), || {});
    }

    /// Tells when it goes, and waits for leave to.
    struct Slow(Sender<()>, Receiver<()>);

    impl Drop for Slow {
        fn drop(&mut self) {
            let _ = self.1.recv_timeout(Duration::from_secs(20));
            let _ = self.0.send(());
        }
    }

    #[test]
    fn nobody_waits_for_what_goes_slowly() {
        begin();
        let (gone, is_gone) = channel();
        let (leave, wait) = channel();
        later(Slow(gone, wait));
        // It is not gone, and we are here.
        assert!(is_gone.recv_timeout(Duration::from_millis(50)).is_err());
        leave.send(()).unwrap();
        // Other tests' jobs may have all threads for some 20 s.
        is_gone.recv_timeout(Duration::from_secs(60)).unwrap();
    }

    #[test]
    fn many_wait_at_the_same_time_and_none_beyond_the_bound() {
        begin();
        let (now, most, done) = (
            Arc::new(AtomicUsize::new(0)),
            Arc::new(AtomicUsize::new(0)),
            Arc::new(AtomicUsize::new(0)),
        );
        let (here, meet) = channel();
        let jobs = 4 * THREADS;
        for _ in 0..jobs {
            let (now, most, done) = (Arc::clone(&now), Arc::clone(&most), Arc::clone(&done));
            let here = here.clone();
            run(move || {
                most.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                here.send(()).unwrap();
                // Until some others are here too.
                let end = Instant::now() + Duration::from_secs(20);
                while most.load(Ordering::SeqCst) < 8 && Instant::now() < end {
                    std::thread::yield_now();
                }
                now.fetch_sub(1, Ordering::SeqCst);
                done.fetch_add(1, Ordering::SeqCst);
            });
        }
        (0..jobs).for_each(|_| meet.recv_timeout(Duration::from_secs(60)).unwrap());
        let most = most.load(Ordering::SeqCst);
        assert!((8..=THREADS).contains(&most), "{most} at a time");
        let end = Instant::now() + Duration::from_secs(20);
        while done.load(Ordering::SeqCst) < jobs && Instant::now() < end {
            std::thread::yield_now();
        }
        assert_eq!(done.load(Ordering::SeqCst), jobs);
    }

    #[test]
    fn a_job_that_fails_takes_no_other_with_it() {
        begin();
        run(|| panic!("on purpose"));
        let (gone, is_gone) = channel();
        run(move || gone.send(()).unwrap());
        is_gone.recv_timeout(Duration::from_secs(20)).unwrap();
    }

    #[test]
    fn a_socket_that_lingers_goes_in_the_end() {
        begin();
        let (socket, mut peer) = std::os::unix::net::UnixStream::pair().unwrap();
        peer.set_read_timeout(Some(Duration::from_secs(20)))
            .unwrap();
        drop(Lingering::new(socket.into()));
        assert_eq!(std::io::Read::read(&mut peer, &mut [0]).unwrap(), 0);
    }
}
