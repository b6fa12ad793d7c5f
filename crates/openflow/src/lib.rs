//! OpenFlow wire formats and a version-neutral model of the messages.
//!
//! * `text`: parses and prints rules, groups and meters like `ovs-ofctl`.
//! * `codec`: decodes and encodes messages, for each version.
//! * `model`: the meaning of messages, independent of the version.
//!
//! Each uses only those below it in this list. No I/O: [`frame_length`] returns the length of a
//! stream's next message.

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
