//! A bridge's rules, groups and meters, and ways to find them. Knows nothing of commands.

pub(crate) mod behaviour;
pub(crate) mod criteria;
pub(crate) mod groups;
pub(crate) mod index;
pub(crate) mod learned;
pub(crate) mod meters;
pub(crate) mod options;
pub(crate) mod overlap;
pub(crate) mod store;
pub(crate) mod timers;
