//! The compiled form of OpenFlow tables, and the walk over it.
