//! Changes to a bridge's rules, groups and meters: by controllers, packets and time.

pub(crate) mod batch;
pub(crate) mod eviction;
pub(crate) mod expire;
pub(crate) mod flow_mod;
pub(crate) mod group_mod;
pub(crate) mod learn;
pub(crate) mod meter_mod;
pub(crate) mod packet_out;
pub(crate) mod sweep;
pub(crate) mod tlv;
pub(crate) mod vacancy;
