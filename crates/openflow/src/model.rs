//! The meaning of messages, independent of the version that carried them.

pub mod action;
pub mod check;
pub mod conntrack;
pub mod ct_flush;
pub mod error;
pub mod flow;
pub mod group;
pub mod message;
pub mod meter;
pub mod monitor;
pub mod port;
pub mod stats;
pub mod steering;
pub mod tlv;
pub mod version;
pub(crate) mod word_field;
