//! The lab: the papers' experiments on this machine, with Sluice and whatever peers are installed.
//!
//! An [experiment](experiment) is a YAML file that says what is swept and measured, and what the
//! papers found. `run` sets [subjects](subject) up, measures cell by cell, and writes
//! [results](results) as JSON; `report` makes one HTML file of them.

pub mod experiment;
pub mod lines;
pub mod program;
pub mod results;
pub mod simulation;
pub mod subject;
