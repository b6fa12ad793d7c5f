//! Messages of the vhost-user protocol in wire format (QEMU's docs/interop/vhost-user.rst).
//!
//! Layouts and numbers are rust-vmm's (`vhost::vhost_user::message`). Its connection loop is not
//! used: it blocks, and supports neither `SEND_RARP` nor `NET_SET_MTU`, which QEMU sends.

use std::fmt;
use std::mem::size_of;
pub use vhost::vhost_user::VhostUserProtocolFeatures as Protocol;
pub use vhost::vhost_user::message::{
    FrontendReq, MAX_MSG_SIZE, VhostUserInflight, VhostUserLog, VhostUserMemory,
    VhostUserMemoryRegion, VhostUserU64, VhostUserVringAddr, VhostUserVringState,
};
use vhost::vhost_user::message::{VhostUserHeaderFlag, VhostUserMsgValidator};
use vm_memory::ByteValued;

/// Bytes of a message's header: request, flags, payload length.
pub const HEAD: usize = 12;

/// Most file descriptors in one message, and so most regions in a memory table.
pub const MOST_FILES: usize = 8;

/// Bit of a `SET_VRING_KICK`, `_CALL` or `_ERR`: no descriptor comes with it.
const NO_FILE: u64 = 0x100;

/// Version of the protocol, in the flags of every message.
const VERSION: u32 = 1;

/// Error in a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Malformed {
    /// Flags of another version, of a reply, or undefined.
    Flags(u32),
    /// The payload is longer than any message's.
    Long(u32),
    /// An unknown request, or one that is not for network devices.
    Request(u32),
    /// The payload has the wrong length for the request.
    Length(FrontendReq),
    /// The payload has invalid contents.
    Payload(FrontendReq),
}

impl fmt::Display for Malformed {
    fn fmt(&self, to: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Malformed::Flags(flags) => write!(to, "flags 0x{flags:x} in the head of a message"),
            Malformed::Long(length) => write!(to, "a message of {length} bytes"),
            Malformed::Request(number) => write!(to, "request {number}, which is not supported"),
            Malformed::Length(request) => write!(to, "{request:?} of a wrong length"),
            Malformed::Payload(request) => write!(to, "{request:?} with a payload out of range"),
        }
    }
}

/// The header of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Head {
    /// The request's number, which may be unknown.
    pub request: u32,
    /// Whether the front end waits for a reply even if the request has none of its own.
    pub wants_reply: bool,
    /// Length of the payload in bytes, [`MAX_MSG_SIZE`] at most.
    pub length: usize,
}

impl Head {
    /// Decodes a header.
    pub fn decode(bytes: &[u8; HEAD]) -> Result<Head, Malformed> {
        let word = |at: usize| {
            u32::from_ne_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
        };
        let (request, flags, length) = (word(0), word(4), word(8));
        let wants_reply = VhostUserHeaderFlag::NEED_REPLY.bits();
        if flags & !wants_reply != VERSION {
            return Err(Malformed::Flags(flags));
        }
        if length as usize > MAX_MSG_SIZE {
            return Err(Malformed::Long(length));
        }
        Ok(Head {
            request,
            wants_reply: flags & wants_reply != 0,
            length: length as usize,
        })
    }
}

/// A front end's request.
#[derive(Clone)]
pub enum Request {
    GetFeatures,
    SetFeatures(u64),
    SetOwner,
    /// `RESET_OWNER`, which the specification calls obsolete, and `RESET_DEVICE`: all rings stop.
    Reset,
    SetMemTable(Vec<VhostUserMemoryRegion>),
    SetLogBase(VhostUserLog),
    SetLogFd,
    SetVringNum(VhostUserVringState),
    SetVringAddr(VhostUserVringAddr),
    SetVringBase(VhostUserVringState),
    GetVringBase(VhostUserVringState),
    SetVringKick(RingFile),
    SetVringCall(RingFile),
    /// Comes with a descriptor for errors, to which nobody writes.
    SetVringErr,
    GetProtocolFeatures,
    SetProtocolFeatures(u64),
    GetQueueNum,
    SetVringEnable(VhostUserVringState),
    /// The guest's MAC address, in the six lowest bytes of the number, first byte lowest.
    SendRarp(u64),
    NetSetMtu(u64),
    GetInflight(VhostUserInflight),
    SetInflight,
}

/// A ring, and whether a file descriptor for it comes with the message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RingFile {
    pub ring: u32,
    pub has_file: bool,
}

impl Request {
    /// Decodes a request. The device must check the numbers in it.
    pub fn decode(number: u32, payload: &[u8]) -> Result<Request, Malformed> {
        use FrontendReq as Code;
        let code = Code::try_from(number).map_err(|()| Malformed::Request(number))?;
        let only = |request: Request| match payload {
            // QEMU sends these with a meaningless payload.
            _ if payload.len() <= size_of::<u64>() => Ok(request),
            _ => Err(Malformed::Length(code)),
        };
        let word = || Ok(plain::<VhostUserU64>(code, payload)?.value);
        let state = || plain::<VhostUserVringState>(code, payload);
        let file = || {
            let word = plain::<VhostUserU64>(code, payload)?.value;
            Ok(RingFile {
                ring: (word & 0xff) as u32,
                has_file: word & NO_FILE == 0,
            })
        };
        match code {
            Code::GET_FEATURES => only(Request::GetFeatures),
            Code::SET_FEATURES => word().map(Request::SetFeatures),
            Code::SET_OWNER => only(Request::SetOwner),
            Code::RESET_OWNER | Code::RESET_DEVICE => only(Request::Reset),
            Code::SET_MEM_TABLE => table(code, payload).map(Request::SetMemTable),
            Code::SET_LOG_BASE => checked(code, payload).map(Request::SetLogBase),
            Code::SET_LOG_FD => only(Request::SetLogFd),
            Code::SET_VRING_NUM => state().map(Request::SetVringNum),
            Code::SET_VRING_ADDR => checked(code, payload).map(Request::SetVringAddr),
            Code::SET_VRING_BASE => state().map(Request::SetVringBase),
            Code::GET_VRING_BASE => state().map(Request::GetVringBase),
            Code::SET_VRING_KICK => file().map(Request::SetVringKick),
            Code::SET_VRING_CALL => file().map(Request::SetVringCall),
            Code::SET_VRING_ERR => file().map(|_| Request::SetVringErr),
            Code::GET_PROTOCOL_FEATURES => only(Request::GetProtocolFeatures),
            Code::SET_PROTOCOL_FEATURES => word().map(Request::SetProtocolFeatures),
            Code::GET_QUEUE_NUM => only(Request::GetQueueNum),
            Code::SET_VRING_ENABLE => state().map(Request::SetVringEnable),
            Code::SEND_RARP => word().map(Request::SendRarp),
            Code::NET_SET_MTU => word().map(Request::NetSetMtu),
            Code::GET_INFLIGHT_FD => inflight(code, payload).map(Request::GetInflight),
            Code::SET_INFLIGHT_FD => inflight(code, payload).map(|_| Request::SetInflight),
            _ => Err(Malformed::Request(number)),
        }
    }
}

/// Decodes a payload of one structure.
fn plain<T: ByteValued + Default>(code: FrontendReq, payload: &[u8]) -> Result<T, Malformed> {
    if payload.len() != size_of::<T>() {
        return Err(Malformed::Length(code));
    }
    let mut value = T::default();
    value.as_mut_slice().copy_from_slice(payload);
    Ok(value)
}

/// Decodes a payload of one structure that can check its values.
fn checked<T: VhostUserMsgValidator + Default>(
    code: FrontendReq,
    payload: &[u8],
) -> Result<T, Malformed> {
    let value: T = plain(code, payload)?;
    if value.is_valid() {
        Ok(value)
    } else {
        Err(Malformed::Payload(code))
    }
}

/// Decodes a `VhostUserInflight`; some front ends send it without its trailing padding.
fn inflight(code: FrontendReq, payload: &[u8]) -> Result<VhostUserInflight, Malformed> {
    const WORDS: usize = 2 * size_of::<u64>() + 2 * size_of::<u16>();
    let mut whole = [0; size_of::<VhostUserInflight>()];
    if payload.len() < WORDS || payload.len() > whole.len() {
        return Err(Malformed::Length(code));
    }
    whole[..payload.len()].copy_from_slice(payload);
    checked(code, &whole)
}

/// Decodes the regions of a memory table.
fn table(code: FrontendReq, payload: &[u8]) -> Result<Vec<VhostUserMemoryRegion>, Malformed> {
    const FIRST: usize = size_of::<VhostUserMemory>();
    const EACH: usize = size_of::<VhostUserMemoryRegion>();
    let head: VhostUserMemory = plain(code, payload.get(..FIRST).unwrap_or_default())?;
    let count = head.num_regions as usize;
    if count > MOST_FILES {
        return Err(Malformed::Payload(code));
    }
    // QEMU always sends room for the largest number of regions.
    let given = payload[FIRST..].chunks_exact(EACH);
    let regions: Vec<_> = given
        .take(count)
        .map(|bytes| checked(code, bytes))
        .collect::<Result<_, _>>()?;
    if regions.len() == count && count > 0 {
        Ok(regions)
    } else {
        Err(Malformed::Length(code))
    }
}

/// Encodes a reply: the request's number, and a payload.
pub fn reply(request: u32, payload: &[u8]) -> Vec<u8> {
    let flags = VERSION | VhostUserHeaderFlag::REPLY.bits();
    let head = [request, flags, payload.len() as u32];
    let mut bytes: Vec<u8> = head.iter().flat_map(|word| word.to_ne_bytes()).collect();
    bytes.extend_from_slice(payload);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn head(words: [u32; 3]) -> [u8; HEAD] {
        let mut bytes = [0; HEAD];
        for (place, word) in bytes.chunks_exact_mut(4).zip(words) {
            place.copy_from_slice(&word.to_ne_bytes());
        }
        bytes
    }

    fn error(number: u32, payload: &[u8]) -> Option<Malformed> {
        Request::decode(number, payload).err()
    }

    #[test]
    fn heads_are_of_version_1_and_no_replies() {
        let read = |words| Head::decode(&head(words));
        let good = Head {
            request: 5,
            wants_reply: true,
            length: 4096,
        };
        assert_eq!(read([5, 1 | 8, 4096]), Ok(good));
        assert_eq!(read([5, 1 | 8, 4097]), Err(Malformed::Long(4097)));
        assert_eq!(read([5, 1, u32::MAX]), Err(Malformed::Long(u32::MAX)));
        for flags in [0, 2, 3, 1 | 4, 1 | 16, u32::MAX] {
            assert_eq!(read([5, flags, 0]), Err(Malformed::Flags(flags)));
        }
        assert_eq!(
            reply(11, &[1, 2]),
            [&head([11, 1 | 4, 2])[..], &[1, 2]].concat()
        );
    }

    #[test]
    fn payloads_are_as_long_as_their_requests() {
        for number in [0, 45, 1000, u32::MAX] {
            assert_eq!(error(number, &[]), Some(Malformed::Request(number)));
        }
        // GET_CONFIG, IOTLB_MSG, POSTCOPY_ADVISE, ADD_MEM_REG.
        for number in [24, 22, 28, 37] {
            assert_eq!(error(number, &[0; 8]), Some(Malformed::Request(number)));
        }
        for (number, length) in [(2, 8), (8, 8), (9, 40), (12, 8), (19, 8), (6, 16)] {
            for wrong in [0, length - 1, length + 1, 4096] {
                let code = FrontendReq::try_from(number).unwrap();
                assert_eq!(
                    error(number, &vec![0; wrong]),
                    Some(Malformed::Length(code))
                );
            }
        }
        let file = |word: u64| match Request::decode(12, &word.to_ne_bytes()) {
            Ok(Request::SetVringKick(file)) => (file.ring, file.has_file),
            _ => panic!("a kick"),
        };
        assert_eq!(file(0x7f), (127, true));
        assert_eq!(file(0x101), (1, false));
    }

    #[test]
    fn memory_tables_have_as_many_regions_as_they_say() {
        let region = |size: u64, user: u64| {
            [0u64, size, user, 0]
                .iter()
                .flat_map(|word| word.to_ne_bytes())
                .collect::<Vec<u8>>()
        };
        let table = |count: u32, regions: &[Vec<u8>]| {
            let head = u64::from(count).to_ne_bytes().to_vec();
            match Request::decode(5, &[&[head], regions].concat().concat()) {
                Ok(Request::SetMemTable(regions)) => Ok(regions.len()),
                Ok(_) => panic!("a table"),
                Err(wrong) => Err(wrong),
            }
        };
        let good = region(4096, 1 << 40);
        let code = FrontendReq::SET_MEM_TABLE;
        assert_eq!(table(1, std::slice::from_ref(&good)), Ok(1));
        assert_eq!(table(8, &vec![good.clone(); 8]), Ok(8));
        assert_eq!(table(1, &vec![good.clone(); 8]), Ok(1));
        assert_eq!(
            table(2, std::slice::from_ref(&good)),
            Err(Malformed::Length(code))
        );
        assert_eq!(table(0, &[]), Err(Malformed::Length(code)));
        let nine = vec![good.clone(); 9];
        assert_eq!(table(9, &nine), Err(Malformed::Payload(code)));
        for bad in [region(0, 0), region(u64::MAX, 1), region(4096, u64::MAX)] {
            assert_eq!(table(1, &[bad]), Err(Malformed::Payload(code)));
        }
        assert_eq!(error(5, &[1, 0]), Some(Malformed::Length(code)));
    }

    proptest! {
        #[test]
        fn no_bytes_panic(
            number in 0u32..48,
            payload in proptest::collection::vec(any::<u8>(), 0..400),
            bytes in any::<[u8; HEAD]>(),
        ) {
            let _ = Request::decode(number, &payload);
            let _ = Head::decode(&bytes);
        }
    }
}
