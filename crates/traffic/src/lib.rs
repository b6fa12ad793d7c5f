//! Generates traffic and measures what becomes of it.
//!
//! `sluice gen` runs a [`spec::Spec`] in a process of its own and prints a [`report::Report`]; the
//! lab starts that process wherever an experiment needs it. Frames carry a sequence number, their
//! flow and the time at which they were *scheduled*, so that a generator that falls behind cannot
//! make a switch look faster than it is.
//!
//! * [`plan`] checks a spec; [`frames`], [`flows`] and [`schedule`] are what it says about frames'
//!   contents, their flows and their times.
//! * [`rules`] reads sets of rules, [`sample`] chooses packets by them, [`table`] builds their
//!   frames; [`rule_sets`] makes such sets.
//! * [`capture`] reads the files that are replayed; [`mod@file`] is ports that write them.
//! * [`stamp`] is what frames carry; [`ledger`] keeps account of what arrives.
//! * [`engine`] is the loop, over any queues; [`open`] opens real ones, [`memory`] makes a delay
//!   line.
//! * [`run`] puts it together.

pub mod capture;
pub mod clock;
pub mod engine;
pub mod file;
pub mod flows;
pub mod frames;
pub mod histogram;
pub mod ledger;
pub mod memory;
pub mod open;
pub mod plan;
pub mod random;
pub mod report;
pub mod rule_sets;
pub mod rules;
pub mod run;
pub mod sample;
pub mod schedule;
pub mod spec;
pub mod stamp;
pub mod table;
