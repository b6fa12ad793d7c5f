//! Tests of the crate's public interface, in one binary: linking one per file takes longer than
//! running them.

mod meter;
mod policer;
mod shaper;
mod shaper_reference;
