//! Generates traffic and measures what becomes of it.
//!
//! `sluice gen` runs a [`spec::Spec`] in a process of its own and prints a [`report::Report`]; the
//! lab starts that process wherever an experiment needs it. Frames carry a sequence number, their
//! flow and the time at which they were *scheduled*, so that a generator that falls behind cannot
//! make a switch look faster than it is.

pub mod report;
pub mod spec;
