//! Groups (OpenFlow 1.3.5 section 5.6; 1.5.1 section 7.3.4.3).

use crate::model::action::Action;
use crate::model::error::Error;
use crate::model::port::{self, PortNo};
use packet::{Field, Value};

/// Every group (`OFPG_ALL`).
pub const ALL: u32 = 0xffff_fffc;
/// Any group, or no group (`OFPG_ANY`).
pub const ANY: u32 = 0xffff_ffff;
/// Highest number of a group (`OFPG_MAX`).
pub const MAX: u32 = 0xffff_ff00;

/// Highest id of a bucket (`OFPG_BUCKET_MAX`, 1.5).
pub const BUCKET_MAX: u32 = 0xffff_ff00;
/// Before or at the first bucket (`OFPG_BUCKET_FIRST`).
pub const BUCKET_FIRST: u32 = 0xffff_fffd;
/// After or at the last bucket (`OFPG_BUCKET_LAST`).
pub const BUCKET_LAST: u32 = 0xffff_fffe;
/// All buckets (`OFPG_BUCKET_ALL`), and what commands say that name no bucket.
pub const BUCKET_ALL: u32 = 0xffff_ffff;

/// `OFPGC_*`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u16)]
pub enum GroupCommand {
    /// A new group.
    Add = 0,
    /// Replace a group.
    Modify = 1,
    /// Remove a group, or [`ALL`].
    Delete = 2,
    /// Put buckets in (1.5).
    InsertBucket = 3,
    /// Take buckets out (1.5).
    RemoveBucket = 5,
    /// Open vSwitch: a new group, or replace the one that is there (`ovs-ofctl --may-create
    /// mod-group`).
    AddOrModify = 0x8000,
}

/// `OFPGT_*`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
#[repr(u8)]
pub enum GroupKind {
    /// Every bucket.
    All = 0,
    /// One bucket, chosen by a hash.
    Select = 1,
    /// The one bucket.
    Indirect = 2,
    /// The first live bucket.
    FastFailover = 3,
}

/// How a select group chooses (Netronome's `NTRT_SELECTION_METHOD`, a property of 1.5 and of
/// Nicira's messages of 1.0).
#[derive(Clone, PartialEq, Eq, Debug, Hash)]
pub struct Selection {
    /// Which method.
    pub method: SelectionMethod,
    /// For [`SelectionMethod::Hash`] a number mixed into the hash; for [`SelectionMethod::DpHash`]
    /// likewise in the low half, and which hash in the high half: 0 for that of the
    /// five-tuple, 1 for one that is the same in both directions.
    pub parameter: u64,
    /// What [`SelectionMethod::Hash`] hashes: fields and the bits of each, as they lie in the key.
    /// None for the default.
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
    /// Its name on the wire and in texts.
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
    /// Its id (1.5); in older versions its place.
    pub id: u32,
    /// Its share (select groups).
    pub weight: u16,
    /// Port whose state decides whether it is live, or [`crate::port::ANY`].
    pub watch_port: PortNo,
    /// Group whose state decides, or [`ANY`].
    pub watch_group: u32,
    /// Its action set.
    pub actions: Vec<Action>,
}

impl Bucket {
    /// Whether some port or group decides whether it is live.
    pub fn is_watched(&self) -> bool {
        self.watch_port != port::ANY || self.watch_group != ANY
    }

    /// Whether it may stand in a group of this type: weights are for select groups; a fast failover
    /// bucket watches something, one of an all or indirect group nothing (1.3.5 section
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

/// A change of the groups.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct GroupMod {
    /// What to do.
    pub command: GroupCommand,
    /// The group's type.
    pub kind: GroupKind,
    /// Which group, or [`ALL`] to delete.
    pub group: u32,
    /// Where to insert or what to remove (1.5): a bucket's id, [`BUCKET_FIRST`], [`BUCKET_LAST`]
    /// or [`BUCKET_ALL`]; the last in other commands.
    pub command_bucket: u32,
    /// Its buckets.
    pub buckets: Vec<Bucket>,
    /// How it chooses one; None for the switch's own way, and in versions that cannot say.
    pub selection: Option<Selection>,
}

/// A group's counters.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct GroupStats {
    /// Which group.
    pub group: u32,
    /// Rules and groups that name it.
    pub references: u32,
    /// Packets.
    pub packets: u64,
    /// Bytes.
    pub bytes: u64,
    /// Age in nanoseconds (1.3).
    pub duration_ns: u64,
    /// Packets and bytes by bucket.
    pub buckets: Vec<(u64, u64)>,
}

/// What a group is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct GroupDescription {
    /// Its type.
    pub kind: GroupKind,
    /// Its number.
    pub group: u32,
    /// Its buckets.
    pub buckets: Vec<Bucket>,
    /// How it chooses one; told only in 1.5 and Nicira's messages.
    pub selection: Option<Selection>,
}
