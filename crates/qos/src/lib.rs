//! Rate limiting: meters, policers and shapers.
//!
//! * [`bucket`]: a token bucket in integer arithmetic that any number of threads draw from without
//!   a lock.
//! * [`meter`]: OpenFlow meters, whose bands drop or remark packets.
//! * [`policer`]: three-colour markers over the same buckets.
//! * [`shaper`]: queues in which packets wait for their rates, with bounds on how long.
//! * [`mod@reference`]: slow, obvious implementations that tests compare with.
//!
//! Nothing here knows a packet's contents or reads a clock: a packet is a length, and time comes in
//! as nanoseconds of any clock that does not go back.

pub mod bucket;
pub mod meter;
pub mod policer;
pub mod reference;
pub mod shaper;
