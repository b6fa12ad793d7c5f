//! Rules, groups and meters as `ovs-ofctl` reads and prints them.

pub mod format;
pub mod parse;
