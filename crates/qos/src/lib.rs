//! Rates, and what is done about traffic that exceeds them.
//!
//! * [`bucket`]: a token bucket in whole numbers that any number of threads draw from without a
//!   lock.
//! * [`meter`]: OpenFlow's meters: bands, each with a bucket, and what the one that acts does to a
//!   packet.
//! * [`policer`]: three-colour markers over the same buckets.
//! * [`shaper`]: queues that wait for their rates, with bounds on how long.
//! * [`twin`]: the same, slow and obvious, which tests hold the fast form against.
//!
//! Nothing here knows what a packet holds, or reads a clock: a packet is a length, and time comes
//! in as nanoseconds of any clock that does not go back.

pub mod bucket;
pub mod meter;
pub mod policer;
pub mod shaper;
pub mod twin;
