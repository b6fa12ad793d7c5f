//! sluice: one command for people.
