//! The control socket's server: one task for each client, in the control thread.

use std::cell::Cell;
use std::io;
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt, Interest};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use super::{Framer, Registry, Request, parse_request};
use crate::coverage::Counter;
use crate::plain_error;
use crate::streams::unix;
use crate::turns;

/// Most clients served at once. `ovs-appctl` connects for one command, so more are a mistake.
const MAXIMUM_CLIENTS: usize = 64;
/// Longest time that a client may send nothing.
const IDLE_LIMIT: Duration = Duration::from_secs(300);
/// Time limit of a command; `exit` waits for all of the daemon's cleanup.
const COMMAND_LIMIT: Duration = Duration::from_secs(300);
/// Longest time for a client to read its reply.
const WRITE_LIMIT: Duration = Duration::from_secs(30);
/// Time for clients to read their last reply when the daemon ends.
const FAREWELL: Duration = Duration::from_secs(1);

static REQUESTS: Counter = Counter::new("unixctl_received");
static REFUSED: Counter = Counter::new("unixctl_refused");
static MALFORMED: Counter = Counter::new("unixctl_malformed");

/// The socket, bound but not yet served, so that errors appear before the daemon detaches.
#[derive(Debug)]
pub struct Server {
    file: Option<unix::SocketFile>,
    listener: Option<std::os::unix::net::UnixListener>,
    accepting: Option<JoinHandle<()>>,
    clients: Rc<Cell<usize>>,
}

impl Server {
    /// Binds `path`, and replaces a socket that a dead daemon has left there.
    pub fn bind(path: &Path) -> io::Result<Self> {
        let (listener, file) = unix::listen(path)?;
        for counter in [&REQUESTS, &REFUSED, &MALFORMED] {
            crate::coverage::register(counter);
        }
        Ok(Server {
            file: Some(file),
            listener: Some(listener),
            accepting: None,
            clients: Rc::default(),
        })
    }

    /// Starts to serve, in tasks of the current [`tokio::task::LocalSet`].
    pub fn serve(&mut self, registry: Registry) -> io::Result<()> {
        let Some(listener) = self.listener.take() else {
            return Ok(());
        };
        listener.set_nonblocking(true)?;
        let listener = UnixListener::from_std(listener)?;
        self.accepting = Some(turns::spawn(
            "control socket",
            accept(listener, registry, self.clients.clone()),
        ));
        Ok(())
    }

    /// Stops accepting and removes the socket's file. Connected clients stay.
    pub fn close(&mut self) {
        self.listener = None;
        if let Some(accepting) = self.accepting.take() {
            accepting.abort();
        }
        self.file = None;
    }

    /// Waits a moment for clients to read their last replies.
    pub async fn finish(self) {
        let deadline = tokio::time::Instant::now() + FAREWELL;
        while self.clients.get() > 0 && tokio::time::Instant::now() < deadline {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

async fn accept(listener: UnixListener, registry: Registry, clients: Rc<Cell<usize>>) {
    for number in 0u64.. {
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                tracing::warn!(target: "unixctl", "accept failed: {}", plain_error(&error));
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        if clients.get() >= MAXIMUM_CLIENTS {
            REFUSED.increment();
            tracing::warn!(target: "unixctl", "unix#{number}: refused, {MAXIMUM_CLIENTS} clients are connected");
            continue;
        }
        let presence = Presence::new(clients.clone());
        let registry = registry.clone();
        turns::spawn("control socket", async move {
            let _presence = presence;
            if let Err(error) = serve(stream, &registry, number).await {
                tracing::debug!(target: "unixctl", "unix#{number}: {error}");
            }
        });
    }
}

/// Counts a client while it exists.
struct Presence(Rc<Cell<usize>>);

impl Presence {
    fn new(clients: Rc<Cell<usize>>) -> Self {
        clients.set(clients.get() + 1);
        Presence(clients)
    }
}

impl Drop for Presence {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

async fn serve(mut stream: UnixStream, registry: &Registry, number: u64) -> io::Result<()> {
    let mut framer = Framer::default();
    let mut buffer = vec![0; 16 * 1024];
    loop {
        let message = loop {
            match framer.next_message() {
                Ok(Some(message)) => break message,
                Ok(None) => {}
                Err(error) => {
                    MALFORMED.increment();
                    tracing::warn!(target: "jsonrpc", "unix#{number}: received bad JSON-RPC message: {error}");
                    return Ok(());
                }
            }
            let length = tokio::time::timeout(IDLE_LIMIT, stream.read(&mut buffer)).await??;
            if length == 0 {
                return Ok(());
            }
            framer.push(&buffer[..length]);
        };
        let request = match parse_request(&message) {
            Ok(request) => request,
            Err(problem) => {
                MALFORMED.increment();
                tracing::warn!(target: "unixctl", "unix#{number}: {problem}");
                return Ok(());
            }
        };
        REQUESTS.increment();
        let Some(answer) = answer(registry, request, &mut stream, &mut framer, &mut buffer).await?
        else {
            return Ok(());
        };
        tokio::time::timeout(WRITE_LIMIT, stream.write_all(&answer)).await??;
    }
}

/// Runs a request and returns its reply. While the command runs, what the client sends is kept (up
/// to the limit of one message; the rest stays in the socket). Returns none if the client goes
/// away.
async fn answer(
    registry: &Registry,
    request: Request,
    stream: &mut UnixStream,
    framer: &mut Framer,
    buffer: &mut [u8],
) -> io::Result<Option<Vec<u8>>> {
    let Request {
        id,
        method,
        arguments,
    } = request;
    tracing::debug!(target: "unixctl", "received request {method}{:?}, id={id}", arguments.as_deref().unwrap_or_default());
    let result = match arguments {
        None => Err(format!("\"{method}\" command has non-string argument")),
        Some(arguments) => {
            let receiver = registry.run(&method, arguments);
            match wait(receiver, stream, framer, buffer).await? {
                Some(result) => result,
                None => return Ok(None),
            }
        }
    };
    let terminated = |mut text: String| {
        if !text.is_empty() && !text.ends_with('\n') {
            text.push('\n');
        }
        text
    };
    let answer = match result {
        Ok(text) => json!({ "id": id, "result": terminated(text), "error": null }),
        Err(text) => json!({ "id": id, "result": null, "error": terminated(text) }),
    };
    Ok(Some(answer.to_string().into_bytes()))
}

/// Waits for the command's result, at most [`COMMAND_LIMIT`], while checking that the client is
/// still connected.
async fn wait(
    mut receiver: oneshot::Receiver<Result<String, String>>,
    stream: &mut UnixStream,
    framer: &mut Framer,
    buffer: &mut [u8],
) -> io::Result<Option<Result<String, String>>> {
    let mut room = super::framing::MAXIMUM_MESSAGE;
    let limit = tokio::time::sleep(COMMAND_LIMIT);
    tokio::pin!(limit);
    loop {
        tokio::select! {
            biased;
            result = &mut receiver => {
                return Ok(Some(result.unwrap_or_else(|_| Err("the command ended without an answer".into()))));
            }
            () = &mut limit => return Ok(Some(Err("the command takes too long".into()))),
            length = stream.read(buffer), if room > 0 => match length? {
                // The client has gone, or has only shut down its sending side.
                0 if stream.ready(Interest::WRITABLE).await?.is_write_closed() => return Ok(None),
                0 => room = 0,
                length => {
                    framer.push(&buffer[..length]);
                    room = room.saturating_sub(length);
                }
            }
        }
    }
}
