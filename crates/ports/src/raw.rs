//! The C side: DPDK's functions, the shim's, and mirrors of the structures that are accessed for
//! every packet.
//!
//! Only what is used is declared. `shim/shim.c` asserts every layout here at compile time.

use libc::{c_char, c_int, c_uint};

/// `struct rte_mbuf`, with the fields that Sluice reads or writes.
#[repr(C, align(64))]
pub struct RawMbuf {
    pub buffer: *mut u8,
    pub buffer_iova: u64,
    pub data_off: u16,
    pub reference_count: u16,
    pub segments: u16,
    pub port: u16,
    pub flags: u64,
    pub packet_type: u32,
    pub packet_len: u32,
    pub data_len: u16,
    pub vlan_tci: u16,
    pub hash_low: u32,
    pub hash_high: u32,
    pub vlan_tci_outer: u16,
    pub buffer_len: u16,
    pub pool: *mut RawPool,
    pub next: *mut RawMbuf,
    pub tx_offload: u64,
    rest: [u8; 48],
}

const _: () = assert!(std::mem::size_of::<RawMbuf>() == 128);
const _: () = assert!(std::mem::offset_of!(RawMbuf, pool) == 56);
const _: () = assert!(std::mem::offset_of!(RawMbuf, tx_offload) == 72);

/// `struct rte_mempool`, opaque.
#[repr(C)]
pub struct RawPool {
    opaque: [u8; 0],
}

/// `struct rte_device`, opaque.
#[repr(C)]
pub struct RawDevice {
    opaque: [u8; 0],
}

/// Offload flags of an mbuf (`RTE_MBUF_F_*`).
pub mod flag {
    pub const RX_RSS_HASH: u64 = 1 << 1;
    pub const RX_L4_CKSUM_GOOD: u64 = 1 << 8;
    /// Both bits: neither good nor bad, the checksum must still be filled in.
    pub const RX_L4_CKSUM_NONE: u64 = 1 << 3 | 1 << 8;
    pub const TX_TCP_SEG: u64 = 1 << 50;
    pub const TX_TCP_CKSUM: u64 = 1 << 52;
    pub const TX_UDP_CKSUM: u64 = 3 << 52;
    pub const TX_IP_CKSUM: u64 = 1 << 54;
    pub const TX_IPV4: u64 = 1 << 55;
    pub const TX_IPV6: u64 = 1 << 56;
    /// Flags about the memory, not the packet: never cleared.
    pub const MEMORY: u64 = 3 << 61;
}

/// Offloads of a device (`RTE_ETH_RX_OFFLOAD_*`, `RTE_ETH_TX_OFFLOAD_*`).
pub mod capability {
    pub const RX_CHECKSUM: u64 = 1 << 1 | 1 << 2 | 1 << 3;
    pub const RX_SCATTER: u64 = 1 << 13;
    pub const RX_RSS_HASH: u64 = 1 << 19;
    pub const TX_CHECKSUM: u64 = 1 << 1 | 1 << 2 | 1 << 3;
    pub const TX_TCP_SEG: u64 = 1 << 5;
    pub const TX_MULTI_SEGMENT: u64 = 1 << 15;
}

/// Properties of an Ethernet device.
#[repr(C)]
pub struct EthInfo {
    pub driver: [c_char; 64],
    pub name: [c_char; 64],
    pub mac: [u8; 6],
    pub mtu: u16,
    pub min_mtu: u16,
    pub max_mtu: u16,
    pub max_rx_queues: u16,
    pub max_tx_queues: u16,
    pub max_vfs: u16,
    pub max_vmdq_pools: u16,
    pub min_rx_bufsize: u32,
    pub max_rx_pktlen: u32,
    pub max_mac_addrs: u32,
    pub max_hash_mac_addrs: u32,
    pub if_index: u32,
    pub socket: i32,
    pub rx_offloads: u64,
    pub tx_offloads: u64,
    pub rss_types: u64,
    pub table_size: u16,
    pub pad: [u16; 3],
}

/// What devices hash for receive-side scaling (`RTE_ETH_RSS_*`).
pub mod rss {
    pub const IPV4: u64 = 1 << 2 | 1 << 3 | 1 << 7;
    pub const TCP4: u64 = 1 << 4;
    pub const UDP4: u64 = 1 << 5;
    pub const IPV6: u64 = 1 << 8 | 1 << 9 | 1 << 13;
    pub const TCP6: u64 = 1 << 10;
    pub const UDP6: u64 = 1 << 11;
    pub const ALL: u64 = IPV4 | TCP4 | UDP4 | IPV6 | TCP6 | UDP6;
}

/// Configuration of a device.
#[repr(C)]
#[derive(Clone, Debug)]
pub struct EthConf {
    pub rx_queues: u16,
    pub tx_queues: u16,
    pub rx_descriptors: u16,
    pub tx_descriptors: u16,
    pub mtu: u16,
    pub pad: u16,
    pub socket: i32,
    pub rx_offloads: u64,
    pub tx_offloads: u64,
    pub rss_types: u64,
}

/// State of a device's link.
#[repr(C)]
#[derive(Default)]
pub struct EthLink {
    pub speed_mbps: u32,
    pub up: u8,
    pub full_duplex: u8,
    pub pad: [u8; 2],
}

/// Counters of a device.
#[repr(C)]
#[derive(Default)]
pub struct EthStats {
    pub rx_packets: u64,
    pub tx_packets: u64,
    pub rx_bytes: u64,
    pub tx_bytes: u64,
    pub rx_missed: u64,
    pub rx_errors: u64,
    pub tx_errors: u64,
    pub rx_no_buffer: u64,
}

/// `struct rte_eth_xstat`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct EthCounter {
    pub id: u64,
    pub value: u64,
}

/// `struct rte_eth_xstat_name`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct EthCounterName {
    pub name: [c_char; 64],
}

unsafe extern "C" {
    pub fn sluice_errno() -> c_int;
    pub fn sluice_log_to(sink: extern "C" fn(u32, *const c_char, usize)) -> c_int;
    pub fn sluice_pool_create(
        name: *const c_char,
        count: u32,
        cache: u32,
        room: u16,
        socket: c_int,
    ) -> *mut RawPool;
    pub fn sluice_memory_is_left(bytes: usize) -> bool;
    pub fn sluice_pool_available(pool: *const RawPool) -> u32;
    pub fn sluice_mbuf_alloc(pool: *mut RawPool) -> *mut RawMbuf;
    pub fn sluice_mbuf_free(mbuf: *mut RawMbuf);
    pub fn sluice_mbuf_free_bulk(mbufs: *mut *mut RawMbuf, count: u32);
    pub fn sluice_mbuf_free_segment(mbuf: *mut RawMbuf);
    pub fn sluice_pool_get(pool: *mut RawPool, out: *mut *mut RawMbuf, count: u32) -> c_int;
    pub fn sluice_pool_put(pool: *mut RawPool, mbufs: *mut *mut RawMbuf, count: u32);
    pub fn sluice_pool_fetch_next(mbuf: *const RawMbuf, count: u32);
    pub fn sluice_rx_burst(port: u16, queue: u16, out: *mut *mut RawMbuf, count: u16) -> u16;
    pub fn sluice_tx_burst(port: u16, queue: u16, frames: *mut *mut RawMbuf, count: u16) -> u16;
    pub fn sluice_tx_prepare(port: u16, queue: u16, frames: *mut *mut RawMbuf, count: u16) -> u16;
    pub fn sluice_eth_matching(devargs: *const c_char, out: *mut u16, room: c_int) -> c_int;
    pub fn sluice_eth_info(port: u16, out: *mut EthInfo) -> c_int;
    pub fn sluice_eth_setup(port: u16, conf: *mut EthConf, pool: *mut RawPool) -> c_int;
    pub fn sluice_eth_read_table(port: u16, queues: *mut u16, size: u16) -> c_int;
    pub fn sluice_eth_write_table(port: u16, queues: *const u16, size: u16) -> c_int;
    pub fn sluice_eth_read_hash(port: u16, key: *mut u8, length: *mut u8, types: *mut u64)
    -> c_int;
    pub fn sluice_eth_set_mac(port: u16, mac: *const u8) -> c_int;
    pub fn sluice_eth_link(port: u16, out: *mut EthLink) -> c_int;
    pub fn sluice_eth_stats(port: u16, out: *mut EthStats) -> c_int;
    pub fn sluice_eth_device(port: u16) -> *mut RawDevice;
    pub fn rte_eth_dev_is_valid_port(port: u16) -> c_int;
    pub fn sluice_eth_device_name(port: u16) -> *const c_char;
    pub fn sluice_dump(what: u32, pool: *mut RawPool) -> *mut c_char;
    pub fn rte_log_set_level_pattern(pattern: *const c_char, level: u32) -> c_int;

    pub fn rte_eal_init(argc: c_int, argv: *mut *mut c_char) -> c_int;
    pub fn rte_eal_cleanup() -> c_int;
    pub fn rte_eal_get_runtime_dir() -> *const c_char;
    pub fn rte_thread_register() -> c_int;
    pub fn rte_thread_unregister();
    pub fn rte_version() -> *const c_char;
    pub fn rte_mempool_free(pool: *mut RawPool);
    pub fn rte_dev_probe(devargs: *const c_char) -> c_int;
    pub fn rte_dev_remove(device: *mut RawDevice) -> c_int;
    pub fn rte_eth_dev_start(port: u16) -> c_int;
    pub fn rte_eth_dev_stop(port: u16) -> c_int;
    pub fn rte_eth_dev_close(port: u16) -> c_int;
    pub fn sluice_xsk_delete_left() -> u32;
    pub fn rte_eth_dev_set_mtu(port: u16, mtu: u16) -> c_int;
    pub fn rte_eth_dev_set_link_up(port: u16) -> c_int;
    pub fn rte_eth_dev_set_link_down(port: u16) -> c_int;
    pub fn rte_eth_promiscuous_enable(port: u16) -> c_int;
    pub fn rte_eth_allmulticast_enable(port: u16) -> c_int;
    pub fn rte_eth_xstats_get(port: u16, out: *mut EthCounter, count: c_uint) -> c_int;
    pub fn rte_eth_xstats_get_names(port: u16, out: *mut EthCounterName, count: c_uint) -> c_int;
    pub fn rte_eth_find_next_owned_by(port: u16, owner: u64) -> u64;
}
