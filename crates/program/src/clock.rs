//! A cycle counter that is cheap to read.

pub use stages::cycles;
