//! Measures the turns of the control thread. It does one thing after the other: while a task runs,
//! no controller gets an echo reply, no command an answer and no rule its timeout. So each turn
//! (all work between two polls of its sockets) is measured, with the task that took the longest and
//! the longest step of that task, if one is named.
//!
//! Tasks are started by [`spawn`], which names them; long parts of them are run by [`step`].

use std::cell::RefCell;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use tokio::task::JoinHandle;

/// Turns of at least this length are counted and logged.
pub const LONG: Duration = Duration::from_millis(50);
/// Shorter tasks and steps are not named.
const WORTH_A_NAME: Duration = Duration::from_millis(1);
/// A step is named only if it took at least one in this many parts of its task's time.
const MUCH: u32 = 3;

/// Statistics of turns.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Turns {
    /// The longest turn.
    pub longest: Duration,
    /// How long the thread did not run during it: others had the processor, or it waited in the
    /// kernel.
    pub away: Duration,
    /// The task that took longest in it and, after a colon, that task's longest step.
    pub doing: String,
    /// Turns of at least [`LONG`].
    pub long: u64,
}

/// A task or step, and its duration.
#[derive(Debug, Default)]
struct Part {
    took: Duration,
    what: String,
}

impl Part {
    fn offer(&mut self, took: Duration, what: impl FnOnce() -> String) {
        if took > self.took {
            *self = Part { took, what: what() };
        }
    }
}

#[derive(Debug, Default)]
struct Book {
    /// The longest step of the current task, and the longest task of the current turn.
    step: Part,
    task: Part,
    /// Statistics since they were cleared, and since they were last logged.
    turns: Turns,
    untold: Turns,
}

impl Book {
    fn task_ended(&mut self, took: Duration, name: &str) {
        let step = std::mem::take(&mut self.step);
        self.task.offer(took, || {
            if step.took * MUCH >= took {
                format!("{name}: {}", step.what)
            } else {
                name.to_owned()
            }
        });
    }

    fn turn_ended(&mut self, took: Duration, away: Duration) {
        let task = std::mem::take(&mut self.task);
        self.step = Part::default();
        for turns in [&mut self.turns, &mut self.untold] {
            turns.long += u64::from(took >= LONG);
            if took > turns.longest {
                (turns.longest, turns.away) = (took, away);
                turns.doing = match task.what.as_str() {
                    "" => "many small tasks".into(),
                    what => what.to_owned(),
                };
            }
        }
    }
}

thread_local! {
    static BOOK: RefCell<Book> = RefCell::default();
}

/// Starts a task of the control thread. `name` says in a word or two what it does. Call it inside a
/// `LocalSet`.
#[expect(clippy::disallowed_methods, reason = "other tasks are to call this")]
pub fn spawn<F>(name: &'static str, future: F) -> JoinHandle<F::Output>
where
    F: Future + 'static,
    F::Output: 'static,
{
    tokio::task::spawn_local(task(name, future))
}

/// Names a task that is started in another way.
pub fn task<F: Future>(name: &'static str, future: F) -> impl Future<Output = F::Output> {
    Timed {
        future: Box::pin(future),
        asks: false,
        ended: move |took: Duration, _: Duration| {
            BOOK.with_borrow_mut(|book| book.task_ended(took, name));
        },
    }
}

/// Wraps the control thread's main future; each poll of it is a turn.
pub fn control<F: Future>(future: F) -> impl Future<Output = F::Output> {
    Timed {
        future: Box::pin(future),
        asks: true,
        ended: |took: Duration, away: Duration| {
            BOOK.with_borrow_mut(|book| book.turn_ended(took, away))
        },
    }
}

/// Runs `act`, and notes it as `what` if it is the longest step of a long task.
pub fn step<T>(what: impl FnOnce() -> String, act: impl FnOnce() -> T) -> T {
    let begin = Instant::now();
    let result = act();
    let took = begin.elapsed();
    if took >= WORTH_A_NAME {
        BOOK.with_borrow_mut(|book| book.step.offer(took, what));
    }
    result
}

/// Returns the statistics since they were cleared.
pub fn turns() -> Turns {
    BOOK.with_borrow(|book| book.turns.clone())
}

/// Returns the statistics since the last call, if any turn was long.
pub fn take_long() -> Option<Turns> {
    BOOK.with_borrow_mut(|book| {
        let turns = std::mem::take(&mut book.untold);
        (turns.long > 0).then_some(turns)
    })
}

/// Clears the statistics.
pub fn clear() {
    BOOK.with_borrow_mut(|book| book.turns = Turns::default());
}

/// A future, and a callback for each poll of it that took long: with its duration, and the time for
/// which the thread did not run.
struct Timed<F, E> {
    future: Pin<Box<F>>,
    /// Whether that time is measured: it costs a system call for each poll.
    asks: bool,
    ended: E,
}

impl<F: Future, E: Fn(Duration, Duration) + Unpin> Future for Timed<F, E> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        let begin = Instant::now();
        let had = self.asks.then(worked);
        let result = self.future.as_mut().poll(context);
        let took = begin.elapsed();
        if took >= WORTH_A_NAME {
            let worked = had.map(|had| worked().saturating_sub(had));
            let away = worked.map(|worked| took.saturating_sub(worked));
            (self.ended)(took, away.unwrap_or_default());
        }
        result
    }
}

/// Returns the processor time of the calling thread.
fn worked() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn last() -> Turns {
        let turns = turns();
        clear();
        turns
    }

    fn sleep(time: Duration) {
        std::thread::sleep(time);
    }

    #[tokio::test(flavor = "current_thread")]
    async fn a_turn_is_named_after_its_longest_task_and_step() {
        control(async {
            task("short", async { sleep(WORTH_A_NAME) }).await;
            task("long", async {
                step(|| "little".into(), || sleep(WORTH_A_NAME));
                sleep(LONG * 20);
            })
            .await;
        })
        .await;
        let turns = last();
        assert_eq!((turns.doing.as_str(), turns.long), ("long", 1));
        assert!(turns.longest >= LONG * 20, "{turns:?}");
        assert!(turns.away > turns.longest / 2, "{turns:?}");
        control(task("task", async {
            step(|| "first".into(), || sleep(WORTH_A_NAME));
            step(|| "second".into(), || sleep(LONG * 20));
        }))
        .await;
        let turns = last();
        assert_eq!((turns.doing.as_str(), turns.long), ("task: second", 1));
        // Nothing is reported twice.
        assert_eq!(take_long().map(|turns| turns.long), Some(2));
        assert_eq!(take_long(), None);
    }

    #[tokio::test(flavor = "current_thread")]
    async fn spawned_tasks_are_measured_on_their_thread() {
        let local = tokio::task::LocalSet::new();
        control(local.run_until(async {
            let slow = spawn("slow", async {
                sleep(LONG * 20);
                5
            });
            assert_eq!(slow.await.unwrap(), 5);
        }))
        .await;
        assert_eq!(last().doing, "slow");
    }
}
