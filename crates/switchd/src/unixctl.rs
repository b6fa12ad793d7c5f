//! The control socket, through which `ovs-appctl` sends commands to the running daemon. The
//! protocol is JSON-RPC 1.0: a request has a command's name and strings as arguments, the reply is
//! one string, a result or an error.
//!
//! A command is a closure in the [`Registry`], which lives in the control thread and may hold
//! anything there (`Rc`, `RefCell`). It gets its arguments and a [`Reply`], which it may use at
//! once or keep and use later from a task. Each client waits for its own reply only; others are
//! served meanwhile.

mod framing;
mod pieces;
mod request;
mod server;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::rc::Rc;

use crate::turns;
use tokio::sync::oneshot;

pub use framing::{Framer, FramingError};
pub use pieces::{PIECE, Pieces, Text};
pub use request::{Request, parse_request};
pub use server::Server;

type Handler = dyn Fn(Vec<String>, Reply);

struct Command {
    usage: String,
    minimum: usize,
    maximum: usize,
    handler: Rc<Handler>,
}

/// The commands of the daemon, by name. Clones share one set.
#[derive(Clone, Default)]
pub struct Registry {
    commands: Rc<RefCell<BTreeMap<String, Command>>>,
}

/// What comes of a command: a result or an error.
pub type Outcome = Result<Text, String>;

/// The reply to a request. If it is dropped unused, the client gets an error and does not wait
/// forever.
#[derive(Debug)]
pub struct Reply {
    sender: Option<oneshot::Sender<Outcome>>,
}

impl Reply {
    fn new() -> (Self, oneshot::Receiver<Outcome>) {
        let (sender, receiver) = oneshot::channel();
        (
            Reply {
                sender: Some(sender),
            },
            receiver,
        )
    }

    /// Sends a result or an error.
    pub fn send(mut self, answer: Result<String, String>) {
        self.give(answer.map(Text::Whole));
    }

    /// Sends a result whose pieces are added by and by.
    pub fn pieces(mut self) -> Pieces {
        let (pieces, receiver) = Pieces::new();
        self.give(Ok(Text::Pieces(receiver)));
        pieces
    }

    /// Sends a result; an empty one prints nothing.
    pub fn ok(self, text: impl Into<String>) {
        self.send(Ok(text.into()));
    }

    /// Sends an error.
    pub fn error(self, text: impl Into<String>) {
        self.send(Err(text.into()));
    }

    /// Returns whether the client has gone, so that a long reply need not be made.
    pub fn is_abandoned(&self) -> bool {
        self.sender.as_ref().is_none_or(oneshot::Sender::is_closed)
    }

    fn give(&mut self, answer: Outcome) {
        if let Some(sender) = self.sender.take() {
            // Fails if the client has gone; then nobody needs the reply.
            let _ = sender.send(answer);
        }
    }
}

impl Drop for Reply {
    fn drop(&mut self) {
        self.give(Err("the command ended without an answer".into()));
    }
}

/// The usage of a command that `list-commands` leaves out.
pub const HIDDEN: &str = "(hidden)";

impl Registry {
    /// Registers the command `name` with `minimum` to `maximum` arguments (`usize::MAX`: any
    /// number). `usage` describes them in `list-commands`. A second registration of a name replaces
    /// the first.
    pub fn register(
        &self,
        name: &str,
        usage: &str,
        minimum: usize,
        maximum: usize,
        handler: impl Fn(Vec<String>, Reply) + 'static,
    ) {
        let command = Command {
            usage: usage.into(),
            minimum,
            maximum,
            handler: Rc::new(handler),
        };
        self.commands.borrow_mut().insert(name.into(), command);
    }

    /// Registers a command that replies at once.
    pub fn answer(
        &self,
        name: &str,
        usage: &str,
        minimum: usize,
        maximum: usize,
        handler: impl Fn(&[String]) -> Result<String, String> + 'static,
    ) {
        self.register(name, usage, minimum, maximum, move |arguments, reply| {
            reply.send(handler(&arguments))
        });
    }

    /// Runs the command `name`. The reply, also to an unknown command or to a wrong number of
    /// arguments, comes through the receiver.
    pub fn run(&self, name: &str, arguments: Vec<String>) -> oneshot::Receiver<Outcome> {
        let (reply, receiver) = Reply::new();
        // The borrow ends before the handler runs, which may itself register commands.
        match self.find(name, arguments.len()) {
            Ok(handler) => turns::step(|| name.to_owned(), || handler(arguments, reply)),
            Err(error) => reply.error(error),
        }
        receiver
    }

    fn find(&self, name: &str, given: usize) -> Result<Rc<Handler>, String> {
        let commands = self.commands.borrow();
        let Some(command) = commands.get(name) else {
            return Err(format!(
                "\"{name}\" is not a valid command (use \"list-commands\" to see a list of valid commands)"
            ));
        };
        if given < command.minimum {
            return Err(format!(
                "\"{name}\" command requires at least {} arguments",
                command.minimum
            ));
        }
        if given > command.maximum {
            return Err(format!(
                "\"{name}\" command takes at most {} arguments",
                command.maximum
            ));
        }
        Ok(command.handler.clone())
    }

    /// Returns the text of `list-commands`.
    pub fn list(&self) -> String {
        let mut text = String::from("The available commands are:\n");
        for (name, command) in self.commands.borrow().iter() {
            if command.usage == HIDDEN {
                continue;
            }
            let _ = writeln!(text, "  {name:<23} {}", command.usage);
        }
        text
    }
}

impl std::fmt::Debug for Registry {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_set()
            .entries(self.commands.borrow().keys())
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(registry: &Registry, name: &str, arguments: &[&str]) -> Result<String, String> {
        let arguments = arguments.iter().map(|text| text.to_string()).collect();
        let outcome = registry.run(name, arguments).try_recv();
        outcome.expect("answered at once").map(|text| match text {
            Text::Whole(text) => text,
            Text::Pieces(_) => panic!("in pieces"),
        })
    }

    #[test]
    fn commands_and_their_errors() {
        let registry = Registry::default();
        registry.answer("b/echo", "WORD [WORD]", 1, 2, |words| Ok(words.join(" ")));
        registry.register("a", "", 0, 0, |_, _reply| {});
        let inner = registry.clone();
        registry.register("add", "", 0, 0, move |_, reply| {
            inner.answer("added", "", 0, 0, |_| Ok(String::new()));
            reply.ok("done");
        });
        assert_eq!(run(&registry, "b/echo", &["x", "y"]), Ok("x y".into()));
        let error = |text: &str| Err(text.to_string());
        assert_eq!(
            run(&registry, "b/echo", &[]),
            error("\"b/echo\" command requires at least 1 arguments")
        );
        assert_eq!(
            run(&registry, "b/echo", &["1", "2", "3"]),
            error("\"b/echo\" command takes at most 2 arguments")
        );
        let unknown = "\"foo\" is not a valid command (use \"list-commands\" to see a list of valid commands)";
        assert_eq!(run(&registry, "foo", &[]), error(unknown));
        assert_eq!(
            run(&registry, "a", &[]),
            error("the command ended without an answer")
        );
        assert_eq!(run(&registry, "add", &[]), Ok("done".into()));
        assert_eq!(
            registry.list(),
            "The available commands are:\n  a                       \n  add                     \n  added                   \n  \
             b/echo                  WORD [WORD]\n"
        );
    }
}
