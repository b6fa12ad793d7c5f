//! Every way in and out: DPDK devices and kernel interfaces.
