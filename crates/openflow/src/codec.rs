//! Decoding and encoding of messages, for each version.

pub(crate) mod action_decode;
pub(crate) mod action_encode;
pub(crate) mod conntrack;
pub(crate) mod ct_flush;
pub mod decode;
pub mod encode;
pub(crate) mod flow;
pub(crate) mod group;
pub mod header;
pub(crate) mod instruction;
pub(crate) mod match10;
pub(crate) mod match11;
pub(crate) mod monitor;
pub mod multipart;
pub(crate) mod nicira_decode;
pub(crate) mod nicira_encode;
pub(crate) mod oxm;
pub(crate) mod oxs;
pub(crate) mod packet;
pub(crate) mod port;
pub(crate) mod repeats;
pub(crate) mod selection;
pub(crate) mod steering;
pub(crate) mod table;
pub(crate) mod tlv;
pub(crate) mod wire;
