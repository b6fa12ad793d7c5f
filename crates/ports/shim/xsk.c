/* Deletes the memory areas (UMEM) of AF_XDP sockets that DPDK leaves behind, and gives the packet
 * buffers back that are still in the sockets' rings.
 *
 * net_af_xdp of DPDK 22.11.11 does not delete a UMEM when its only queue is closed: it compares the
 * count of users from before the decrement with two. The UMEM's descriptor is the queue's socket,
 * which so stays bound to the interface's queue, and the interface cannot be opened again in the
 * life of the process. Here the functions of libxdp that a driver calls are taken note of on their
 * way, so that what is left can be deleted once the device is closed. Drivers that do it themselves
 * are not disturbed.
 *
 * Nor does the driver give back what is in a socket's rings when it is closed: 2,048 buffers in the
 * fill ring, and those received or sent but not yet taken out. The rings are read just before the
 * socket is deleted, when no worker uses them any more, and the buffers given back once the UMEM is
 * gone, after which the kernel writes to none of them. A few can be in the kernel's own hands at
 * that time, and are lost. That holds where the kernel copies: a network card that writes into the
 * UMEM itself does so until the kernel has told it otherwise, some time later, so what such a
 * socket had is lost as before.
 *
 * The driver computes a UMEM's size from the number of the pool's buffers and their size. Where
 * buffers do not cross pages (without huge pages) there is room between them, so the pool ends
 * behind the UMEM: the kernel throws the addresses of buffers there away as invalid, and these
 * buffers are lost, a fifth of the pool. Here the UMEM is made as long as the pool. */
#include <dlfcn.h>
#include <errno.h>
#include <linux/if_xdp.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <time.h>

#include <rte_mbuf.h>
#include <rte_mempool.h>

struct xsk_socket;
struct xsk_umem;

/* libxdp's xsk_ring_prod and xsk_ring_cons, which are alike. */
struct ring {
    uint32_t cached_producer, cached_consumer;
    uint32_t mask, size;
    uint32_t *producer, *consumer;
    void *entries;
    uint32_t *flags;
};

/* The kernel's struct xdp_desc. */
struct descriptor {
    uint64_t address;
    uint32_t length, options;
};

/* The kernel frees an interface's queue some time after the socket that had it was closed, and says
 * EBUSY until then. A driver whose socket is refused loses the buffers that are meant for its fill
 * ring, so it is tried again here: for a second. */
#define TRIES 50
#define PAUSE_NS 20000000

/* A buffer's address in a ring: below it is an offset within the buffer. */
#define ADDRESS ((UINT64_C(1) << 48) - 1)

/* A UMEM with the sockets that use it. */
struct area {
    struct area *next;
    struct xsk_umem *umem;
    uint32_t sockets;
    /* Whether a card writes into it itself, or that cannot be told. */
    int is_direct;
    /* Where it is. */
    char *place;
    uint64_t size;
    /* The rings of free and of sent buffers, until they have been read. The driver's own structures
     * may be freed before. */
    struct ring fill, sent;
    /* Addresses of buffers that its sockets had when they were deleted. */
    uint64_t *left;
    size_t count;
};

/* A socket with its rings, and its UMEM. */
struct link {
    struct link *next;
    struct xsk_socket *socket;
    struct area *area;
    struct ring received, sending;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct area *areas;
static struct link *links;

/* Returns libxdp's own function. A driver that is a plugin brings the library with it, where
 * RTLD_NEXT does not look. */
static void *real(const char *name)
{
    void *library = dlopen("libxdp.so.1", RTLD_LAZY | RTLD_NOLOAD);
    void *found = library == NULL ? NULL : dlsym(library, name);
    if (library != NULL)
        dlclose(library);
    return found != NULL ? found : dlsym(RTLD_NEXT, name);
}

/* Returns the note of a UMEM, and makes one if there is none; NULL without memory. With the lock. */
static struct area *area_of(struct xsk_umem *umem)
{
    struct area *area;
    for (area = areas; area != NULL && area->umem != umem; area = area->next)
        ;
    if (area == NULL && (area = malloc(sizeof(*area))) != NULL) {
        *area = (struct area) { .next = areas, .umem = umem };
        areas = area;
    }
    return area;
}

/* A search for the pool that has a UMEM as its memory. */
struct search {
    const struct area *area;
    struct rte_mempool *found;
};

static void look_at(struct rte_mempool *pool, void *argument)
{
    struct search *search = argument;
    struct rte_mempool_memhdr *part = STAILQ_FIRST(&pool->mem_list);
    const char *start = search->area->place;
    if (part != NULL && (char *)part->addr >= start
        && (char *)part->addr < start + search->area->size)
        search->found = pool;
}

static struct rte_mempool *pool_of(const struct area *area)
{
    struct search search = { .area = area };
    rte_mempool_walk(look_at, &search);
    return search.found;
}

/* Returns how many bytes from a UMEM's beginning on its pool's memory takes without a gap; at least
 * the UMEM's size. */
static uint64_t whole_size(const struct area *area)
{
    const struct rte_mempool *pool = pool_of(area);
    if (pool == NULL)
        return area->size;
    const char *end = STAILQ_FIRST(&pool->mem_list)->addr;
    for (int further = 1; further;) {
        const struct rte_mempool_memhdr *part;
        further = 0;
        STAILQ_FOREACH (part, &pool->mem_list, next) {
            const char *its = (const char *)part->addr + part->len;
            if ((const char *)part->addr <= end && its > end) {
                end = its;
                further = 1;
            }
        }
    }
    uint64_t size = end - area->place;
    return size > area->size ? size : area->size;
}

int xsk_umem__create(struct xsk_umem **umem, void *place, uint64_t size, struct ring *fill,
    struct ring *sent, const void *config)
{
    int (*create)(struct xsk_umem **, void *, uint64_t, struct ring *, struct ring *, const void *)
        = real("xsk_umem__create");
    if (create == NULL)
        return -ENOSYS;
    uint64_t whole = whole_size(&(struct area) { .place = place, .size = size });
    int code = create(umem, place, whole, fill, sent, config);
    if (code != 0 && whole != size) {
        whole = size;
        code = create(umem, place, whole, fill, sent, config);
    }
    if (code != 0)
        return code;
    pthread_mutex_lock(&lock);
    struct area *area = area_of(*umem);
    if (area != NULL) {
        area->place = place;
        area->size = whole;
        area->fill = *fill;
        area->sent = *sent;
    }
    pthread_mutex_unlock(&lock);
    return 0;
}

/* Whether a card writes into a socket's memory itself; yes where the kernel does not say. */
static int is_direct(struct xsk_socket *socket)
{
    int (*descriptor)(const struct xsk_socket *) = real("xsk_socket__fd");
    struct xdp_options options = { 0 };
    socklen_t size = sizeof(options);
    return descriptor == NULL
        || getsockopt(descriptor(socket), SOL_XDP, XDP_OPTIONS, &options, &size) != 0
        || (options.flags & XDP_OPTIONS_ZEROCOPY) != 0;
}

/* Notes a socket of a UMEM. Without memory for that it is as if this file were not there. */
static void note(struct xsk_socket *socket, struct xsk_umem *umem, const struct ring *received,
    const struct ring *sending)
{
    int direct = is_direct(socket);
    struct link *link = malloc(sizeof(*link));
    if (link == NULL)
        return;
    pthread_mutex_lock(&lock);
    struct area *area = area_of(umem);
    if (area == NULL) {
        free(link);
    } else {
        area->sockets++;
        area->is_direct |= direct;
        *link = (struct link) { .next = links, .socket = socket, .area = area,
            .received = received == NULL ? (struct ring) { 0 } : *received,
            .sending = sending == NULL ? (struct ring) { 0 } : *sending };
        links = link;
    }
    pthread_mutex_unlock(&lock);
}

int xsk_socket__create(struct xsk_socket **socket, const char *ifname, uint32_t queue,
    struct xsk_umem *umem, struct ring *received, struct ring *sending, const void *config)
{
    int (*create)(struct xsk_socket **, const char *, uint32_t, struct xsk_umem *, struct ring *,
        struct ring *, const void *) = real("xsk_socket__create");
    if (create == NULL)
        return -ENOSYS;
    int code = create(socket, ifname, queue, umem, received, sending, config);
    for (int tries = 0; code == -EBUSY && tries < TRIES; tries++) {
        nanosleep(&(struct timespec) { .tv_nsec = PAUSE_NS }, NULL);
        code = create(socket, ifname, queue, umem, received, sending, config);
    }
    if (code == 0)
        note(*socket, umem, received, sending);
    return code;
}

/* Notes the addresses of all buffers in a ring of addresses or descriptors, which is not read again.
 * With the lock. */
static void collect(struct area *area, struct ring *taken, int descriptors)
{
    struct ring copy = *taken, *ring = &copy;
    *taken = (struct ring) { 0 };
    if (area->place == NULL || ring->entries == NULL)
        return;
    uint32_t end = __atomic_load_n(ring->producer, __ATOMIC_ACQUIRE);
    uint32_t at = __atomic_load_n(ring->consumer, __ATOMIC_ACQUIRE);
    uint32_t count = end - at;
    if (count == 0 || count > ring->size)
        return;
    uint64_t *all = realloc(area->left, (area->count + count) * sizeof(*all));
    if (all == NULL)
        return;
    area->left = all;
    for (; at != end; at++) {
        uint32_t place = at & ring->mask;
        uint64_t address = descriptors
            ? ((const struct descriptor *)ring->entries)[place].address
            : ((const uint64_t *)ring->entries)[place];
        all[area->count++] = address & ADDRESS;
    }
}

void xsk_socket__delete(struct xsk_socket *socket)
{
    pthread_mutex_lock(&lock);
    for (struct link **at = &links; *at != NULL; at = &(*at)->next) {
        if ((*at)->socket == socket) {
            struct link *gone = *at;
            struct area *area = gone->area;
            int last = --area->sockets == 0;
            /* A buffer that the kernel moves on meanwhile is found in both rings. The last socket
             * takes the UMEM's rings with it. */
            if (last)
                collect(area, &area->fill, 0);
            collect(area, &gone->received, 1);
            collect(area, &gone->sending, 1);
            if (last)
                collect(area, &area->sent, 0);
            *at = gone->next;
            free(gone);
            break;
        }
    }
    pthread_mutex_unlock(&lock);
    void (*delete)(struct xsk_socket *) = real("xsk_socket__delete");
    if (delete != NULL)
        delete(socket);
}

static int compare(const void *one, const void *other)
{
    uint64_t a = *(const uint64_t *)one, b = *(const uint64_t *)other;
    return (a > b) - (a < b);
}

/* Returns the buffer with this address in a ring; NULL if that is not in the pool's memory. One
 * behind or before the UMEM has an address, too. */
static struct rte_mbuf *buffer_at(const struct rte_mempool *pool, const struct area *area,
    uint64_t address)
{
    int64_t offset = (int64_t)(address << 16) >> 16;
    uintptr_t start = (uintptr_t)area->place + offset + pool->header_size;
    const struct rte_mempool_memhdr *part;
    STAILQ_FOREACH (part, &pool->mem_list, next) {
        uintptr_t from = (uintptr_t)part->addr + pool->header_size;
        if (start >= from && start + sizeof(struct rte_mbuf) <= (uintptr_t)part->addr + part->len)
            return (struct rte_mbuf *)start;
    }
    return NULL;
}

/* Gives back the buffers that sockets of a deleted UMEM had. Returns how many. */
static uint32_t give_back(struct area *area)
{
    uint32_t count = 0;
    struct rte_mempool *pool = pool_of(area);
    if (pool == NULL || area->count == 0 || area->is_direct)
        return 0;
    qsort(area->left, area->count, sizeof(*area->left), compare);
    for (size_t at = 0; at < area->count; at++) {
        uint64_t address = area->left[at];
        if (at > 0 && address == area->left[at - 1])
            continue;
        struct rte_mbuf *mbuf = buffer_at(pool, area, address);
        if (mbuf == NULL || mbuf->pool != pool || rte_mbuf_refcnt_read(mbuf) != 1)
            continue;
        rte_pktmbuf_free(mbuf);
        count++;
    }
    return count;
}

int xsk_umem__delete(struct xsk_umem *umem)
{
    int (*delete)(struct xsk_umem *) = real("xsk_umem__delete");
    if (delete == NULL)
        return -ENOSYS;
    pthread_mutex_lock(&lock);
    for (struct area *area = areas; area != NULL; area = area->next) {
        /* No socket has been made on it, and so none has taken the rings with it. */
        if (area->umem == umem && area->sockets == 0)
            collect(area, &area->fill, 0);
    }
    pthread_mutex_unlock(&lock);
    int code = delete(umem);
    if (code != 0)
        return code;
    struct area *gone = NULL;
    pthread_mutex_lock(&lock);
    for (struct area **at = &areas; *at != NULL; at = &(*at)->next) {
        if ((*at)->umem == umem) {
            gone = *at;
            *at = gone->next;
            break;
        }
    }
    pthread_mutex_unlock(&lock);
    if (gone != NULL) {
        give_back(gone);
        free(gone->left);
        free(gone);
    }
    return 0;
}

/* Deletes each UMEM that no socket uses any more. To be called when no device is being opened or
 * closed. Returns how many these were. */
uint32_t sluice_xsk_delete_left(void)
{
    uint32_t count = 0;
    for (;;) {
        pthread_mutex_lock(&lock);
        struct area *area = areas;
        while (area != NULL && area->sockets > 0)
            area = area->next;
        struct xsk_umem *umem = area == NULL ? NULL : area->umem;
        pthread_mutex_unlock(&lock);
        if (umem == NULL || xsk_umem__delete(umem) != 0)
            return count;
        count++;
    }
}
