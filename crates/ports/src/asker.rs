//! Looks at kernel interfaces on a thread of their own, and waits for it a little only.
//!
//! Who asks the kernel about an interface waits for its lock of all network devices (rtnl), which
//! whoever deletes a network namespace with devices in it may have for seconds. The control thread
//! answers controllers and must not wait for that. So it leaves its looks to this thread, waits
//! for [`PATIENCE`], in which an answer nearly always comes, and goes on with what it knew where
//! none has; the answer is there at a later look.

use std::cell::Cell;
use std::sync::OnceLock;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel, sync_channel};
use std::time::{Duration, Instant};

/// How long is waited for an answer.
pub(crate) const PATIENCE: Duration = Duration::from_millis(5);
/// For how long nobody waits after one has waited in vain: most of the time is for other work.
const PAUSE: Duration = Duration::from_millis(100);
/// Bytes of the thread's stack.
const STACK: usize = 128 << 10;

type Job = Box<dyn FnOnce() + Send>;

/// Where questions go; None where there is no thread. An interface has one question at a time, so
/// there are never more of them than interfaces.
static QUESTIONS: OnceLock<Option<Sender<Job>>> = OnceLock::new();

thread_local! {
    /// Until when this thread does not wait for answers.
    static HURRIED: Cell<Option<Instant>> = const { Cell::new(None) };
}

fn start() -> Option<Sender<Job>> {
    let (questions, asked) = channel::<Job>();
    let thread = std::thread::Builder::new()
        .name("links".to_owned())
        .stack_size(STACK);
    let begun = thread.spawn(move || {
        for job in asked {
            // One that fails must not take the thread with it: others wait for their answers.
            let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(job));
        }
    });
    match begun {
        Ok(_) => Some(questions),
        Err(error) => {
            tracing::warn!(
                "no thread to ask about network interfaces: {error}; control waits for them"
            );
            None
        }
    }
}

/// An answer that is asked for, or that is there.
pub(crate) struct Answer<T>(Receiver<T>);

/// Why there is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoAnswer {
    /// Not yet.
    Late,
    /// Whoever was to find it has failed.
    Failed,
}

/// Has a question answered: by the thread, or, where there is none, now.
pub(crate) fn ask<T: Send + 'static>(question: impl FnOnce() -> T + Send + 'static) -> Answer<T> {
    let (answer, answered) = sync_channel(1);
    let job: Job = Box::new(move || {
        let _ = answer.send(question());
    });
    match QUESTIONS.get_or_init(start) {
        Some(questions) => {
            if let Err(unsent) = questions.send(job) {
                (unsent.0)();
            }
        }
        None => job(),
    }
    Answer(answered)
}

impl<T> Answer<T> {
    /// Takes the answer, if it comes within so long ([`PATIENCE`] for most); within no time where
    /// the last one that this thread waited for was late.
    pub fn take(&self, patience: Duration) -> Result<T, NoAnswer> {
        let hurried = HURRIED.get().is_some_and(|until| Instant::now() < until);
        let patience = if hurried { Duration::ZERO } else { patience };
        let taken = self.take_within(patience);
        if !hurried {
            let late = matches!(taken, Err(NoAnswer::Late));
            HURRIED.set(late.then(|| Instant::now() + PAUSE));
        }
        taken
    }

    /// Takes the answer, if it comes within so long.
    pub fn take_within(&self, patience: Duration) -> Result<T, NoAnswer> {
        self.0.recv_timeout(patience).map_err(|error| match error {
            RecvTimeoutError::Timeout => NoAnswer::Late,
            RecvTimeoutError::Disconnected => NoAnswer::Failed,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn a_late_answer_is_there_later_and_is_waited_for_once() {
        let (leave, wait) = channel();
        let slow = ask(move || wait.recv_timeout(LONG).map(|()| 7));
        assert_eq!(slow.take(PATIENCE), Err(NoAnswer::Late));
        // Another one behind it: nobody waits for that at all now.
        let next = ask(|| 8);
        assert!(HURRIED.get().is_some());
        assert_eq!(next.take(PATIENCE), Err(NoAnswer::Late));
        leave.send(()).unwrap();
        assert_eq!(slow.take_within(LONG), Ok(Ok(7)));
        assert_eq!(next.take_within(LONG), Ok(8));
    }

    #[test]
    fn a_question_that_fails_takes_no_other_with_it() {
        let failing = ask(|| -> u8 { panic!("on purpose") });
        assert_eq!(failing.take_within(LONG), Err(NoAnswer::Failed));
        assert_eq!(ask(|| 1).take_within(LONG), Ok(1));
    }
}
