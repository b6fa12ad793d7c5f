//! Teaches a learning bridge where stations are: a packet-out for each, as if a frame had come in
//! at its port. OpenFlow 1.0, which every daemon speaks.

use crate::subject::{Error, station};
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

const HELLO: u8 = 0;
const ERROR: u8 = 1;
const ECHO_REQUEST: u8 = 2;
const ECHO_REPLY: u8 = 3;
const PACKET_OUT: u8 = 13;
const BARRIER_REQUEST: u8 = 18;
const BARRIER_REPLY: u8 = 19;
const NORMAL: u16 = 0xfffa;
/// Packet-outs between two barriers: what is under way at a time.
const AT_A_TIME: u32 = 1000;

/// Has the bridge whose OpenFlow socket this is learn so many stations behind each of its ports.
pub(super) fn stations(socket: &Path, ports: u16, count: u32) -> Result<(), Error> {
    teach(socket, ports, count).map_err(|error| {
        Error::Failed(format!(
            "stations by packet-out to {}: {error}",
            socket.display()
        ))
    })
}

fn teach(socket: &Path, ports: u16, count: u32) -> io::Result<()> {
    let mut stream = UnixStream::connect(socket)?;
    stream.set_read_timeout(Some(Duration::from_secs(60)))?;
    stream.set_write_timeout(Some(Duration::from_secs(60)))?;
    stream.write_all(&message(HELLO, 0, &[]))?;
    let mut batch = Vec::new();
    for port in 1..=ports {
        for number in 0..count {
            batch.extend(packet_out(port, station(port, number, count)));
            if (number + 1) % AT_A_TIME == 0 || number + 1 == count {
                let id = number + 1;
                batch.extend(message(BARRIER_REQUEST, id, &[]));
                stream.write_all(&batch)?;
                batch.clear();
                barrier(&mut stream, id)?;
            }
        }
    }
    Ok(())
}

fn message(kind: u8, id: u32, body: &[u8]) -> Vec<u8> {
    let length = 8 + body.len() as u16;
    let mut bytes = vec![1, kind];
    bytes.extend(length.to_be_bytes());
    bytes.extend(id.to_be_bytes());
    bytes.extend(body);
    bytes
}

/// A frame from a station to itself: it is learned and dropped, and not flooded.
fn packet_out(port: u16, address: u64) -> Vec<u8> {
    let address = &address.to_be_bytes()[2..];
    let mut body = Vec::with_capacity(84);
    body.extend(u32::MAX.to_be_bytes());
    body.extend(port.to_be_bytes());
    // One action, output, of eight bytes.
    body.extend(8u16.to_be_bytes());
    body.extend([0, 0, 0, 8]);
    body.extend(NORMAL.to_be_bytes());
    body.extend([0, 0]);
    body.extend([address, address, &[0x88, 0xb5]].concat());
    body.extend([0; 46]);
    message(PACKET_OUT, 0, &body)
}

/// Reads until a barrier is answered. An error is one of a packet-out.
fn barrier(stream: &mut UnixStream, wanted: u32) -> io::Result<()> {
    loop {
        let mut head = [0; 8];
        stream.read_exact(&mut head)?;
        let length = usize::from(u16::from_be_bytes([head[2], head[3]]));
        let id = u32::from_be_bytes([head[4], head[5], head[6], head[7]]);
        let mut body = vec![0; length.saturating_sub(8)];
        stream.read_exact(&mut body)?;
        match head[1] {
            BARRIER_REPLY if id == wanted => return Ok(()),
            ECHO_REQUEST => stream.write_all(&message(ECHO_REPLY, id, &body))?,
            ERROR => {
                let code = body.get(..4).map(<[u8]>::to_vec);
                return Err(io::Error::other(format!(
                    "refused, with type and code {code:?}"
                )));
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixListener;

    #[test]
    fn every_station_is_taught_once() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("mgmt");
        let listener = UnixListener::bind(&path).unwrap();
        let switch = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut seen = Vec::new();
            stream.write_all(&message(HELLO, 0, &[])).unwrap();
            stream
                .write_all(&message(ECHO_REQUEST, 9, b"there?"))
                .unwrap();
            let mut head = [0; 8];
            while stream.read_exact(&mut head).is_ok() {
                let mut body = vec![0; usize::from(u16::from_be_bytes([head[2], head[3]])) - 8];
                stream.read_exact(&mut body).unwrap();
                match head[1] {
                    PACKET_OUT => seen.push((body[5], body[22..28].to_vec())),
                    BARRIER_REQUEST => {
                        head[1] = BARRIER_REPLY;
                        stream.write_all(&head).unwrap();
                    }
                    ECHO_REPLY => assert_eq!(body, b"there?"),
                    kind => assert_eq!(kind, HELLO),
                }
            }
            seen
        });
        stations(&path, 2, 1500).unwrap();
        let seen = switch.join().unwrap();
        assert_eq!(seen.len(), 3000);
        assert_eq!(seen[0], (1, vec![2, 0, 0, 1, 0, 0]));
        assert_eq!(seen[2999], (2, vec![2, 0, 0, 2, 5, 0xdb]));
    }

    #[test]
    fn refusals_are_errors() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("mgmt");
        let listener = UnixListener::bind(&path).unwrap();
        let switch = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            stream
                .write_all(&message(ERROR, 0, &[0, 1, 0, 8, 0, 0]))
                .unwrap();
            let _ = stream.read_to_end(&mut Vec::new());
        });
        let error = stations(&path, 1, 5).unwrap_err().to_string();
        assert!(
            error.contains("refused") && error.contains("mgmt"),
            "{error}"
        );
        switch.join().unwrap();
    }
}
