//! OpenFlow wire formats and the version-neutral model behind them.
//!
//! The model says what a message means, whatever version carried it; the codecs translate between it and bytes. No I/O here.

pub mod action;
pub mod error;
pub mod flow;
pub mod group;
pub mod message;
pub mod meter;
pub mod port;
pub mod stats;
pub mod version;

pub use message::Message;
pub use version::Version;
