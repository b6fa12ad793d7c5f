//! What is worked out about rules beforehand: which bits decide a packet's way ([`unwildcarded`]),
//! and what rules and those behind them do together ([`compile`], partial evaluation).

pub(crate) mod compile;
pub(crate) mod unwildcarded;
