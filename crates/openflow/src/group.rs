//! Groups.

use crate::action::Action;
use crate::port::PortNo;

/// Every group (`OFPG_ALL`).
pub const ALL: u32 = 0xffff_fffc;
/// Any group, or no group (`OFPG_ANY`).
pub const ANY: u32 = 0xffff_ffff;
/// Highest number of a group (`OFPG_MAX`).
pub const MAX: u32 = 0xffff_ff00;

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

/// A change of the groups.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct GroupMod {
    /// What to do.
    pub command: GroupCommand,
    /// The group's type.
    pub kind: GroupKind,
    /// Which group, or [`ALL`] to delete.
    pub group: u32,
    /// Where to insert or what to remove (1.5): a bucket's id, or `OFPG_BUCKET_*`; all ones in other commands.
    pub command_bucket: u32,
    /// Its buckets.
    pub buckets: Vec<Bucket>,
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
}
