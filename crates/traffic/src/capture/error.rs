//! Why the frames of a capture cannot be sent as they were.

use super::{INTERFACES, LONGEST, MOST_BYTES};

/// Why a capture cannot be replayed.
#[derive(Debug, thiserror::Error)]
pub enum CaptureError {
    /// The file cannot be read.
    #[error(transparent)]
    Io(#[from] std::io::Error),
    /// It is too large.
    #[error("more than {MOST_BYTES} bytes")]
    TooLarge,
    /// It is too short to have a format.
    #[error("it is no capture: shorter than a header")]
    TooShort,
    /// It has another format; its first four bytes.
    #[error("it is neither pcap nor pcapng: it begins with {0:#010x}")]
    Format(u32),
    /// It ends too early, in the header of a pcap file.
    #[error("it ends within its header")]
    HeaderCut,
    /// It ends within the record that begins at this byte.
    #[error("it ends within the record at byte {0}")]
    RecordCut(usize),
    /// It ends within the block that begins at this byte.
    #[error("it ends within the block at byte {0}")]
    BlockCut(usize),
    /// A block of a pcapng file is wrong.
    #[error("the block at byte {at} {defect}")]
    Block {
        /// Where the block begins.
        at: usize,
        /// What is wrong with it.
        defect: BlockDefect,
    },
    /// Its frames are not Ethernet's; the number of their link type.
    #[error("its link type is {0}, not 1 (Ethernet)")]
    LinkType(u32),
    /// Not all of a frame was captured.
    #[error("frame {number} is cut: {captured} of {length} bytes were captured")]
    FrameCut {
        /// The frame, from 1 on.
        number: usize,
        /// The bytes that were captured.
        captured: usize,
        /// The bytes that it had.
        length: usize,
    },
    /// A frame is too short or too long.
    #[error("frame {number} has {length} bytes: 14 to {LONGEST} can be sent")]
    FrameLength {
        /// The frame, from 1 on.
        number: usize,
        /// Its bytes.
        length: usize,
    },
}

/// What is wrong with a block of a pcapng file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BlockDefect {
    /// A section's first number is neither in one byte order nor in the other.
    #[error("has no byte order")]
    ByteOrder,
    /// It has a length that no block has.
    #[error("has a length of {0}")]
    Length(usize),
    /// The lengths before and behind it differ.
    #[error("ends with another length than it begins with")]
    Lengths,
    /// It ends before its own numbers do.
    #[error("is too short")]
    TooShort,
    /// Its frame ends behind it.
    #[error("is shorter than its frame")]
    Frame,
    /// No block before it describes its frame's interface.
    #[error("names an interface that there is not")]
    Interface,
    /// It describes one interface too many.
    #[error("is the description of one interface more than {INTERFACES}")]
    TooManyInterfaces,
    /// One of its options ends behind it.
    #[error("has an option that is longer than it")]
    Option,
    /// A unit of its time stamps is too small a part of a second.
    #[error("has time stamps of too high a resolution")]
    Resolution,
}
