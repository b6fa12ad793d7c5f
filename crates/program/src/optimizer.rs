//! Computes facts about rules beforehand: which bits decide a packet's way ([`unwildcarded`]), and
//! what a rule and the rules behind it do together ([`compile`], partial evaluation).

pub(crate) mod compile;
pub(crate) mod unwildcarded;
