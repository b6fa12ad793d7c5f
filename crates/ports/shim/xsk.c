/* Deletes the memory areas (UMEM) of AF_XDP sockets that DPDK leaves behind.
 *
 * net_af_xdp of DPDK 22.11.11 does not delete a UMEM when its only queue is closed: it compares the
 * count of users from before the decrement with two. The UMEM's descriptor is the queue's socket,
 * which so stays bound to the interface's queue, and the interface cannot be opened again in the
 * life of the process. Here the functions of libxdp that a driver calls are taken note of on their
 * way, so that what is left can be deleted once the device is closed. Drivers that do it themselves
 * are not disturbed. */
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>

struct xsk_socket;
struct xsk_umem;

/* A UMEM with the sockets that use it. */
struct area {
    struct area *next;
    struct xsk_umem *umem;
    uint32_t sockets;
};

/* A socket and its UMEM. */
struct link {
    struct link *next;
    struct xsk_socket *socket;
    struct area *area;
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

/* Notes a socket of a UMEM. Without memory for that it is as if this file were not there. */
static void note(struct xsk_socket *socket, struct xsk_umem *umem)
{
    struct link *link = malloc(sizeof(*link));
    struct area *area;
    if (link == NULL)
        return;
    pthread_mutex_lock(&lock);
    for (area = areas; area != NULL && area->umem != umem; area = area->next)
        ;
    if (area == NULL && (area = malloc(sizeof(*area))) != NULL) {
        *area = (struct area) { .next = areas, .umem = umem };
        areas = area;
    }
    if (area == NULL) {
        free(link);
    } else {
        area->sockets++;
        *link = (struct link) { .next = links, .socket = socket, .area = area };
        links = link;
    }
    pthread_mutex_unlock(&lock);
}

int xsk_socket__create(struct xsk_socket **socket, const char *ifname, uint32_t queue,
    struct xsk_umem *umem, void *rx, void *tx, const void *config)
{
    int (*create)(struct xsk_socket **, const char *, uint32_t, struct xsk_umem *, void *, void *,
        const void *) = real("xsk_socket__create");
    if (create == NULL)
        return -ENOSYS;
    int code = create(socket, ifname, queue, umem, rx, tx, config);
    if (code == 0)
        note(*socket, umem);
    return code;
}

void xsk_socket__delete(struct xsk_socket *socket)
{
    void (*delete)(struct xsk_socket *) = real("xsk_socket__delete");
    if (delete != NULL)
        delete(socket);
    pthread_mutex_lock(&lock);
    for (struct link **at = &links; *at != NULL; at = &(*at)->next) {
        if ((*at)->socket == socket) {
            struct link *gone = *at;
            gone->area->sockets--;
            *at = gone->next;
            free(gone);
            break;
        }
    }
    pthread_mutex_unlock(&lock);
}

int xsk_umem__delete(struct xsk_umem *umem)
{
    int (*delete)(struct xsk_umem *) = real("xsk_umem__delete");
    if (delete == NULL)
        return -ENOSYS;
    int code = delete(umem);
    if (code != 0)
        return code;
    pthread_mutex_lock(&lock);
    for (struct area **at = &areas; *at != NULL; at = &(*at)->next) {
        if ((*at)->umem == umem) {
            struct area *gone = *at;
            *at = gone->next;
            free(gone);
            break;
        }
    }
    pthread_mutex_unlock(&lock);
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
