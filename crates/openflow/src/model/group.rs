//! Groups (OpenFlow 1.3.5 section 5.6; 1.5.1 section 7.3.4.3).

use crate::model::action::Action;
use crate::model::error::Error;
use crate::model::port::{self, PortNo};
use packet::{Field, Value};

/// All groups (`OFPG_ALL`).
pub const ALL: u32 = 0xffff_fffc;
/// Any group, or no group (`OFPG_ANY`).
pub const ANY: u32 = 0xffff_ffff;
/// Highest number of a group (`OFPG_MAX`).
pub const MAX: u32 = 0xffff_ff00;

/// Highest id of a bucket (`OFPG_BUCKET_MAX`, 1.5).
pub const BUCKET_MAX: u32 = 0xffff_ff00;
/// In front of, or at, the first bucket (`OFPG_BUCKET_FIRST`).
pub const BUCKET_FIRST: u32 = 0xffff_fffd;
/// Behind, or at, the last bucket (`OFPG_BUCKET_LAST`).
pub const BUCKET_LAST: u32 = 0xffff_fffe;
/// All buckets (`OFPG_BUCKET_ALL`); also used by commands that name no bucket.
pub const BUCKET_ALL: u32 = 0xffff_ffff;

/// `OFPGC_*`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u16)]
pub enum GroupCommand {
    /// Add a group.
    Add = 0,
    /// Replace a group.
    Modify = 1,
    /// Delete a group, or [`ALL`].
    Delete = 2,
    /// Insert buckets (1.5).
    InsertBucket = 3,
    /// Remove buckets (1.5).
    RemoveBucket = 5,
    /// Open vSwitch: add a group or replace it (`ovs-ofctl --may-create mod-group`).
    AddOrModify = 0x8000,
}

/// `OFPGT_*`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
#[repr(u8)]
pub enum GroupKind {
    /// Every bucket runs.
    All = 0,
    /// One bucket runs, chosen by a hash.
    Select = 1,
    /// The only bucket runs.
    Indirect = 2,
    /// The first live bucket runs.
    FastFailover = 3,
}

/// How a select group chooses a bucket (Netronome's `NTRT_SELECTION_METHOD`, a property in 1.5 and
/// in Nicira's messages of 1.0).
#[derive(Clone, PartialEq, Eq, Debug, Hash)]
pub struct Selection {
    /// The method.
    pub method: SelectionMethod,
    /// For [`SelectionMethod::Hash`], a number mixed into the hash. For
    /// [`SelectionMethod::DpHash`], the low half is mixed in and the high half is the kind of hash:
    /// 0 five-tuple, 1 symmetric in both directions.
    pub parameter: u64,
    /// What [`SelectionMethod::Hash`] hashes: fields and the bits of each, in the key's layout.
    /// Empty for the default.
    pub fields: Vec<(Field, Value)>,
}

/// Methods of choosing a bucket.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum SelectionMethod {
    /// `hash`: over fields that the group names.
    Hash,
    /// `dp_hash`: over the five-tuple.
    DpHash,
}

impl SelectionMethod {
    /// Returns its name on the wire and in text.
    pub fn name(self) -> &'static str {
        match self {
            SelectionMethod::Hash => "hash",
            SelectionMethod::DpHash => "dp_hash",
        }
    }
}

/// One bucket.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Bucket {
    /// Its id (1.5); in older versions its position.
    pub id: u32,
    /// Its share (select groups).
    pub weight: u16,
    /// Port that must be live for the bucket to be live, or [`crate::port::ANY`].
    pub watch_port: PortNo,
    /// Group that must be live for the bucket to be live, or [`ANY`].
    pub watch_group: u32,
    /// Its action set.
    pub actions: Vec<Action>,
}

impl Bucket {
    /// Returns whether its liveness depends on a port or group.
    pub fn is_watched(&self) -> bool {
        self.watch_port != port::ANY || self.watch_group != ANY
    }

    /// Checks that a group of this type may have the bucket: weights are for select groups; a fast
    /// failover bucket watches something, one of an all or indirect group nothing (1.3.5 section
    /// 7.3.4.2). Errors are Open vSwitch's.
    pub fn fits(&self, kind: GroupKind) -> Result<(), Error> {
        if self.weight != 0 && kind != GroupKind::Select {
            return Err(Error::InvalidGroup);
        }
        match kind {
            GroupKind::All | GroupKind::Indirect if self.is_watched() => {
                Err(Error::WatchUnsupported)
            }
            GroupKind::FastFailover if !self.is_watched() => Err(Error::InvalidGroup),
            _ => Ok(()),
        }
    }
}

/// A change of a group.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct GroupMod {
    /// The command.
    pub command: GroupCommand,
    /// The group's type.
    pub kind: GroupKind,
    /// The group, or [`ALL`] to delete all.
    pub group: u32,
    /// Where to insert or what to remove (1.5): a bucket's id, [`BUCKET_FIRST`], [`BUCKET_LAST`] or
    /// [`BUCKET_ALL`]; always [`BUCKET_ALL`] in other commands.
    pub command_bucket: u32,
    /// Its buckets.
    pub buckets: Vec<Bucket>,
    /// How it chooses a bucket; None for the switch's default, and in versions without this
    /// property.
    pub selection: Option<Selection>,
}

/// A group's counters.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct GroupStats {
    /// The group.
    pub group: u32,
    /// Rules and groups that name it.
    pub references: u32,
    /// Packets.
    pub packets: u64,
    /// Bytes.
    pub bytes: u64,
    /// Age in nanoseconds (1.3 and later).
    pub duration_ns: u64,
    /// Packets and bytes of each bucket.
    pub buckets: Vec<(u64, u64)>,
}

/// The description of a group.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct GroupDescription {
    /// Its type.
    pub kind: GroupKind,
    /// Its number.
    pub group: u32,
    /// Its buckets.
    pub buckets: Vec<Bucket>,
    /// How it chooses a bucket; reported only in 1.5 and in Nicira's messages.
    pub selection: Option<Selection>,
}
