/* What Rust cannot call directly: DPDK's inline functions and macros, and its large structures,
 * reduced to the few values that Sluice needs. The code here has no logic of its own, and no state
 * but the log sink. The end of the file asserts the layouts that src/raw.rs mirrors, so that it
 * does not compile with a DPDK that has moved a field. */
#include <errno.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <rte_dev.h>
#include <rte_eal.h>
#include <rte_errno.h>
#include <rte_ethdev.h>
#include <rte_lcore.h>
#include <rte_log.h>
#include <rte_malloc.h>
#include <rte_mbuf.h>
#include <rte_mempool.h>
#include <rte_version.h>

/* ---- environment ---- */

int sluice_errno(void)
{
    return rte_errno;
}

/* Receiver of log lines. DPDK keeps the level of the current line in thread-local state, so it is
 * read while the line is being written. */
static void (*log_sink)(uint32_t level, const char *text, size_t length);

static ssize_t log_write(void *cookie, const char *text, size_t length)
{
    (void)cookie;
    int level = rte_log_cur_msg_loglevel();
    log_sink(level < 0 ? RTE_LOG_INFO : (uint32_t)level, text, length);
    return (ssize_t)length;
}

int sluice_log_to(void (*sink)(uint32_t, const char *, size_t))
{
    cookie_io_functions_t functions = { .write = log_write };
    log_sink = sink;
    FILE *stream = fopencookie(NULL, "w", functions);
    if (stream == NULL)
        return -errno;
    return rte_openlog_stream(stream);
}

/* ---- buffers ---- */

struct rte_mempool *sluice_pool_create(const char *name, uint32_t count, uint32_t cache, uint16_t room, int socket)
{
    return rte_pktmbuf_pool_create(name, count, cache, 0, room, socket);
}

/* Returns whether this many bytes can be allocated in one piece. */
bool sluice_memory_is_left(size_t bytes)
{
    void *memory = rte_malloc(NULL, bytes, 0);
    rte_free(memory);
    return memory != NULL;
}

uint32_t sluice_pool_available(const struct rte_mempool *pool)
{
    return rte_mempool_avail_count(pool);
}

struct rte_mbuf *sluice_mbuf_alloc(struct rte_mempool *pool)
{
    return rte_pktmbuf_alloc(pool);
}

void sluice_mbuf_free(struct rte_mbuf *m)
{
    rte_pktmbuf_free(m);
}

void sluice_mbuf_free_bulk(struct rte_mbuf **frames, uint32_t count)
{
    rte_pktmbuf_free_bulk(frames, count);
}

/* Allocates `count` buffers, or none and returns an error. They are as the pool keeps them: one
 * segment, a reference count of 1, and old values in all other fields. */
int sluice_pool_get(struct rte_mempool *pool, struct rte_mbuf **out, uint32_t count)
{
    return rte_mempool_get_bulk(pool, (void **)out, count);
}

/* Returns buffers in that state to their pool. */
void sluice_pool_put(struct rte_mempool *pool, struct rte_mbuf **frames, uint32_t count)
{
    rte_mempool_put_bulk(pool, (void **)frames, count);
}

static inline void fetch_to_write(const void *place)
{
#if defined(__x86_64__)
    /* For the baseline processor of this build the compiler would only prefetch for reading.
     * Processors without this instruction treat it as a no-op. */
    __asm__ volatile("prefetchw %0" : : "m"(*(const char *)place));
#else
    __builtin_prefetch(place, 1, 3);
#endif
}

/* Prefetches for writing the next `count` buffers of this buffer's pool, as far as they are in this
 * thread's cache: both cache lines of the mbuf, and the first one of the data. */
void sluice_pool_fetch_next(const struct rte_mbuf *m, uint32_t count)
{
    const struct rte_mempool_cache *cache = rte_mempool_default_cache(m->pool, rte_lcore_id());
    if (cache == NULL)
        return;
    uint32_t len = cache->len;
    if (count > len)
        count = len;
    for (uint32_t i = 1; i <= count; i++) {
        char *next = cache->objs[len - i];
        fetch_to_write(next);
        fetch_to_write(next + RTE_CACHE_LINE_SIZE);
        fetch_to_write(next + sizeof(struct rte_mbuf) + RTE_PKTMBUF_HEADROOM);
    }
}

void sluice_mbuf_free_segment(struct rte_mbuf *m)
{
    rte_pktmbuf_free_seg(m);
}

/* ---- Ethernet devices ---- */

uint16_t sluice_rx_burst(uint16_t port, uint16_t queue, struct rte_mbuf **out, uint16_t count)
{
    return rte_eth_rx_burst(port, queue, out, count);
}

uint16_t sluice_tx_burst(uint16_t port, uint16_t queue, struct rte_mbuf **frames, uint16_t count)
{
    return rte_eth_tx_burst(port, queue, frames, count);
}

/* Lets the driver rewrite headers as its device needs them; returns how many frames it accepted. */
uint16_t sluice_tx_prepare(uint16_t port, uint16_t queue, struct rte_mbuf **frames, uint16_t count)
{
    return rte_eth_tx_prepare(port, queue, frames, count);
}

/* Writes the numbers of the ports that match `devargs` and returns how many there are, at most
 * `room`. */
int sluice_eth_matching(const char *devargs, uint16_t *out, int room)
{
    struct rte_dev_iterator iterator;
    uint16_t port;
    int count = 0;

    RTE_ETH_FOREACH_MATCHING_DEV(port, devargs, &iterator) {
        if (count == room) {
            rte_eth_iterator_cleanup(&iterator);
            break;
        }
        out[count++] = port;
    }
    return count;
}

struct sluice_eth_info {
    char driver[64];
    char name[64];
    uint8_t mac[6];
    uint16_t mtu;
    uint16_t min_mtu;
    uint16_t max_mtu;
    uint16_t max_rx_queues;
    uint16_t max_tx_queues;
    uint16_t max_vfs;
    uint16_t max_vmdq_pools;
    uint32_t min_rx_bufsize;
    uint32_t max_rx_pktlen;
    uint32_t max_mac_addrs;
    uint32_t max_hash_mac_addrs;
    uint32_t if_index;
    int32_t socket;
    uint64_t rx_offloads;
    uint64_t tx_offloads;
    uint64_t rss_types;
    uint16_t table_size;
    uint16_t pad[3];
};

int sluice_eth_info(uint16_t port, struct sluice_eth_info *out)
{
    struct rte_eth_dev_info info;
    struct rte_ether_addr mac;
    int error = rte_eth_dev_info_get(port, &info);

    if (error != 0)
        return error;
    memset(out, 0, sizeof *out);
    snprintf(out->driver, sizeof out->driver, "%s", info.driver_name ? info.driver_name : "");
    snprintf(out->name, sizeof out->name, "%s", info.device ? rte_dev_name(info.device) : "");
    if (rte_eth_macaddr_get(port, &mac) == 0)
        memcpy(out->mac, mac.addr_bytes, sizeof out->mac);
    rte_eth_dev_get_mtu(port, &out->mtu);
    out->min_mtu = info.min_mtu;
    out->max_mtu = info.max_mtu;
    out->max_rx_queues = info.max_rx_queues;
    out->max_tx_queues = info.max_tx_queues;
    out->max_vfs = info.max_vfs;
    out->max_vmdq_pools = info.max_vmdq_pools;
    out->min_rx_bufsize = info.min_rx_bufsize;
    out->max_rx_pktlen = info.max_rx_pktlen;
    out->max_mac_addrs = info.max_mac_addrs;
    out->max_hash_mac_addrs = info.max_hash_mac_addrs;
    out->if_index = info.if_index;
    out->socket = rte_eth_dev_socket_id(port);
    out->rx_offloads = info.rx_offload_capa;
    out->tx_offloads = info.tx_offload_capa;
    out->rss_types = info.flow_type_rss_offloads;
    out->table_size = info.reta_size;
    return 0;
}

struct sluice_eth_conf {
    uint16_t rx_queues;
    uint16_t tx_queues;
    uint16_t rx_descriptors;
    uint16_t tx_descriptors;
    uint16_t mtu;
    uint16_t pad;
    int32_t socket;
    uint64_t rx_offloads;
    uint64_t tx_offloads;
    uint64_t rss_types;
};

/* Configures and sets up all queues of a stopped port; writes back the descriptor counts the device
 * took. */
int sluice_eth_setup(uint16_t port, struct sluice_eth_conf *conf, struct rte_mempool *pool)
{
    struct rte_eth_conf device = { 0 };
    struct rte_eth_dev_info info;
    int error = rte_eth_dev_info_get(port, &info);

    if (error != 0)
        return error;
    device.rxmode.mtu = conf->mtu;
    device.rxmode.offloads = conf->rx_offloads;
    device.txmode.offloads = conf->tx_offloads;
    if (conf->rx_queues > 1 && conf->rss_types != 0) {
        device.rxmode.mq_mode = RTE_ETH_MQ_RX_RSS;
        device.rx_adv_conf.rss_conf.rss_hf =
            conf->rss_types & (RTE_ETH_RSS_IP | RTE_ETH_RSS_UDP | RTE_ETH_RSS_TCP);
    }
    error = rte_eth_dev_configure(port, conf->rx_queues, conf->tx_queues, &device);
    if (error != 0)
        return error;
    error = rte_eth_dev_adjust_nb_rx_tx_desc(port, &conf->rx_descriptors, &conf->tx_descriptors);
    if (error != 0)
        return error;
    for (uint16_t queue = 0; queue < conf->tx_queues; queue++) {
        struct rte_eth_txconf txconf = info.default_txconf;
        txconf.offloads = conf->tx_offloads;
        error = rte_eth_tx_queue_setup(port, queue, conf->tx_descriptors, conf->socket, &txconf);
        if (error != 0)
            return error;
    }
    for (uint16_t queue = 0; queue < conf->rx_queues; queue++) {
        struct rte_eth_rxconf rxconf = info.default_rxconf;
        rxconf.offloads = conf->rx_offloads;
        error = rte_eth_rx_queue_setup(port, queue, conf->rx_descriptors, conf->socket, &rxconf, pool);
        if (error != 0)
            return error;
    }
    return 0;
}

/* Most entries of an indirection table (ice has so many), and their groups. */
#define TABLE_MOST 2048
#define TABLE_GROUPS (TABLE_MOST / RTE_ETH_RETA_GROUP_SIZE)

/* Reads the queue of each entry of the indirection table. */
int sluice_eth_read_table(uint16_t port, uint16_t *queues, uint16_t size)
{
    struct rte_eth_rss_reta_entry64 groups[TABLE_GROUPS] = { 0 };
    int error;

    if (size > TABLE_MOST)
        return -E2BIG;
    for (uint16_t entry = 0; entry < size; entry++)
        groups[entry / RTE_ETH_RETA_GROUP_SIZE].mask |= UINT64_C(1) << entry % RTE_ETH_RETA_GROUP_SIZE;
    error = rte_eth_dev_rss_reta_query(port, groups, size);
    if (error != 0)
        return error;
    for (uint16_t entry = 0; entry < size; entry++)
        queues[entry] = groups[entry / RTE_ETH_RETA_GROUP_SIZE].reta[entry % RTE_ETH_RETA_GROUP_SIZE];
    return 0;
}

/* Writes the queue of each entry. */
int sluice_eth_write_table(uint16_t port, const uint16_t *queues, uint16_t size)
{
    struct rte_eth_rss_reta_entry64 groups[TABLE_GROUPS] = { 0 };

    if (size > TABLE_MOST)
        return -E2BIG;
    for (uint16_t entry = 0; entry < size; entry++) {
        struct rte_eth_rss_reta_entry64 *group = &groups[entry / RTE_ETH_RETA_GROUP_SIZE];
        group->mask |= UINT64_C(1) << entry % RTE_ETH_RETA_GROUP_SIZE;
        group->reta[entry % RTE_ETH_RETA_GROUP_SIZE] = queues[entry];
    }
    return rte_eth_dev_rss_reta_update(port, groups, size);
}

/* Reads the key of the hash, into room of `*length` bytes, and what is hashed. */
int sluice_eth_read_hash(uint16_t port, uint8_t *key, uint8_t *length, uint64_t *types)
{
    struct rte_eth_rss_conf conf = { .rss_key = key, .rss_key_len = *length };
    struct rte_eth_dev_info info;
    int error = rte_eth_dev_info_get(port, &info);

    if (error != 0)
        return error;
    if (info.hash_key_size > *length)
        return -E2BIG;
    error = rte_eth_dev_rss_hash_conf_get(port, &conf);
    if (error != 0)
        return error;
    *length = info.hash_key_size;
    *types = conf.rss_hf;
    return 0;
}

int sluice_eth_set_mac(uint16_t port, const uint8_t *mac)
{
    struct rte_ether_addr address;

    memcpy(address.addr_bytes, mac, sizeof address.addr_bytes);
    return rte_eth_dev_default_mac_addr_set(port, &address);
}

struct sluice_eth_link {
    uint32_t speed_mbps;
    uint8_t up;
    uint8_t full_duplex;
    uint8_t pad[2];
};

int sluice_eth_link(uint16_t port, struct sluice_eth_link *out)
{
    struct rte_eth_link link;
    int error = rte_eth_link_get_nowait(port, &link);

    if (error != 0)
        return error;
    out->speed_mbps = link.link_speed == RTE_ETH_SPEED_NUM_UNKNOWN ? 0 : link.link_speed;
    out->up = link.link_status;
    out->full_duplex = link.link_duplex;
    return 0;
}

struct sluice_eth_stats {
    uint64_t rx_packets, tx_packets, rx_bytes, tx_bytes;
    uint64_t rx_missed, rx_errors, tx_errors, rx_no_buffer;
};

int sluice_eth_stats(uint16_t port, struct sluice_eth_stats *out)
{
    struct rte_eth_stats stats;
    int error = rte_eth_stats_get(port, &stats);

    if (error != 0)
        return error;
    out->rx_packets = stats.ipackets;
    out->tx_packets = stats.opackets;
    out->rx_bytes = stats.ibytes;
    out->tx_bytes = stats.obytes;
    out->rx_missed = stats.imissed;
    out->rx_errors = stats.ierrors;
    out->tx_errors = stats.oerrors;
    out->rx_no_buffer = stats.rx_nombuf;
    return 0;
}

/* Returns the device behind a port, or NULL. Must be called before the port is closed; the device
 * can be detached afterwards. */
struct rte_device *sluice_eth_device(uint16_t port)
{
    struct rte_eth_dev_info info;

    return rte_eth_dev_info_get(port, &info) == 0 ? info.device : NULL;
}

/* ---- what DPDK says of itself ---- */

/* Returns a text to be given to free(), or NULL without memory. `pool` is looked at by the last
 * one only. */
char *sluice_dump(uint32_t what, struct rte_mempool *pool)
{
    char *text = NULL;
    size_t length = 0;
    FILE *stream = open_memstream(&text, &length);
    if (stream == NULL)
        return NULL;
    switch (what) {
    case 0:
        rte_lcore_dump(stream);
        break;
    case 1:
        rte_log_dump(stream);
        break;
    case 2:
        rte_malloc_dump_stats(stream, NULL);
        break;
    case 3:
        rte_mempool_list_dump(stream);
        break;
    case 4:
        rte_mempool_dump(stream, pool);
        fprintf(stream, "    count: avail (%u), in use (%u)\n", rte_mempool_avail_count(pool),
            rte_mempool_in_use_count(pool));
        break;
    }
    fclose(stream);
    return text;
}

/* Returns the name of the bus device behind a port, or NULL. */
const char *sluice_eth_device_name(uint16_t port)
{
    struct rte_device *device = sluice_eth_device(port);

    return device == NULL ? NULL : rte_dev_name(device);
}

/* ---- layouts ---- */

#define AT(field, offset) _Static_assert(offsetof(struct rte_mbuf, field) == (offset), "rte_mbuf." #field " moved")
AT(buf_addr, 0);
AT(data_off, 16);
AT(refcnt, 18);
AT(nb_segs, 20);
AT(port, 22);
AT(ol_flags, 24);
AT(packet_type, 32);
AT(pkt_len, 36);
AT(data_len, 40);
AT(vlan_tci, 42);
AT(hash, 44);
AT(vlan_tci_outer, 52);
AT(buf_len, 54);
AT(pool, 56);
AT(next, 64);
AT(tx_offload, 72);
_Static_assert(sizeof(struct rte_mbuf) == 128, "rte_mbuf changed its size");
_Static_assert(sizeof(((struct rte_mbuf *)0)->nb_segs) == 2, "rte_mbuf.nb_segs changed its size");

_Static_assert(RTE_MBUF_F_RX_RSS_HASH == 1ULL << 1, "flag moved");
_Static_assert(RTE_MBUF_F_RX_L4_CKSUM_BAD == 1ULL << 3, "flag moved");
_Static_assert(RTE_MBUF_F_RX_L4_CKSUM_GOOD == 1ULL << 8, "flag moved");
_Static_assert(RTE_MBUF_F_RX_L4_CKSUM_NONE == (1ULL << 3 | 1ULL << 8), "flag moved");
_Static_assert(RTE_MBUF_F_TX_UDP_SEG == 1ULL << 42, "flag moved");
_Static_assert(RTE_MBUF_F_TX_TCP_SEG == 1ULL << 50, "flag moved");
_Static_assert(RTE_MBUF_F_TX_TCP_CKSUM == 1ULL << 52, "flag moved");
_Static_assert(RTE_MBUF_F_TX_UDP_CKSUM == 3ULL << 52, "flag moved");
_Static_assert(RTE_MBUF_F_TX_L4_MASK == 3ULL << 52, "flag moved");
_Static_assert(RTE_MBUF_F_TX_IP_CKSUM == 1ULL << 54, "flag moved");
_Static_assert(RTE_MBUF_F_TX_IPV4 == 1ULL << 55, "flag moved");
_Static_assert(RTE_MBUF_F_TX_IPV6 == 1ULL << 56, "flag moved");
_Static_assert(RTE_MBUF_F_EXTERNAL == 1ULL << 61, "flag moved");
_Static_assert(RTE_MBUF_F_INDIRECT == 1ULL << 62, "flag moved");
_Static_assert(RTE_MBUF_L2_LEN_OFS == 0 && RTE_MBUF_L3_LEN_OFS == 7 && RTE_MBUF_L4_LEN_OFS == 16 &&
               RTE_MBUF_TSO_SEGSZ_OFS == 24, "rte_mbuf.tx_offload changed its layout");
_Static_assert(RTE_PKTMBUF_HEADROOM == 128, "headroom changed");

_Static_assert(RTE_ETH_RX_OFFLOAD_IPV4_CKSUM == 1ULL << 1 && RTE_ETH_RX_OFFLOAD_UDP_CKSUM == 1ULL << 2 &&
               RTE_ETH_RX_OFFLOAD_TCP_CKSUM == 1ULL << 3 && RTE_ETH_RX_OFFLOAD_SCATTER == 1ULL << 13 &&
               RTE_ETH_RX_OFFLOAD_RSS_HASH == 1ULL << 19, "offload moved");
_Static_assert(RTE_ETH_TX_OFFLOAD_IPV4_CKSUM == 1ULL << 1 && RTE_ETH_TX_OFFLOAD_UDP_CKSUM == 1ULL << 2 &&
               RTE_ETH_TX_OFFLOAD_TCP_CKSUM == 1ULL << 3 && RTE_ETH_TX_OFFLOAD_TCP_TSO == 1ULL << 5 &&
               RTE_ETH_TX_OFFLOAD_MULTI_SEGS == 1ULL << 15, "offload moved");

