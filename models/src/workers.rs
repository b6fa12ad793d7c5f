//! Workers and control: what is put into a worker's mailbox, whoever sleeps meanwhile.

use crate::epoch::Domain;
use crate::sleeper::Sleeper;
use crate::sync::{ArrayQueue, AtomicU64, Ordering, explore, yield_now};
use crate::wake::Wake;
use loom::thread;
use std::sync::Arc;

/// What a worker and others share (`datapath::worker::mailbox`).
struct Mailbox {
    commands: ArrayQueue<u32>,
    packet_outs: ArrayQueue<u32>,
    answers: ArrayQueue<u32>,
    sleeper: Sleeper,
}

impl Mailbox {
    fn new() -> Arc<Mailbox> {
        Arc::new(Mailbox {
            commands: ArrayQueue::new(4),
            packet_outs: ArrayQueue::new(4),
            answers: ArrayQueue::new(4),
            sleeper: Sleeper::new(Wake::new()),
        })
    }

    /// A worker's turn (`Worker::turn`): how many things it has done.
    fn turn(&self) -> u32 {
        let mut done = 0;
        for queue in [&self.commands, &self.packet_outs, &self.answers] {
            while !queue.is_empty() && queue.pop().is_some() {
                done += 1;
            }
        }
        done
    }

    /// A worker with nothing to do (`Worker::sleep`). There is no limit: what is missed stays so.
    fn sleep(&self) {
        self.sleeper.lie_down();
        let found = [&self.commands, &self.packet_outs, &self.answers]
            .iter()
            .any(|queue| !queue.is_empty());
        if !found {
            self.sleeper.wake().wait();
        }
        self.sleeper.get_up(!found);
    }
}

/// A command, a packet-out and an answer come from two threads, while the worker sleeps whenever it
/// finds nothing: it does them all.
pub fn a_worker_never_sleeps_over_what_is_put_into_its_mailbox() {
    explore(2, || {
        let mailbox = Mailbox::new();
        let worker = {
            let mailbox = Arc::clone(&mailbox);
            thread::spawn(move || {
                let mut left = 3;
                while left > 0 {
                    match mailbox.turn() {
                        0 => mailbox.sleep(),
                        done => left -= done,
                    }
                }
            })
        };
        let other = {
            let mailbox = Arc::clone(&mailbox);
            thread::spawn(move || {
                mailbox.answers.push(0).expect("room");
                mailbox.sleeper.nudge();
            })
        };
        for queue in [&mailbox.commands, &mailbox.packet_outs] {
            queue.push(0).expect("room");
            mailbox.sleeper.nudge();
        }
        worker.join().expect("the worker");
        other.join().expect("the other");
    });
}

/// Control puts a command and publishes an epoch; once that has passed, the worker does nothing
/// more without having seen the command. So control may take away what the command says is gone.
pub fn a_command_is_seen_once_its_epoch_has_passed() {
    explore(3, || {
        let (mailbox, domain) = (Mailbox::new(), Arc::new(Domain::default()));
        let gone = Arc::new(AtomicU64::new(0));
        let mut reader = domain.reader().expect("a slot");
        let worker = {
            let (mailbox, gone) = (Arc::clone(&mailbox), Arc::clone(&gone));
            thread::spawn(move || {
                let mut told = 0;
                for turn in 0..2 {
                    reader.begin();
                    while !mailbox.commands.is_empty() && mailbox.commands.pop().is_some() {
                        told += 1;
                    }
                    if told == 0 {
                        assert_eq!(
                            gone.load(Ordering::Acquire),
                            0,
                            "it works with what is gone"
                        );
                    }
                    if turn == 0 {
                        reader.offline();
                    }
                }
                reader.offline();
            })
        };
        mailbox.commands.push(0).expect("room");
        mailbox.sleeper.nudge();
        let epoch = domain.publish();
        while !domain.passed(epoch) {
            yield_now();
        }
        gone.store(1, Ordering::Release);
        worker.join().expect("the worker");
    });
}
