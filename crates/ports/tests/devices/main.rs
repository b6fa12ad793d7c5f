//! Ports on real devices: DPDK's virtual ones, and kernel interfaces in network namespaces of their
//! own.
//!
//! All tests run in one process, as DPDK is set up once for each process. They need root.

mod afxdp;
mod dummy;
mod eal;
mod ethdev;
mod frontend;
mod kernel;
mod routes;
mod support;
mod vhost;
