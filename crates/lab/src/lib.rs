//! The lab: the papers' experiments on this machine, with Sluice and whatever peers are installed.
//!
//! An [`experiment`] is a YAML file that says what is swept and measured, and what the
//! papers found. [`run`](mod@run) sets [subjects](subject) up, measures cell by cell by a
//! [method](methods), and writes [`results`] as JSON; `report` makes one HTML file of them.

pub mod advice;
pub mod between;
pub mod changes;
pub mod clock;
pub mod compare;
pub mod error;
pub mod experiment;
pub mod findings;
pub mod frames;
pub mod generator;
pub mod guests;
pub mod journal;
pub mod lines;
pub mod machine;
pub mod methods;
pub mod place;
pub mod program;
pub mod report;
pub mod results;
pub mod run;
pub mod samples;
pub mod scatter;
pub mod settings;
#[cfg(test)]
mod simulated;
pub mod simulation;
pub mod speed;
pub mod statistics;
pub mod subject;
pub mod subjects;
pub mod trial;

pub use error::Error;
