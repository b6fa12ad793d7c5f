//! Keys.
use std::path::PathBuf;

/// Which keys and certificates this daemon shows and believes, as options or the database's SSL row name them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TlsFiles {
    /// The private key, in PEM.
    pub private_key: Option<PathBuf>,
    /// The certificate for that key, in PEM, with intermediate ones after it if there are any.
    pub certificate: Option<PathBuf>,
    /// The authority whose certificates peers must show.
    pub ca_cert: Option<PathBuf>,
    /// Whether `ca_cert`, when it does not exist, is taken from the first peer that is connected to.
    pub bootstrap: bool,
    /// An authority's certificate to send along to peers, so that they can bootstrap.
    pub peer_ca_cert: Option<PathBuf>,
    /// Protocol versions to allow: `TLSv1`, `TLSv1.1`, `TLSv1.2`, `TLSv1.3`, separated by commas or spaces.
    pub protocols: Option<String>,
    /// Ciphers to allow, in OpenSSL's notation.
    pub ciphers: Option<String>,
}
