//! OpenFlow wire formats and the version-neutral model behind them.
//!
//! The model says what a message means, whatever version carried it; the codecs translate between it and bytes. No I/O here.

pub mod action;
pub mod error;
pub mod flow;
pub mod port;
