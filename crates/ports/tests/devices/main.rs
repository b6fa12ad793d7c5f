//! Ports on real devices: DPDK's virtual ones, and kernel interfaces in separate network
//! namespaces.
//!
//! All tests run in one process, because DPDK is set up once per process. They need root.

mod afxdp;
mod dummy;
mod eal;
mod ethdev;
mod frontend;
mod kernel;
mod routes;
mod support;
mod vhost;
