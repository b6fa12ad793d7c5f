//! What a bridge's rules, groups and meters are, and ways to find them. It knows no command.

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
