//! Streams: the connections of the control plane, by Open vSwitch's names for them.
mod tls;
pub mod unix;
pub use tls::TlsFiles;
