//! Metrics over HTTP, for Prometheus: off unless `other_config:sluice-metrics` of the root row names an address.
//!
//! It speaks as much HTTP as that needs: `GET /metrics`, one request for each connection, and no more than [`CONNECTIONS`] of them at once, each of which has a few seconds.

use crate::switch::Switch;
use crate::switch::waits::{collect, refresh};
use std::cell::Cell;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// Connections served at once.
const CONNECTIONS: usize = 8;
/// Bytes of a request that are read.
const REQUEST: usize = 4096;
/// How long a connection may take.
const PATIENCE: Duration = Duration::from_secs(5);
/// How often the configuration is looked at, and how long to wait after an error.
const LOOK: Duration = Duration::from_secs(1);
/// Forecasts made for one answer; the others stay as they were until the next.
const FORECASTS: usize = 32;

/// All metrics.
pub async fn text(switch: &Rc<Switch>) -> Result<String, String> {
    let (queues, left_out) = collect(switch, None, None, true)?;
    let queues = refresh(switch, queues, FORECASTS).await;
    Ok(switch.waits.metrics(&queues, left_out))
}

fn wanted(switch: &Switch) -> Option<SocketAddr> {
    let applied = switch.applied.borrow();
    applied.global.as_ref().and_then(|global| global.metrics)
}

/// Serves metrics wherever the configuration says, as long as the daemon runs.
pub async fn serve(switch: Rc<Switch>) -> anyhow::Result<()> {
    let busy = Rc::new(Cell::new(0));
    let mut refused = None;
    loop {
        let Some(address) = wanted(&switch) else {
            refused = None;
            tokio::time::sleep(LOOK).await;
            continue;
        };
        match TcpListener::bind(address).await {
            Ok(listener) => {
                refused = None;
                tracing::info!(target: "bridge", "metrics at http://{address}/metrics");
                serve_at(&switch, &listener, address, &busy).await;
            }
            Err(error) => {
                if refused != Some(address) {
                    tracing::warn!(target: "bridge", "no metrics at {address}: {error}");
                    refused = Some(address);
                }
                tokio::time::sleep(LOOK).await;
            }
        }
    }
}

/// Serves at one address until the configuration names another.
async fn serve_at(
    switch: &Rc<Switch>,
    listener: &TcpListener,
    address: SocketAddr,
    busy: &Rc<Cell<usize>>,
) {
    while wanted(switch) == Some(address) {
        let Ok(accepted) = tokio::time::timeout(LOOK, listener.accept()).await else {
            continue;
        };
        let Ok((stream, _)) = accepted else {
            // No descriptors are left, say.
            tokio::time::sleep(LOOK).await;
            continue;
        };
        if busy.get() >= CONNECTIONS {
            continue;
        }
        busy.set(busy.get() + 1);
        let (switch, busy) = (Rc::clone(switch), Rc::clone(busy));
        tokio::task::spawn_local(async move {
            // Whoever goes away early, or takes too long, gets nothing more.
            let _ = tokio::time::timeout(PATIENCE, answer(&switch, stream)).await;
            busy.set(busy.get() - 1);
        });
    }
}

async fn answer(switch: &Rc<Switch>, mut stream: TcpStream) -> std::io::Result<()> {
    let mut request = Vec::with_capacity(REQUEST);
    while !request.windows(4).any(|four| four == b"\r\n\r\n") {
        let mut chunk = [0; 512];
        let read = stream.read(&mut chunk).await?;
        if read == 0 || request.len() + read > REQUEST {
            return Ok(());
        }
        request.extend_from_slice(&chunk[..read]);
    }
    let (status, body) = match path(&request) {
        Some("/metrics") => match text(switch).await {
            Ok(text) => ("200 OK", text),
            Err(error) => ("503 Service Unavailable", format!("{error}\n")),
        },
        Some(_) => ("404 Not Found", "only /metrics is here\n".to_owned()),
        None => (
            "405 Method Not Allowed",
            "only GET is understood\n".to_owned(),
        ),
    };
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: text/plain; version=0.0.4\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes()).await?;
    stream.write_all(body.as_bytes()).await?;
    stream.shutdown().await
}

/// What a GET asks for.
fn path(request: &[u8]) -> Option<&str> {
    let line = request.split(|byte| *byte == b'\r').next()?;
    let mut words = std::str::from_utf8(line).ok()?.split(' ');
    match (words.next(), words.next(), words.next()) {
        (Some("GET"), Some(path), Some("HTTP/1.0" | "HTTP/1.1")) => path.split('?').next(),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_read() {
        assert_eq!(
            path(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n"),
            Some("/metrics")
        );
        assert_eq!(path(b"GET /metrics?x=1 HTTP/1.0\r\n\r\n"), Some("/metrics"));
        assert_eq!(path(b"GET / HTTP/1.1\r\n\r\n"), Some("/"));
        for bad in [
            &b"POST /metrics HTTP/1.1\r\n\r\n"[..],
            b"\r\n\r\n",
            b"GET\r\n\r\n",
            b"\xff\xff \r\n",
            b"GET / HTTP/9\r\n\r\n",
        ] {
            assert_eq!(path(bad), None);
        }
    }
}
