//! TLS as in Open vSwitch: both sides show a certificate, and each trusts the one authority it was
//! given. The name in a certificate is not compared with the host's, because the authority signs
//! only for switches and controllers. X.509 version 1 certificates, which old `ovs-pki` made, are
//! accepted, too.
//!
//! Files may be replaced while the daemon runs: they are checked for each connection and read again
//! when one has changed.

use std::cell::RefCell;
use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::pin::Pin;

use openssl::error::ErrorStack;
use openssl::pkey::PKey;
use openssl::ssl::{
    Ssl, SslContext, SslMethod, SslRef, SslSessionCacheMode, SslVerifyMode, SslVersion,
};
use openssl::x509::{X509, X509VerifyResult};
use tokio::net::TcpStream;
use tokio_openssl::SslStream;

/// The keys and certificates that this daemon uses and trusts, as options or the database's SSL row
/// name them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TlsFiles {
    /// The private key, in PEM.
    pub private_key: Option<PathBuf>,
    /// The certificate for that key, in PEM, followed by intermediate ones if there are any.
    pub certificate: Option<PathBuf>,
    /// The authority that must have signed peers' certificates; `none` trusts every peer.
    pub ca_cert: Option<PathBuf>,
    /// Whether a missing `ca_cert` is taken from the first peer that the daemon connects to.
    pub bootstrap: bool,
    /// An authority's certificate to send to peers, so that they can bootstrap.
    pub peer_ca_cert: Option<PathBuf>,
    /// Allowed protocol versions: `TLSv1`, `TLSv1.1`, `TLSv1.2`, `TLSv1.3`, separated by commas,
    /// colons or spaces. All between the oldest and the newest one are allowed. Default: `TLSv1.2`
    /// and later.
    pub protocols: Option<String>,
    /// Allowed ciphers, in OpenSSL's notation.
    pub ciphers: Option<String>,
}

/// Why a secure connection could not be made.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A required setting is missing.
    #[error("{0} must be configured to use SSL")]
    Missing(&'static str),
    /// A file is unusable.
    #[error("{}: {reason}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The reason.
        reason: String,
    },
    /// An option has a bad value.
    #[error("{0}")]
    Option(String),
    /// The handshake failed.
    #[error("SSL handshake failed: {0}")]
    Handshake(String),
    /// The peer's authority could not be stored.
    #[error("could not bootstrap CA cert: {0}")]
    Bootstrap(String),
}

fn explain(error: &ErrorStack) -> String {
    error
        .errors()
        .first()
        .and_then(|error| error.reason())
        .map_or_else(|| error.to_string(), String::from)
}

fn bad_file(path: &Path, error: &ErrorStack) -> TlsError {
    TlsError::File {
        path: path.into(),
        reason: explain(error),
    }
}

/// Identity of the files' contents, which changes when one is replaced.
type Fingerprint = Vec<Option<(u64, u64, i64, i64)>>;

struct Ready {
    fingerprint: Fingerprint,
    context: SslContext,
    /// Whether the authority is missing: connect without checking the peer and store its authority.
    bootstrap: bool,
}

/// The keys in use, for any number of connections.
#[derive(Default)]
pub struct Tls {
    files: RefCell<TlsFiles>,
    ready: RefCell<Option<Ready>>,
}

impl std::fmt::Debug for Tls {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.files.borrow().fmt(formatter)
    }
}

impl Tls {
    /// Uses these files, which are read when they are first needed.
    pub fn new(files: TlsFiles) -> Self {
        Tls {
            files: RefCell::new(files),
            ready: RefCell::default(),
        }
    }

    /// Uses other files from the next connection on.
    pub fn set_files(&self, files: TlsFiles) {
        if *self.files.borrow() != files {
            self.files.replace(files);
            self.ready.replace(None);
        }
    }

    /// Returns the files in use.
    pub fn files(&self) -> TlsFiles {
        self.files.borrow().clone()
    }

    /// Returns a new session, and whether it is for bootstrapping.
    fn session(&self) -> Result<(Ssl, bool), TlsError> {
        let files = self.files.borrow();
        let fingerprint = fingerprint(&files);
        let mut ready = self.ready.borrow_mut();
        if ready
            .as_ref()
            .is_none_or(|ready| ready.fingerprint != fingerprint)
        {
            *ready = None;
            let (context, bootstrap) = context(&files)?;
            *ready = Some(Ready {
                fingerprint,
                context,
                bootstrap,
            });
        }
        let Some(ready) = ready.as_ref() else {
            return Err(TlsError::Missing("Private key"));
        };
        let session =
            Ssl::new(&ready.context).map_err(|error| TlsError::Handshake(explain(&error)))?;
        Ok((session, ready.bootstrap))
    }

    /// Does the client's side of a handshake. Returns nothing if the authority was bootstrapped:
    /// connect again.
    pub(super) async fn connect(
        &self,
        stream: TcpStream,
    ) -> Result<Option<SslStream<TcpStream>>, TlsError> {
        let (mut session, bootstrap) = self.session()?;
        if bootstrap {
            session.set_verify(SslVerifyMode::NONE);
        }
        let mut stream = SslStream::new(session, stream)
            .map_err(|error| TlsError::Handshake(explain(&error)))?;
        Pin::new(&mut stream)
            .connect()
            .await
            .map_err(|error| handshake_error(&error, stream.ssl()))?;
        if bootstrap {
            let path = self
                .files
                .borrow()
                .ca_cert
                .clone()
                .ok_or(TlsError::Missing("CA certificate"))?;
            store_authority(stream.ssl(), &path)?;
            return Ok(None);
        }
        Ok(Some(stream))
    }

    /// Does the server's side of a handshake.
    pub(super) async fn accept(&self, stream: TcpStream) -> Result<SslStream<TcpStream>, TlsError> {
        let (session, _) = self.session()?;
        let mut stream = SslStream::new(session, stream)
            .map_err(|error| TlsError::Handshake(explain(&error)))?;
        Pin::new(&mut stream)
            .accept()
            .await
            .map_err(|error| handshake_error(&error, stream.ssl()))?;
        Ok(stream)
    }
}

fn handshake_error(error: &openssl::ssl::Error, session: &SslRef) -> TlsError {
    let verified = session.verify_result();
    if verified != X509VerifyResult::OK {
        return TlsError::Handshake(format!(
            "certificate verify failed: {}",
            verified.error_string()
        ));
    }
    TlsError::Handshake(match (error.ssl_error(), error.io_error()) {
        (Some(stack), _) => explain(stack),
        (None, Some(error)) => crate::plain_error(error),
        (None, None) => "unexpected end of the connection".into(),
    })
}

fn fingerprint(files: &TlsFiles) -> Fingerprint {
    let paths = [
        &files.private_key,
        &files.certificate,
        &files.ca_cert,
        &files.peer_ca_cert,
    ];
    paths
        .map(|path| {
            let attributes = fs::metadata(path.as_ref()?).ok()?;
            Some((
                attributes.ino(),
                attributes.size(),
                attributes.mtime(),
                attributes.mtime_nsec(),
            ))
        })
        .to_vec()
}

fn context(files: &TlsFiles) -> Result<(SslContext, bool), TlsError> {
    let option =
        |what: &str, error: ErrorStack| TlsError::Option(format!("{what}: {}", explain(&error)));
    let mut builder =
        SslContext::builder(SslMethod::tls()).map_err(|error| option("OpenSSL", error))?;
    // Cached sessions would outlive a change of the authority.
    builder.set_session_cache_mode(SslSessionCacheMode::OFF);
    builder
        .set_session_id_context(b"sluice")
        .map_err(|error| option("OpenSSL", error))?;
    let (oldest, newest) = protocols(files.protocols.as_deref())?;
    builder
        .set_min_proto_version(Some(oldest))
        .map_err(|error| option("--ssl-protocols", error))?;
    builder
        .set_max_proto_version(newest)
        .map_err(|error| option("--ssl-protocols", error))?;
    if let Some(ciphers) = &files.ciphers {
        builder
            .set_cipher_list(ciphers)
            .map_err(|error| option(ciphers, error))?;
    }
    let key = files
        .private_key
        .as_deref()
        .ok_or(TlsError::Missing("Private key"))?;
    let pem = read(key)?;
    let parsed = PKey::private_key_from_pem(&pem).map_err(|error| bad_file(key, &error))?;
    let certificate = files
        .certificate
        .as_deref()
        .ok_or(TlsError::Missing("Certificate"))?;
    read(certificate)?;
    builder
        .set_certificate_chain_file(certificate)
        .map_err(|error| bad_file(certificate, &error))?;
    builder
        .set_private_key(&parsed)
        .map_err(|error| bad_file(key, &error))?;
    if let Some(path) = &files.peer_ca_cert {
        let pem = read(path)?;
        for extra in X509::stack_from_pem(&pem).map_err(|error| bad_file(path, &error))? {
            builder
                .add_extra_chain_cert(extra)
                .map_err(|error| bad_file(path, &error))?;
        }
    }
    let authority = files
        .ca_cert
        .as_deref()
        .ok_or(TlsError::Missing("CA certificate"))?;
    if authority == Path::new("none") {
        builder.set_verify(SslVerifyMode::NONE);
        return Ok((builder.build(), false));
    }
    builder.set_verify(SslVerifyMode::PEER | SslVerifyMode::FAIL_IF_NO_PEER_CERT);
    if files.bootstrap && !authority.exists() {
        return Ok((builder.build(), true));
    }
    trust(&mut builder, authority)?;
    Ok((builder.build(), false))
}

fn trust(builder: &mut openssl::ssl::SslContextBuilder, authority: &Path) -> Result<(), TlsError> {
    let pem = read(authority)?;
    let certificates = X509::stack_from_pem(&pem).map_err(|error| bad_file(authority, &error))?;
    if certificates.is_empty() {
        return Err(TlsError::File {
            path: authority.into(),
            reason: "there is no certificate in it".into(),
        });
    }
    for certificate in certificates {
        // Peers with several certificates choose one by this list.
        builder
            .add_client_ca(&certificate)
            .map_err(|error| bad_file(authority, &error))?;
        builder
            .cert_store_mut()
            .add_cert(certificate)
            .map_err(|error| bad_file(authority, &error))?;
    }
    Ok(())
}

fn read(path: &Path) -> Result<Vec<u8>, TlsError> {
    fs::read(path).map_err(|error| TlsError::File {
        path: path.into(),
        reason: crate::plain_error(&error),
    })
}

/// Returns the oldest and the newest allowed version.
fn protocols(text: Option<&str>) -> Result<(SslVersion, Option<SslVersion>), TlsError> {
    const KNOWN: [(&str, SslVersion); 4] = [
        ("TLSv1", SslVersion::TLS1),
        ("TLSv1.1", SslVersion::TLS1_1),
        ("TLSv1.2", SslVersion::TLS1_2),
        ("TLSv1.3", SslVersion::TLS1_3),
    ];
    let Some(text) = text else {
        return Ok((SslVersion::TLS1_2, None));
    };
    let mut named = [false; KNOWN.len()];
    for word in text
        .split([',', ':', ' ', '\t'])
        .filter(|word| !word.is_empty())
    {
        let place = KNOWN
            .iter()
            .position(|(name, _)| name.eq_ignore_ascii_case(word));
        named[place
            .ok_or_else(|| TlsError::Option(format!("{word}: SSL protocol not recognized")))?] =
            true;
    }
    match (
        named.iter().position(|&named| named),
        named.iter().rposition(|&named| named),
    ) {
        (Some(oldest), Some(newest)) => Ok((KNOWN[oldest].1, Some(KNOWN[newest].1))),
        _ => Err(TlsError::Option("SSL protocol settings invalid".into())),
    }
}

/// Stores the authority that the peer has sent. It must be self-signed; otherwise it is only an
/// intermediate certificate.
fn store_authority(session: &SslRef, path: &Path) -> Result<(), TlsError> {
    let bad = |text: &str| TlsError::Bootstrap(text.into());
    let chain = session
        .peer_cert_chain()
        .ok_or_else(|| bad("no certificate presented by peer"))?;
    let last = chain
        .iter()
        .last()
        .ok_or_else(|| bad("no certificate presented by peer"))?;
    let own_key = last.public_key().and_then(|key| last.verify(&key));
    if last.issued(last) != X509VerifyResult::OK || !own_key.unwrap_or(false) {
        return Err(bad("self-signed CA certificate not sent by peer"));
    }
    let pem = last.to_pem().map_err(|error| bad(&explain(&error)))?;
    let stored = write_whole(path, &pem);
    match stored {
        Ok(()) => {
            tracing::info!(target: "stream_ssl", "successfully bootstrapped CA cert to {}", path.display())
        }
        // Another connection was faster; the second attempt checks whether the two agree.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        Err(error) => {
            return Err(TlsError::Bootstrap(format!(
                "creating {} failed: {}",
                path.display(),
                crate::plain_error(&error)
            )));
        }
    }
    Ok(())
}

/// Creates the file with all of its content, or not at all.
fn write_whole(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut name = path.as_os_str().to_owned();
    name.push(format!(".{}.tmp", std::process::id()));
    let temporary = PathBuf::from(name);
    let written = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o444)
        .open(&temporary)
        .and_then(|mut file| file.write_all(bytes))
        .and_then(|()| fs::hard_link(&temporary, path));
    let _ = fs::remove_file(&temporary);
    written
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use openssl::asn1::Asn1Time;
    use openssl::bn::BigNum;
    use openssl::ec::{EcGroup, EcKey};
    use openssl::hash::MessageDigest;
    use openssl::nid::Nid;
    use openssl::pkey::Private;
    use openssl::x509::X509NameBuilder;

    /// An authority in its own directory, which signs certificates for tests.
    pub(in crate::streams) struct Authority {
        directory: tempfile::TempDir,
        key: PKey<Private>,
        certificate: X509,
    }

    fn key() -> PKey<Private> {
        let group = EcGroup::from_curve_name(Nid::X9_62_PRIME256V1).unwrap();
        PKey::from_ec_key(EcKey::generate(&group).unwrap()).unwrap()
    }

    /// Makes a certificate, of X.509 version 1: without extensions.
    fn certificate(
        name: &str,
        key: &PKey<Private>,
        issuer: Option<&X509>,
        signer: &PKey<Private>,
    ) -> X509 {
        let mut subject = X509NameBuilder::new().unwrap();
        subject.append_entry_by_text("CN", name).unwrap();
        let subject = subject.build();
        let mut builder = X509::builder().unwrap();
        builder.set_version(0).unwrap();
        builder
            .set_serial_number(&BigNum::from_u32(1).unwrap().to_asn1_integer().unwrap())
            .unwrap();
        builder.set_subject_name(&subject).unwrap();
        builder
            .set_issuer_name(issuer.map_or(&subject, |issuer| issuer.subject_name()))
            .unwrap();
        builder
            .set_not_before(&Asn1Time::days_from_now(0).unwrap())
            .unwrap();
        builder
            .set_not_after(&Asn1Time::days_from_now(9).unwrap())
            .unwrap();
        builder.set_pubkey(key).unwrap();
        builder.sign(signer, MessageDigest::sha256()).unwrap();
        builder.build()
    }

    impl Authority {
        pub(in crate::streams) fn new() -> Self {
            let key = key();
            let certificate = certificate("authority", &key, None, &key);
            Authority {
                directory: tempfile::tempdir().unwrap(),
                key,
                certificate,
            }
        }

        pub(in crate::streams) fn path(&self, name: &str) -> PathBuf {
            self.directory.path().join(name)
        }

        pub(in crate::streams) fn issue(&self, name: &str) -> TlsFiles {
            let own = key();
            let signed = certificate(name, &own, Some(&self.certificate), &self.key);
            let store = |suffix: &str, pem: Vec<u8>| {
                let path = self.path(&format!("{name}-{suffix}.pem"));
                fs::write(&path, pem).unwrap();
                Some(path)
            };
            TlsFiles {
                private_key: store("key", own.private_key_to_pem_pkcs8().unwrap()),
                certificate: store("cert", signed.to_pem().unwrap()),
                ca_cert: store("ca", self.certificate.to_pem().unwrap()),
                ..TlsFiles::default()
            }
        }
    }

    #[test]
    fn errors_name_the_file() {
        let authority = Authority::new();
        let good = authority.issue("x");
        assert!(Tls::new(good.clone()).session().is_ok());
        let text = |files: TlsFiles| Tls::new(files).session().unwrap_err().to_string();
        let missing = TlsFiles {
            private_key: Some("/none/key.pem".into()),
            ..good.clone()
        };
        assert_eq!(text(missing), "/none/key.pem: No such file or directory");
        assert_eq!(
            text(TlsFiles::default()),
            "Private key must be configured to use SSL"
        );
        let other = Authority::new().issue("y");
        let mismatch = TlsFiles {
            private_key: other.private_key.clone(),
            ..good.clone()
        };
        // The other authority's directory will be deleted, so copy its key.
        let key_file = authority.path("other.pem");
        fs::write(&key_file, key().private_key_to_pem_pkcs8().unwrap()).unwrap();
        let mismatch = TlsFiles {
            private_key: Some(key_file),
            ..mismatch
        };
        assert!(text(mismatch).contains("other.pem: "));
        let empty = authority.path("empty.pem");
        fs::write(&empty, "").unwrap();
        assert!(
            text(TlsFiles {
                ca_cert: Some(empty),
                ..good.clone()
            })
            .contains("empty.pem: ")
        );
        assert_eq!(
            text(TlsFiles {
                protocols: Some("foo".into()),
                ..good.clone()
            }),
            "foo: SSL protocol not recognized"
        );
        assert!(
            text(TlsFiles {
                ciphers: Some("nonsense".into()),
                ..good
            })
            .starts_with("nonsense: ")
        );
    }

    #[test]
    fn changed_files_are_read_again() {
        let authority = Authority::new();
        let files = authority.issue("x");
        let tls = Tls::new(files.clone());
        assert!(tls.session().is_ok());
        fs::write(files.certificate.unwrap(), "no certificate any more").unwrap();
        assert!(tls.session().is_err());
    }

    #[test]
    fn protocol_lists() {
        assert_eq!(
            protocols(Some("TLSv1.1, tlsv1.2")).unwrap(),
            (SslVersion::TLS1_1, Some(SslVersion::TLS1_2))
        );
        assert_eq!(protocols(None).unwrap(), (SslVersion::TLS1_2, None));
        assert!(protocols(Some(" ,")).is_err());
    }
}
