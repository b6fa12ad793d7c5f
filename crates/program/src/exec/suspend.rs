//! Walks that stop and resume later: when a rule that they asked for has been made ([`hold`]), or
//! when a controller says so ([`freeze`]).

pub(crate) mod asked;
pub(crate) mod freeze;
pub(crate) mod hold;
