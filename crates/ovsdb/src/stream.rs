//! The address of the database and connections to it: `unix:PATH`, `tcp:HOST[:PORT]`,
//! `ssl:HOST[:PORT]`.
//!
//! TLS works as in Open vSwitch: both sides present certificates of one authority, and the peer's
//! name is not checked. With `bootstrap`, a missing authority's certificate is taken from the first
//! server that answers, stored, and trusted from then on.

use std::fmt;
use std::io::{self, Write};
use std::net::Ipv6Addr;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::str::FromStr;

use openssl::ssl::{Ssl, SslContext, SslFiletype, SslMethod, SslVerifyMode};
use openssl::x509::X509;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};
use tokio_openssl::SslStream;

/// The port registered for OVSDB, used if an address has none.
pub const DEFAULT_PORT: u16 = 6640;

/// A database server's address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Remote {
    /// A socket in the file system.
    Unix(PathBuf),
    /// Plain TCP.
    Tcp(String, u16),
    /// TLS over TCP.
    Ssl(String, u16),
}

/// A text that is not an address to which a connection is possible.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text}: {reason}")]
pub struct BadRemote {
    text: String,
    reason: &'static str,
}

impl FromStr for Remote {
    type Err = BadRemote;

    fn from_str(text: &str) -> Result<Remote, BadRemote> {
        let bad = |reason| BadRemote {
            text: text.to_owned(),
            reason,
        };
        let (method, rest) = text
            .split_once(':')
            .ok_or_else(|| bad("expected unix:, tcp: or ssl:"))?;
        match method {
            "unix" if rest.is_empty() => Err(bad("the path is missing")),
            "unix" => Ok(Remote::Unix(rest.into())),
            "tcp" => host_and_port(rest)
                .map(|(host, port)| Remote::Tcp(host, port))
                .map_err(bad),
            "ssl" => host_and_port(rest)
                .map(|(host, port)| Remote::Ssl(host, port))
                .map_err(bad),
            _ => Err(bad("expected unix:, tcp: or ssl:")),
        }
    }
}

fn host_and_port(text: &str) -> Result<(String, u16), &'static str> {
    let (host, port) = match text.strip_prefix('[') {
        Some(rest) => {
            let (host, rest) = rest.split_once(']').ok_or("no closing bracket")?;
            let port = match rest.strip_prefix(':') {
                Some(port) => Some(port),
                None if rest.is_empty() => None,
                None => return Err("expected a colon after the bracket"),
            };
            (host, port)
        }
        None if text.parse::<Ipv6Addr>().is_ok() => (text, None),
        None => match text.split_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (text, None),
        },
    };
    if host.is_empty() {
        return Err("the host is missing");
    }
    let port = match port {
        None => DEFAULT_PORT,
        Some(port) => port
            .parse()
            .ok()
            .filter(|p| *p != 0)
            .ok_or("bad port number")?,
    };
    Ok((host.to_owned(), port))
}

impl fmt::Display for Remote {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (method, host, port) = match self {
            Remote::Unix(path) => return write!(f, "unix:{}", path.display()),
            Remote::Tcp(host, port) => ("tcp", host, port),
            Remote::Ssl(host, port) => ("ssl", host, port),
        };
        match host.contains(':') {
            true => write!(f, "{method}:[{host}]:{port}"),
            false => write!(f, "{method}:{host}:{port}"),
        }
    }
}

/// The files for TLS, all PEM. They are read for every connection, so that renewed certificates are
/// used.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TlsFiles {
    /// The client's private key.
    pub private_key: PathBuf,
    /// The client's certificate, followed by those up to its authority.
    pub certificate: PathBuf,
    /// The authority's certificate.
    pub ca_cert: PathBuf,
    /// Whether to take the authority's certificate from the server if the file is missing.
    pub bootstrap: bool,
}

/// A byte stream to the server.
pub trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

/// Connects to the server. The caller sets the time limit.
pub async fn connect(remote: &Remote, tls: Option<&TlsFiles>) -> io::Result<Box<dyn Stream>> {
    match remote {
        Remote::Unix(path) => Ok(Box::new(connect_unix(path).await?)),
        Remote::Tcp(host, port) => Ok(Box::new(connect_tcp(host, *port).await?)),
        Remote::Ssl(host, port) => {
            let tls = tls.ok_or_else(|| {
                io::Error::other("TLS needs a private key, a certificate and a CA certificate")
            })?;
            Ok(Box::new(
                connect_tls(connect_tcp(host, *port).await?, tls).await?,
            ))
        }
    }
}

/// The longest path that fits a socket address with its terminator.
const MAXIMUM_PATH: usize = 107;

/// Connects to a socket; to one with a longer path by its directory's descriptor, as Open vSwitch.
async fn connect_unix(path: &Path) -> io::Result<UnixStream> {
    if path.as_os_str().len() <= MAXIMUM_PATH {
        return UnixStream::connect(path).await;
    }
    let name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?;
    let directory = std::fs::File::open(path.parent().unwrap_or(Path::new("/")))?;
    let short = PathBuf::from(format!("/proc/self/fd/{}", directory.as_raw_fd())).join(name);
    UnixStream::connect(short).await
}

async fn connect_tcp(host: &str, port: u16) -> io::Result<TcpStream> {
    let stream = TcpStream::connect((host, port)).await?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

async fn connect_tls(stream: TcpStream, files: &TlsFiles) -> io::Result<SslStream<TcpStream>> {
    let bootstrapping = files.bootstrap && !files.ca_cert.exists();
    let context = context(files, bootstrapping)?;
    let mut stream = SslStream::new(Ssl::new(&context)?, stream)?;
    Pin::new(&mut stream)
        .connect()
        .await
        .map_err(io::Error::other)?;
    if bootstrapping {
        let chain = stream.ssl().peer_cert_chain();
        let last = chain
            .and_then(|chain| chain.iter().last())
            .map(ToOwned::to_owned);
        store_authority(last.as_ref(), &files.ca_cert)?;
        // This handshake proved nothing: the caller's next attempt verifies against the stored
        // certificate.
        return Err(io::Error::other(
            "stored the CA certificate that the server sent; reconnecting to verify it",
        ));
    }
    Ok(stream)
}

fn context(files: &TlsFiles, bootstrapping: bool) -> io::Result<SslContext> {
    let naming = |what: &str, path: &Path, error| {
        io::Error::other(format!("{what} {}: {error}", path.display()))
    };
    let mut builder = SslContext::builder(SslMethod::tls_client())?;
    builder
        .set_private_key_file(&files.private_key, SslFiletype::PEM)
        .map_err(|e| naming("private key", &files.private_key, e))?;
    builder
        .set_certificate_chain_file(&files.certificate)
        .map_err(|e| naming("certificate", &files.certificate, e))?;
    if bootstrapping {
        builder.set_verify(SslVerifyMode::NONE);
    } else {
        builder
            .set_ca_file(&files.ca_cert)
            .map_err(|e| naming("CA certificate", &files.ca_cert, e))?;
        builder.set_verify(SslVerifyMode::PEER | SslVerifyMode::FAIL_IF_NO_PEER_CERT);
    }
    Ok(builder.build())
}

fn store_authority(certificate: Option<&X509>, path: &Path) -> io::Result<()> {
    let certificate =
        certificate.ok_or_else(|| io::Error::other("the server sent no certificate"))?;
    if !certificate.verify(&*certificate.public_key()?)? {
        return Err(io::Error::other(
            "the server sent no self-signed CA certificate to bootstrap from",
        ));
    }
    let mut file = std::fs::File::create_new(path)
        .map_err(|e| io::Error::other(format!("CA certificate {}: {e}", path.display())))?;
    file.write_all(&certificate.to_pem()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses() {
        let tcp = |host: &str, port| Remote::Tcp(host.into(), port);
        assert_eq!(
            "unix:/run/db.sock".parse(),
            Ok(Remote::Unix("/run/db.sock".into()))
        );
        assert_eq!("tcp:10.0.0.1:7".parse(), Ok(tcp("10.0.0.1", 7)));
        assert_eq!("tcp:db.example".parse(), Ok(tcp("db.example", 6640)));
        assert_eq!("tcp:[::1]:7".parse(), Ok(tcp("::1", 7)));
        assert_eq!("tcp:[::1]".parse(), Ok(tcp("::1", 6640)));
        assert_eq!("ssl:::1".parse(), Ok(Remote::Ssl("::1".into(), 6640)));
        for text in [
            "",
            "unix:",
            "/run/db.sock",
            "ptcp:1",
            "tcp:",
            "tcp::7",
            "tcp:h:0",
            "tcp:h:x",
            "tcp:[::1",
            "tcp:[::1]7",
        ] {
            assert!(text.parse::<Remote>().is_err(), "{text}");
        }
    }

    #[test]
    fn addresses_survive_printing() {
        for text in ["unix:/run/db.sock", "tcp:10.0.0.1:7", "ssl:[fe80::1]:6640"] {
            assert_eq!(
                text.parse::<Remote>().map(|r| r.to_string()).as_deref(),
                Ok(text)
            );
        }
    }
}
