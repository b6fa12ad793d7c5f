//! Queries: dumps, statistics and flow monitors.

pub(crate) mod changes;
pub(crate) mod dump;
pub(crate) mod statistics;
