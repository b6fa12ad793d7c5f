//! Walks that stop and resume later: when a rule that they asked for has been made ([`hold`]), when
//! a controller says so ([`freeze`]), or when the datagram of a fragment is whole ([`fragment`]).

pub(crate) mod asked;
pub(crate) mod flaps;
pub(crate) mod fragment;
pub(crate) mod freeze;
pub(crate) mod hold;
pub(crate) mod rates;
