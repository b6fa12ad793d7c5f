//! Slow system calls, made on background threads.
//!
//! Closing a packet socket, or giving one a ring, waits until no processor uses the old state any
//! more (an RCU grace period), some 10 to 30 ms, during which the control thread or a worker would
//! block. So this is done in the background. A socket that is being closed receives and sends
//! nothing more, and its interface may be released, removed or used again meanwhile, since any
//! number of such sockets may be bound to it.
//!
//! A waiting thread does nothing else, but all threads that wait at a time wait for the same grace
//! period. So each job gets its own thread, up to [`THREADS`]; threads end when there are no more
//! jobs. Closing 1,000 sockets takes 14 s one after the other, and 0.2 s with 64 threads.

use std::collections::VecDeque;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::{Condvar, Mutex, MutexGuard, Once, OnceLock};
use std::time::{Duration, Instant};

/// Most waiting jobs, few of which hold more than a socket ([`crate::kernel`] bounds the rings).
/// Further jobs are run by the caller.
const QUEUE_LENGTH: usize = 4096;
/// Most threads, including the permanent one.
const THREADS: usize = 64;
/// Stack size of such a thread, bytes.
const STACK: usize = 128 << 10;

type Job = Box<dyn FnOnce() + Send>;

#[derive(Default)]
struct State {
    jobs: VecDeque<Job>,
    threads: usize,
    /// Threads that wait for a job.
    idle: usize,
}

/// The threads and their jobs.
#[derive(Default)]
struct Pool {
    state: Mutex<State>,
    more: Condvar,
    less: Condvar,
}

static POOL: OnceLock<Pool> = OnceLock::new();
static STARTED: Once = Once::new();

/// Starts the permanent thread, once. It and the threads that it starts inherit the caller's
/// affinity and priority, so the control thread must call this. The permanent thread calls `tend`
/// at intervals of `every`.
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

    /// Runs the permanent thread.
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

    /// Runs jobs until there are none, and starts more threads for other jobs.
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
            // A job that panics must not end the thread, since others wait for it.
            let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(job));
            self.less.notify_all();
        }
    }

    /// Runs a temporary thread, which ends when there are no jobs.
    fn help(&'static self) {
        self.work_off();
        self.state().threads -= 1;
        self.less.notify_all();
    }

    /// Queues a job; returns it if too many wait, or there is no thread.
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

/// Runs a job soon on another thread, or on this one if too many wait.
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

/// Drops something soon, without waiting for it unless too many jobs wait.
pub(crate) fn later(thing: impl Send + 'static) {
    run(move || drop(thing));
}

/// Waits until all jobs are done, for `limit` at most; returns whether they are. Must be called
/// before the process ends, since the kernel would close its sockets one after the other.
pub fn finish(limit: Duration) -> bool {
    let Some(pool) = POOL.get() else {
        return true;
    };
    let deadline = Instant::now() + limit;
    let mut state = pool.state();
    // The permanent thread is idle when there are no jobs.
    while !state.jobs.is_empty() || state.threads > state.idle {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return false;
        }
        // The permanent thread does not notify when it becomes idle.
        let left = left.min(Duration::from_millis(5));
        state = match pool.less.wait_timeout(state, left) {
            Ok((state, _)) => state,
            Err(poisoned) => poisoned.into_inner().0,
        };
    }
    true
}

/// A socket that is closed by [`later`].
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

    /// Reports when it is dropped, and then waits for permission to end.
    struct Slow(Sender<()>, Receiver<()>);

    impl Drop for Slow {
        fn drop(&mut self) {
            let _ = self.1.recv_timeout(Duration::from_secs(20));
            let _ = self.0.send(());
        }
    }

    #[test]
    fn slow_drops_run_on_the_background_thread() {
        begin();
        let (gone, is_gone) = channel();
        let (leave, wait) = channel();
        later(Slow(gone, wait));
        // The drop waits on the other thread, and this one goes on.
        assert!(is_gone.recv_timeout(Duration::from_millis(50)).is_err());
        leave.send(()).unwrap();
        // Other tests' jobs may occupy all threads for some 20 s.
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
                // Waits until several other jobs run, too.
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
