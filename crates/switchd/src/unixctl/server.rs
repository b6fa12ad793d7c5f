//! The control socket's server: one task for each client, in the control thread.

use std::cell::Cell;
use std::io;
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt, Interest};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;

use super::pieces::Encoder;
use super::{Framer, Outcome, Registry, Request, Text, parse_request};
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
/// Longest time for a client to read its reply, or a piece of it.
const WRITE_LIMIT: Duration = Duration::from_secs(30);
/// Time for clients to read their last reply when the daemon ends.
const FAREWELL: Duration = Duration::from_secs(1);

static REQUESTS: Counter = Counter::new("unixctl_received");
static REFUSED: Counter = Counter::new("unixctl_refused");
static MALFORMED: Counter = Counter::new("unixctl_malformed");
static UNREAD: Counter = Counter::new("unixctl_unread");

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
        for counter in [&REQUESTS, &REFUSED, &MALFORMED, &UNREAD] {
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
        match answer {
            Answer::Whole(bytes) => write(&mut stream, &bytes).await?,
            Answer::Pieces(id, pieces) => write_pieces(&mut stream, &id, pieces).await?,
        }
    }
}

/// A reply as bytes, or its id and pieces of its result.
enum Answer {
    Whole(Vec<u8>),
    Pieces(Value, mpsc::Receiver<String>),
}

async fn write(stream: &mut UnixStream, bytes: &[u8]) -> io::Result<()> {
    let written = tokio::time::timeout(WRITE_LIMIT, stream.write_all(bytes)).await;
    if written.is_err() {
        UNREAD.increment();
    }
    written?
}

/// Writes a reply as its pieces are made. If the client does not read one in time, the connection
/// ends, and with it the command.
async fn write_pieces(
    stream: &mut UnixStream,
    id: &Value,
    mut pieces: mpsc::Receiver<String>,
) -> io::Result<()> {
    let mut encoder = Encoder::new();
    write(stream, &encoder.begin(id)).await?;
    while let Some(piece) = tokio::time::timeout(COMMAND_LIMIT, pieces.recv()).await? {
        write(stream, &encoder.piece(&piece)).await?;
    }
    write(stream, &encoder.end()).await
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
) -> io::Result<Option<Answer>> {
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
        Ok(Text::Pieces(pieces)) => return Ok(Some(Answer::Pieces(id, pieces))),
        Ok(Text::Whole(text)) => json!({ "id": id, "result": terminated(text), "error": null }),
        Err(text) => json!({ "id": id, "result": null, "error": terminated(text) }),
    };
    Ok(Some(Answer::Whole(answer.to_string().into_bytes())))
}

/// Waits for the command's result, at most [`COMMAND_LIMIT`], while checking that the client is
/// still connected.
async fn wait(
    mut receiver: oneshot::Receiver<Outcome>,
    stream: &mut UnixStream,
    framer: &mut Framer,
    buffer: &mut [u8],
) -> io::Result<Option<Outcome>> {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::unixctl::PIECE;

    const PIECES: usize = 200;

    /// A registry with a long command, which counts the pieces that it has made, and a short one.
    fn registry(made: &Rc<Cell<usize>>, ended: &Rc<Cell<usize>>) -> Registry {
        let registry = Registry::default();
        let (made, ended) = (made.clone(), ended.clone());
        registry.register("long", "", 0, 0, move |_, reply| {
            let (made, ended) = (made.clone(), ended.clone());
            turns::spawn("long", async move {
                let pieces = reply.pieces();
                for number in 0..PIECES {
                    let piece = format!("\"{number}\"\n").repeat(PIECE / 8);
                    made.set(made.get() + 1);
                    if !pieces.add(piece).await {
                        break;
                    }
                }
                ended.set(ended.get() + 1);
            });
        });
        registry.answer("short", "", 0, 0, |_| Ok("done".into()));
        registry
    }

    async fn client(registry: &Registry) -> UnixStream {
        let (client, server) = UnixStream::pair().unwrap();
        let registry = registry.clone();
        turns::spawn("serve", async move { serve(server, &registry, 0).await });
        client
    }

    async fn ask(client: &mut UnixStream, command: &str) {
        let request = json!({ "id": 1, "method": command, "params": [] });
        client
            .write_all(request.to_string().as_bytes())
            .await
            .unwrap();
    }

    async fn read(client: &mut UnixStream) -> Value {
        let (mut framer, mut buffer) = (Vec::new(), vec![0; 64 * 1024]);
        loop {
            let length = client.read(&mut buffer).await.unwrap();
            assert!(length > 0);
            framer.extend_from_slice(&buffer[..length]);
            if let Ok(value) = serde_json::from_slice(&framer) {
                return value;
            }
        }
    }

    #[test]
    fn a_long_reply_is_made_as_it_is_read() {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build();
        let local = tokio::task::LocalSet::new();
        local.block_on(&runtime.unwrap(), async {
            let (made, ended) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(0)));
            let registry = registry(&made, &ended);
            let mut slow = client(&registry).await;
            ask(&mut slow, "long").await;
            // Others are served while it does not read, and hardly a piece is made.
            for _ in 0..50 {
                let mut other = client(&registry).await;
                ask(&mut other, "short").await;
                assert_eq!(read(&mut other).await["result"], "done\n");
            }
            assert!(made.get() < PIECES / 4, "{} pieces", made.get());
            let result = read(&mut slow).await["result"].clone();
            let expected: String = (0..PIECES)
                .map(|number| format!("\"{number}\"\n").repeat(PIECE / 8))
                .collect();
            assert!(result == expected.as_str(), "another text");
            assert_eq!((made.get(), ended.get()), (PIECES, 1));
            // The connection can be used again; a client that goes ends the command.
            ask(&mut slow, "short").await;
            assert_eq!(read(&mut slow).await["result"], "done\n");
            made.set(0);
            ask(&mut slow, "long").await;
            let mut some = [0; 1000];
            slow.read_exact(&mut some).await.unwrap();
            drop(slow);
            while ended.get() < 2 {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            assert!(made.get() < PIECES / 4, "{} pieces", made.get());
        });
    }
}
