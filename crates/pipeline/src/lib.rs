//! OpenFlow state, flow-mod semantics, and its compilation to a program.
