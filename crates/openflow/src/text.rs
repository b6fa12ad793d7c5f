//! Parses and prints rules, groups and meters like `ovs-ofctl`.

pub mod format;
pub mod parse;
