//! Walks that stop and go on later: until a rule that they asked for is there ([`hold`]), or when a
//! controller says so ([`freeze`]).

pub(crate) mod asked;
pub(crate) mod freeze;
pub(crate) mod hold;
