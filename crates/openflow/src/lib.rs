//! OpenFlow wire formats and the version-neutral model behind them.
//!
//! The model ([`message`] and the modules it names) says what a message means, whatever version
//! carried it; [`decode()`] and [`encode()`] translate between it and bytes. No I/O here:
//! [`frame_length`] says how many bytes the next message of a stream has.

pub mod action;
mod action_decode;
mod action_encode;
pub mod check;
pub mod conntrack;
pub mod ct_flush;
pub mod decode;
pub mod encode;
pub mod error;
pub mod flow;
mod flow_codec;
pub mod format;
pub mod group;
mod group_codec;
pub mod header;
mod instruction_codec;
mod match10;
mod match11;
pub mod message;
pub mod meter;
pub mod monitor;
mod monitor_codec;
pub mod multipart;
mod nicira_decode;
mod nicira_encode;
mod oxm;
mod oxs;
mod packet_codec;
pub mod parse;
mod place;
pub mod port;
mod port_codec;
mod repeats;
mod selection_codec;
pub mod stats;
mod table_codec;
pub mod tlv;
mod tlv_codec;
pub mod version;
mod wire;

pub use decode::{Added, DecodeError, DecodeOptions, decode, decode_added, negotiate};
pub use encode::{encode, encode_error};
pub use error::Error;
pub use header::{Header, frame_length};
pub use message::Message;
pub use multipart::{MultipartWriter, encode_multipart};
pub use repeats::Repeats;
pub use version::Version;
