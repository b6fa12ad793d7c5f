//! OpenFlow wire formats and the version-neutral model behind them.
//!
//! * `text`: rules, groups and meters as `ovs-ofctl` reads and prints them.
//! * `codec`: messages from and to bytes, for each version.
//! * `model`: what messages mean, whatever version carried them.
//!
//! Each uses only those that follow it here. No I/O: [`frame_length`] says how many bytes the next
//! message of a stream has.

mod codec;
mod model;
mod text;

pub use codec::{decode, encode, header, multipart};
pub use model::{
    action, check, conntrack, ct_flush, error, flow, group, message, meter, monitor, port, stats,
    steering, tlv, version,
};
pub use text::{format, parse};

pub use codec::decode::{Added, DecodeError, DecodeOptions, decode, decode_added, negotiate};
pub use codec::encode::{encode, encode_error};
pub use codec::header::{Header, frame_length};
pub use codec::multipart::{MultipartWriter, encode_multipart};
pub use codec::repeats::Repeats;
pub use model::error::Error;
pub use model::message::Message;
pub use model::version::Version;
