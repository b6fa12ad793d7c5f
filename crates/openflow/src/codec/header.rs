//! The header of every message: version, type, length, transaction id (OpenFlow 1.3.5 section 7.1).

use crate::codec::wire::Put;
use crate::model::error::Error;

/// Length of a header in bytes.
pub const HEADER: usize = 8;

/// A decoded header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Header {
    /// The version byte; in a hello it may be a version that is not supported here.
    pub version: u8,
    /// The type byte, whose meaning depends on the version.
    pub kind: u8,
    /// The whole message's length.
    pub length: u16,
    /// The transaction id; a reply has that of its request.
    pub xid: u32,
}

impl Header {
    /// Decodes the header at the front of `bytes`; None if there are fewer than eight.
    pub fn of(bytes: &[u8]) -> Option<Header> {
        let head: &[u8; HEADER] = bytes.first_chunk()?;
        Some(Header {
            version: head[0],
            kind: head[1],
            length: u16::from_be_bytes([head[2], head[3]]),
            xid: u32::from_be_bytes([head[4], head[5], head[6], head[7]]),
        })
    }
}

/// Returns the length of the message at the front of `bytes`: eight while its header is incomplete.
/// An error if the header's length is shorter than a header; the rest of the stream cannot be
/// decoded then.
pub fn frame_length(bytes: &[u8]) -> Result<usize, Error> {
    match Header::of(bytes) {
        None => Ok(HEADER),
        Some(header) if usize::from(header.length) < HEADER => Err(Error::BadLength),
        Some(header) => Ok(header.length.into()),
    }
}

/// Returns the name of a type in a version (`OFPT_*`, that of 1.3 if it has had several); None if
/// the version lacks it.
pub fn type_name(version: u8, number: u8) -> Option<&'static str> {
    const NAMES: [&str; 35] = [
        "OFPT_HELLO",
        "OFPT_ERROR",
        "OFPT_ECHO_REQUEST",
        "OFPT_ECHO_REPLY",
        "OFPT_EXPERIMENTER",
        "OFPT_FEATURES_REQUEST",
        "OFPT_FEATURES_REPLY",
        "OFPT_GET_CONFIG_REQUEST",
        "OFPT_GET_CONFIG_REPLY",
        "OFPT_SET_CONFIG",
        "OFPT_PACKET_IN",
        "OFPT_FLOW_REMOVED",
        "OFPT_PORT_STATUS",
        "OFPT_PACKET_OUT",
        "OFPT_FLOW_MOD",
        "OFPT_GROUP_MOD",
        "OFPT_PORT_MOD",
        "OFPT_TABLE_MOD",
        "OFPT_MULTIPART_REQUEST",
        "OFPT_MULTIPART_REPLY",
        "OFPT_BARRIER_REQUEST",
        "OFPT_BARRIER_REPLY",
        "OFPT_QUEUE_GET_CONFIG_REQUEST",
        "OFPT_QUEUE_GET_CONFIG_REPLY",
        "OFPT_ROLE_REQUEST",
        "OFPT_ROLE_REPLY",
        "OFPT_GET_ASYNC_REQUEST",
        "OFPT_GET_ASYNC_REPLY",
        "OFPT_SET_ASYNC",
        "OFPT_METER_MOD",
        "OFPT_ROLE_STATUS",
        "OFPT_TABLE_STATUS",
        "OFPT_REQUESTFORWARD",
        "OFPT_BUNDLE_CONTROL",
        "OFPT_BUNDLE_ADD_MESSAGE",
    ];
    let kind = crate::codec::decode::kind::from_wire(number, version)?;
    NAMES.get(usize::from(kind)).copied()
}

/// Writes a header whose length is not known yet.
pub(crate) fn put(out: &mut Vec<u8>, version: u8, kind: u8, xid: u32) {
    out.put_u8(version);
    out.put_u8(kind);
    out.put_u16(0);
    out.put_u32(xid);
}

/// Writes a message's length into its header.
pub(crate) fn finish(message: &mut Vec<u8>) {
    message.set_length(2, 0);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_are_named_by_version() {
        assert_eq!(type_name(1, 18), Some("OFPT_BARRIER_REQUEST"));
        assert_eq!(type_name(4, 18), Some("OFPT_MULTIPART_REQUEST"));
        assert_eq!(type_name(5, 34), Some("OFPT_BUNDLE_ADD_MESSAGE"));
        assert_eq!(type_name(4, 34), None);
        assert_eq!((type_name(1, 99), type_name(6, 255)), (None, None));
    }
}
