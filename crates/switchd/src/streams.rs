//! Streams: the connections of the control plane, by Open vSwitch's names for them.
//! `tcp:HOST[:PORT]`, `ssl:HOST[:PORT]` and `unix:PATH` connect ([`Active`]); `ptcp:[PORT][:IP]`,
//! `pssl:[PORT][:IP]` and `punix:PATH` listen ([`Passive`]). IPv6 addresses are in brackets. All of
//! them give a [`Stream`], so the code above knows nothing about sockets.
//!
//! Accepting takes two steps, because a TLS handshake depends on the peer: a listener that waited
//! for it would serve nobody else. [`Listener::accept`] returns an [`Incoming`], and a task of its
//! own establishes it.

mod name;
mod tls;
pub mod unix;

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use rustix::net::sockopt;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpSocket, TcpStream, UnixListener, UnixStream, lookup_host};
use tokio_openssl::SslStream;

use crate::coverage::Counter;

pub use name::{Active, NameError, Passive};
pub use tls::{Tls, TlsError, TlsFiles};

/// The port registered for OpenFlow, used where an address names none.
pub const OPENFLOW_PORT: u16 = 6653;

/// Longest wait for a peer's part of a TLS handshake after its connection was accepted.
const HANDSHAKE_LIMIT: Duration = Duration::from_secs(10);
/// Most connections that wait to be accepted.
const BACKLOG: u32 = 64;

static OPENED: Counter = Counter::new("stream_open");
static FAILED: Counter = Counter::new("stream_failed");
static ACCEPTED: Counter = Counter::new("pstream_accepted");

/// Why a stream could not be made.
#[derive(Debug, thiserror::Error)]
pub enum StreamError {
    /// An error of the operating system.
    #[error("{}", crate::plain_error(.0))]
    Io(#[from] io::Error),
    /// Bad keys or certificates on either side.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// The time limit has passed.
    #[error("Connection timed out")]
    TimedOut,
}

enum Transport {
    Tcp(TcpStream),
    Unix(unix::Local),
    Tls(Box<SslStream<TcpStream>>),
}

/// An established connection.
pub struct Stream {
    transport: Transport,
    peer: String,
}

impl Stream {
    /// Returns the peer's name for messages: `tcp:192.0.2.1:6653` as given or as accepted, `unix#4`
    /// for an accepted local one.
    pub fn peer(&self) -> &str {
        &self.peer
    }

    fn tcp(&self) -> Option<&TcpStream> {
        match &self.transport {
            Transport::Tcp(stream) => Some(stream),
            Transport::Tls(stream) => Some(stream.get_ref()),
            Transport::Unix(_) => None,
        }
    }

    /// Returns the peer's address, if it has one.
    pub fn peer_address(&self) -> Option<SocketAddr> {
        self.tcp()?.peer_addr().ok()
    }

    /// Sets the DSCP of sent packets, 0 to 63; does nothing for local streams. Errors are the
    /// kernel's.
    pub fn set_dscp(&self, dscp: u8) -> io::Result<()> {
        let Some(stream) = self.tcp() else {
            return Ok(());
        };
        let class = dscp << 2;
        // A listener on IPv6 may have accepted an IPv4 peer.
        match stream.local_addr()?.ip().to_canonical() {
            IpAddr::V4(_) => sockopt::set_ip_tos(stream, class)?,
            IpAddr::V6(_) => sockopt::set_ipv6_tclass(stream, class.into())?,
        }
        Ok(())
    }

    /// Returns this side's address, if it has one.
    pub fn local_address(&self) -> Option<SocketAddr> {
        self.tcp()?.local_addr().ok()
    }
}

impl std::fmt::Debug for Stream {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "Stream({})", self.peer)
    }
}

/// Calls the same method of either transport.
macro_rules! delegate {
    ($self:ident, $method:ident, $context:ident $(, $argument:expr)?) => {
        match &mut $self.get_mut().transport {
            Transport::Tcp(stream) => Pin::new(stream).$method($context $(, $argument)?),
            Transport::Unix(stream) => Pin::new(stream).$method($context $(, $argument)?),
            Transport::Tls(stream) => Pin::new(stream.as_mut()).$method($context $(, $argument)?),
        }
    };
}

impl AsyncRead for Stream {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        delegate!(self, poll_read, context, buffer)
    }
}

impl AsyncWrite for Stream {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        delegate!(self, poll_write, context, bytes)
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        delegate!(self, poll_flush, context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        delegate!(self, poll_shutdown, context)
    }
}

/// Connects, with the TLS handshake, within `limit`.
pub async fn connect(target: &Active, tls: &Tls, limit: Duration) -> Result<Stream, StreamError> {
    let result = match tokio::time::timeout(limit, connect_unlimited(target, tls)).await {
        Ok(result) => result,
        Err(_) => Err(StreamError::TimedOut),
    };
    if result.is_ok() {
        OPENED.increment()
    } else {
        FAILED.increment()
    }
    result
}

async fn connect_unlimited(target: &Active, tls: &Tls) -> Result<Stream, StreamError> {
    let transport = match target {
        Active::Unix(path) => Transport::Unix(unix::Local::new(unix::connect(path).await?)),
        Active::Tcp(host, port) => Transport::Tcp(connect_tcp(host, *port).await?),
        Active::Ssl(host, port) => {
            // After the bootstrap connect again, now checking the peer's certificate.
            let stream = match tls.connect(connect_tcp(host, *port).await?).await? {
                Some(stream) => Some(stream),
                None => tls.connect(connect_tcp(host, *port).await?).await?,
            };
            Transport::Tls(Box::new(stream.ok_or(TlsError::Bootstrap(
                "it is not there after it was stored".into(),
            ))?))
        }
    };
    Ok(Stream {
        transport,
        peer: target.to_string(),
    })
}

/// Tries to connect to the host's addresses in turn.
async fn connect_tcp(host: &str, port: u16) -> io::Result<TcpStream> {
    let mut result = Err(io::Error::from_raw_os_error(libc::EHOSTUNREACH));
    for address in lookup_host((host, port)).await? {
        result = TcpStream::connect(address).await;
        if result.is_ok() {
            break;
        }
    }
    let stream = result?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

enum Socket {
    Tcp(TcpListener),
    Tls(TcpListener),
    Unix {
        listener: UnixListener,
        _file: unix::SocketFile,
    },
}

/// A listening socket. Dropping it closes it and removes its file, if it has one.
pub struct Listener {
    socket: Socket,
    name: String,
}

impl Listener {
    /// Starts to listen. For port 0 the system chooses one and the log says which, as Open
    /// vSwitch's does.
    pub fn bind(target: &Passive) -> io::Result<Self> {
        let name = target.to_string();
        let socket = match target {
            Passive::Unix(path) => {
                let (listener, file) = unix::listen(path)?;
                listener.set_nonblocking(true)?;
                Socket::Unix {
                    listener: UnixListener::from_std(listener)?,
                    _file: file,
                }
            }
            Passive::Tcp(address) => Socket::Tcp(listen_tcp(*address, &name)?),
            Passive::Ssl(address) => Socket::Tls(listen_tcp(*address, &name)?),
        };
        Ok(Listener { socket, name })
    }

    /// Returns its name, as given.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the address it listens on, with the actual port.
    pub fn local_address(&self) -> Option<SocketAddr> {
        match &self.socket {
            Socket::Tcp(listener) | Socket::Tls(listener) => listener.local_addr().ok(),
            Socket::Unix { .. } => None,
        }
    }

    /// Waits for the next connection. Errors are temporary (too many open files): wait a little and
    /// accept again.
    pub async fn accept(&self) -> io::Result<Incoming> {
        static LOCAL_PEERS: AtomicU64 = AtomicU64::new(0);
        let incoming = match &self.socket {
            Socket::Unix { listener, .. } => {
                let (stream, _) = listener.accept().await?;
                let number = LOCAL_PEERS.fetch_add(1, Ordering::Relaxed);
                Incoming {
                    transport: Raw::Unix(stream),
                    peer: format!("unix#{number}"),
                }
            }
            Socket::Tcp(listener) => {
                let (stream, address) = listener.accept().await?;
                stream.set_nodelay(true)?;
                Incoming {
                    transport: Raw::Tcp(stream),
                    peer: format!("tcp:{address}"),
                }
            }
            Socket::Tls(listener) => {
                let (stream, address) = listener.accept().await?;
                stream.set_nodelay(true)?;
                Incoming {
                    transport: Raw::Tls(stream),
                    peer: format!("ssl:{address}"),
                }
            }
        };
        ACCEPTED.increment();
        Ok(incoming)
    }
}

fn listen_tcp(address: SocketAddr, name: &str) -> io::Result<TcpListener> {
    let socket = match address.ip() {
        IpAddr::V4(_) => TcpSocket::new_v4()?,
        IpAddr::V6(_) => TcpSocket::new_v6()?,
    };
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    let listener = socket.listen(BACKLOG)?;
    if address.port() == 0 {
        let port = listener.local_addr()?.port();
        let place = name.split_once(':').map_or(name, |(_, place)| place);
        tracing::info!(target: "socket_util", "{place}: listening on port {port}");
    }
    Ok(listener)
}

enum Raw {
    Tcp(TcpStream),
    Unix(UnixStream),
    Tls(TcpStream),
}

/// An accepted connection that may still need its TLS handshake.
pub struct Incoming {
    transport: Raw,
    peer: String,
}

impl Incoming {
    /// Returns the peer's name, the same as [`Stream::peer`] will.
    pub fn peer(&self) -> &str {
        &self.peer
    }

    /// Makes the stream: for TLS, by the handshake, which may take ten seconds.
    pub async fn establish(self, tls: &Tls) -> Result<Stream, StreamError> {
        let transport = match self.transport {
            Raw::Tcp(stream) => Transport::Tcp(stream),
            Raw::Unix(stream) => Transport::Unix(unix::Local::new(stream)),
            Raw::Tls(stream) => {
                match tokio::time::timeout(HANDSHAKE_LIMIT, tls.accept(stream)).await {
                    Ok(Ok(stream)) => Transport::Tls(Box::new(stream)),
                    Ok(Err(error)) => {
                        FAILED.increment();
                        return Err(error.into());
                    }
                    Err(_) => {
                        FAILED.increment();
                        return Err(StreamError::TimedOut);
                    }
                }
            }
        };
        Ok(Stream {
            transport,
            peer: self.peer,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::sockopt;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    const LIMIT: Duration = Duration::from_secs(20);

    async fn talk(
        listener: &Listener,
        target: &Active,
        server: &Tls,
        client: &Tls,
    ) -> (String, String) {
        let serve = async {
            let mut stream = listener
                .accept()
                .await
                .unwrap()
                .establish(server)
                .await
                .unwrap();
            let mut word = [0; 4];
            stream.read_exact(&mut word).await.unwrap();
            stream.write_all(&word).await.unwrap();
            stream.flush().await.unwrap();
            let peer = stream.peer().to_string();
            // Wait until the client has gone.
            let _ = stream.read(&mut word).await;
            peer
        };
        let ask = async {
            let mut stream = connect(target, client, LIMIT).await.unwrap();
            stream.write_all(b"word").await.unwrap();
            stream.flush().await.unwrap();
            let mut word = [0; 4];
            stream.read_exact(&mut word).await.unwrap();
            assert_eq!(&word, b"word");
            stream.peer().to_string()
        };
        tokio::join!(serve, ask)
    }

    #[tokio::test]
    async fn plain_streams_carry_bytes() {
        let tls = Tls::default();
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("socket");
        let listener = Listener::bind(&Passive::Unix(path.clone())).unwrap();
        let (server, client) = talk(&listener, &Active::Unix(path.clone()), &tls, &tls).await;
        assert!(server.starts_with("unix#"), "{server}");
        assert_eq!(client, format!("unix:{}", path.display()));
        drop(listener);
        assert!(!path.exists());

        let listener = Listener::bind(&Passive::parse("ptcp:0:127.0.0.1", 0).unwrap()).unwrap();
        let port = listener.local_address().unwrap().port();
        let target = Active::parse(&format!("tcp:localhost:{port}"), 1).unwrap();
        let (server, client) = talk(&listener, &target, &tls, &tls).await;
        assert!(server.starts_with("tcp:127.0.0.1:"), "{server}");
        assert_eq!(client, format!("tcp:localhost:{port}"));
    }

    #[tokio::test]
    async fn refusals_and_silence_end_in_errors() {
        let tls = Tls::default();
        let missing = Active::Unix("/nonexistent/socket".into());
        let error = connect(&missing, &tls, LIMIT).await.unwrap_err();
        assert_eq!(error.to_string(), "No such file or directory");
        // A listener that never answers a handshake.
        let listener = Listener::bind(&Passive::parse("ptcp:0:127.0.0.1", 0).unwrap()).unwrap();
        let port = listener.local_address().unwrap().port();
        let target = Active::Ssl("127.0.0.1".into(), port);
        let authority = tls::tests::Authority::new();
        let files = authority.issue("client");
        let error = connect(&target, &Tls::new(files), Duration::from_millis(200))
            .await
            .unwrap_err();
        assert!(matches!(error, StreamError::TimedOut), "{error}");
        let error = connect(&target, &tls, LIMIT).await.unwrap_err();
        assert!(
            matches!(error, StreamError::Tls(TlsError::Missing(_))),
            "{error}"
        );
    }

    #[tokio::test]
    async fn tls_believes_its_authority_and_nobody_else() {
        let (ours, theirs) = (tls::tests::Authority::new(), tls::tests::Authority::new());
        let server = Tls::new(ours.issue("switch"));
        let listener = Listener::bind(&Passive::parse("pssl:0:127.0.0.1", 0).unwrap()).unwrap();
        let target = Active::Ssl("127.0.0.1".into(), listener.local_address().unwrap().port());
        let client = Tls::new(ours.issue("a name that is not the host's"));
        let (accepted, _) = talk(&listener, &target, &server, &client).await;
        assert!(accepted.starts_with("ssl:127.0.0.1:"), "{accepted}");

        let stranger = Tls::new(theirs.issue("stranger"));
        let serve = async { listener.accept().await.unwrap().establish(&server).await };
        let (server_side, client_side) = tokio::join!(serve, connect(&target, &stranger, LIMIT));
        assert!(server_side.is_err());
        let error = client_side.unwrap_err().to_string();
        assert!(error.contains("certificate verify failed"), "{error}");
    }

    #[tokio::test]
    async fn a_missing_authority_is_taken_from_the_first_peer() {
        let authority = tls::tests::Authority::new();
        let mut server_files = authority.issue("switch");
        server_files.peer_ca_cert = server_files.ca_cert.clone();
        let server = Tls::new(server_files);
        let mut files = authority.issue("client");
        let stored = authority.path("stored.pem");
        files.ca_cert = Some(stored.clone());
        files.bootstrap = true;
        let client = Tls::new(files);
        let listener = Listener::bind(&Passive::parse("pssl:0:127.0.0.1", 0).unwrap()).unwrap();
        let target = Active::Ssl("127.0.0.1".into(), listener.local_address().unwrap().port());
        let serve = async {
            let first = listener.accept().await.unwrap().establish(&server).await;
            let second = listener.accept().await.unwrap().establish(&server).await;
            (first.is_ok(), second.is_ok())
        };
        let ((_, second), stream) = tokio::join!(serve, connect(&target, &client, LIMIT));
        assert!(second);
        stream.unwrap();
        assert!(stored.exists());
    }

    #[tokio::test]
    async fn dscp_is_set_for_ipv4_ipv6_and_mapped_addresses() {
        for (bound, to, six) in [
            ("127.0.0.1:0", "127.0.0.1", false),
            ("[::1]:0", "::1", true),
            ("[::]:0", "127.0.0.1", false),
        ] {
            let Ok(listener) = TcpListener::bind(bound).await else {
                assert!(bound.starts_with('['), "no IPv4 here");
                continue;
            };
            let port = listener.local_addr().unwrap().port();
            let (connected, accepted) =
                tokio::join!(TcpStream::connect((to, port)), listener.accept());
            let _connected = connected.unwrap();
            let stream = Stream {
                transport: Transport::Tcp(accepted.unwrap().0),
                peer: bound.to_owned(),
            };
            stream.set_dscp(48).unwrap();
            let tcp = stream.tcp().unwrap();
            let class = match six {
                false => sockopt::ip_tos(tcp).map(u32::from),
                true => sockopt::ipv6_tclass(tcp),
            };
            assert_eq!(class, Ok(48 << 2), "{bound}");
        }
    }
}
