//! Runs slow jobs one after the other on a thread of its own, so that they do not delay the control
//! thread.

use std::sync::Mutex;
use std::sync::mpsc::{Sender, channel};

/// A job.
pub(crate) type Job = Box<dyn FnOnce() + Send>;

/// The thread: started with the first job, ends with its owner when all jobs are done.
#[derive(Default)]
pub(crate) struct Background {
    jobs: Mutex<Option<Sender<Job>>>,
}

impl Background {
    /// Queues a job; returns false when no thread can be started for it.
    pub fn run(&self, job: Job) -> bool {
        let mut jobs = self
            .jobs
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner());
        let job = match &*jobs {
            None => job,
            Some(sender) => match sender.send(job) {
                Ok(()) => return true,
                // A job has panicked and ended the thread: start another.
                Err(unsent) => unsent.0,
            },
        };
        let (sender, receiver) = channel::<Job>();
        let work = move || {
            step_back();
            receiver.into_iter().for_each(|job| job());
        };
        let thread = std::thread::Builder::new().name("tables".to_owned());
        if thread.spawn(work).is_err() {
            return false;
        }
        let sent = sender.send(job).is_ok();
        *jobs = Some(sender);
        sent
    }
}

/// Lowers the thread's priority below all others, so that polling workers never wait for it.
fn step_back() {
    #[cfg(target_os = "linux")]
    // SAFETY: takes numbers only; 0 is the calling thread. Failure leaves the priority as it was.
    unsafe {
        libc::setpriority(libc::PRIO_PROCESS, 0, 19);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, Instant};

    #[test]
    fn jobs_are_done_in_order_also_after_one_has_failed() {
        let background = Background::default();
        let (sender, receiver) = channel();
        let note = |number: u32| {
            let sender = sender.clone();
            Box::new(move || sender.send(number).unwrap()) as Job
        };
        assert!(background.run(note(1)) && background.run(note(2)));
        let limit = Duration::from_secs(20);
        assert_eq!(
            (receiver.recv_timeout(limit), receiver.recv_timeout(limit)),
            (Ok(1), Ok(2))
        );
        assert!(background.run(Box::new(|| panic!("a job that fails"))));
        // The panicking thread may take a moment to end, and jobs queued meanwhile are lost with
        // it. The new thread has low priority, so on a busy machine its job may start late.
        let begun = Instant::now();
        let mut done = false;
        while !done && begun.elapsed() < Duration::from_secs(60) {
            let wait = Duration::from_millis(50);
            done = background.run(note(3)) && receiver.recv_timeout(wait).is_ok();
        }
        assert!(done);
    }
}
