/* The victim's guests for bench/adversary.py and bench/soak.py: sends frames at a steady rate by the ring of one vhost-user device and receives them by that of another.

   What the hypervisor says, tests/vhost_frontend.py has said before; here is only what happens in shared memory, laid out as it says there. Frames are Ethernet, IPv4, UDP; behind
   the UDP header stand the time at which a frame was put into the ring and its number. The result is one line of JSON.

     vhost_peer CORE MEMORY-FD KICK-FD MEMORY-FD KICK-FD SLOTS BYTES PACKETS/S SECONDS

   The first memory is the sender's. It looks into both rings every PAUSE_NS, so what it says of delays includes as much. It ends by itself: SECONDS, and what still comes after
   them for SETTLE_NS at the least and LAST_NS at the most. */
#define _GNU_SOURCE
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define SECOND 1000000000ull
#define PAUSE_NS 20000
#define SETTLE_NS (SECOND / 10)
#define LAST_NS (2 * SECOND)
#define RING_BYTES 0x10000
#define AVAILABLE 0x4000
#define USED 0x6000
#define BUFFER 2048
#define NET_HEADER 12
#define HEADERS 60
#define BURST 64
/* Delays lie in buckets of 1/64 of their size. */
#define BUCKETS (64 * 40)

struct descriptor {
    uint64_t address;
    uint32_t length;
    uint16_t flags, next;
};

struct ring {
    uint8_t *memory;
    struct descriptor *descriptors;
    _Atomic uint16_t *available_index, *used_index, *used_flags;
    uint16_t *heads;
    struct { uint32_t id, length; } *used;
    unsigned slots, first;
    int kick;
};

static uint64_t now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * SECOND + t.tv_nsec;
}

/* A ring in a memory: 0 is what a device receives by, 1 what it sends by. Buffers lie behind both rings, half of the memory for each, as FrontEnd.share() says. */
static struct ring map(int fd, int index, unsigned slots, int kick)
{
    struct stat size;
    if (fstat(fd, &size) || size.st_size < 2 * RING_BYTES + 2 * (long)slots * BUFFER) {
        fprintf(stderr, "no memory for %u slots\n", slots);
        exit(2);
    }
    uint8_t *memory = mmap(0, size.st_size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0), *ring = memory + index * RING_BYTES;
    if (memory == MAP_FAILED) {
        perror("mmap");
        exit(1);
    }
    return (struct ring){.memory = memory, .descriptors = (void *)ring, .available_index = (void *)(ring + AVAILABLE + 2), .heads = (void *)(ring + AVAILABLE + 4),
                         .used_flags = (void *)(ring + USED), .used_index = (void *)(ring + USED + 2), .used = (void *)(ring + USED + 4), .slots = slots, .kick = kick,
                         .first = 2 * RING_BYTES + index * ((size.st_size - 2 * RING_BYTES) / 2)};
}

static void put16(uint8_t *at, unsigned value)
{
    at[0] = value >> 8;
    at[1] = value;
}

static void build(uint8_t *frame, int length)
{
    static const uint8_t head[] = {2, 0, 0, 0, 0, 0x22, 2, 0, 0, 0, 0, 0x21, 8, 0}, addresses[8] = {10, 7, 0, 1, 10, 7, 0, 2};
    uint8_t *ip = frame + 14;
    uint32_t sum = 0;
    memset(frame, 0, length);
    memcpy(frame, head, sizeof head);
    ip[0] = 0x45;
    put16(ip + 2, length - 14);
    ip[8] = 64;
    ip[9] = 17;
    memcpy(ip + 12, addresses, 8);
    for (int i = 0; i < 20; i += 2)
        sum += ip[i] << 8 | ip[i + 1];
    sum = (sum & 0xffff) + (sum >> 16);
    put16(ip + 10, ~(sum + (sum >> 16)));
    put16(ip + 20, 4000);
    put16(ip + 22, 10000);
    put16(ip + 24, length - 34);
}

static uint32_t counts[BUCKETS];
static uint64_t received, worst, strange;

static void note(uint64_t ns)
{
    int bucket = ns;
    if (ns >= 64) {
        int high = 63 - __builtin_clzll(ns);
        bucket = (high - 5) * 64 + (ns >> (high - 6) & 63);
    }
    counts[bucket < BUCKETS ? bucket : BUCKETS - 1]++;
    received++;
    worst = ns > worst ? ns : worst;
}

static double share(double wanted)
{
    uint64_t so_far = 0;
    for (int bucket = 0; bucket < BUCKETS; bucket++) {
        so_far += counts[bucket];
        if (received && so_far >= wanted * received)
            return (bucket < 64 ? bucket : (double)((1ull << (bucket / 64 + 5)) + ((uint64_t)(bucket % 64) << (bucket / 64 - 1)))) / 1e3;
    }
    return 0;
}

/* Takes what has come, gives the buffers back; whether there was anything. `older` are frames of an earlier run, which are not counted. */
static int receive(struct ring *ring, uint64_t begin, int length)
{
    /* All buffers that are not in the ring are here, so this is how far this side has looked. */
    uint16_t at = atomic_load_explicit(ring->available_index, memory_order_relaxed) - ring->slots, until = atomic_load_explicit(ring->used_index, memory_order_acquire), from = at;
    for (; at != until; at++) {
        unsigned id = ring->used[at % ring->slots].id, size = ring->used[at % ring->slots].length;
        if (id >= ring->slots) {
            fprintf(stderr, "the switch gave descriptor %u back\n", id);
            exit(1);
        }
        const uint8_t *frame = ring->memory + ring->first + id * BUFFER + NET_HEADER;
        uint64_t sent;
        memcpy(&sent, frame + 42, 8);
        if (size != (unsigned)length + NET_HEADER || frame[12] != 8 || frame[13] || frame[23] != 17 || frame[36] != 10000 >> 8)
            strange++;
        else if (sent >= begin)
            note(now() - sent);
        ring->heads[(uint16_t)(at + ring->slots) % ring->slots] = id;
    }
    atomic_store_explicit(ring->available_index, at + ring->slots, memory_order_release);
    return at != from;
}

int main(int count, char **word)
{
    if (count != 10)
        return 2;
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(atoi(word[1]), &set);
    sched_setaffinity(0, sizeof set, &set);
    prctl(PR_SET_TIMERSLACK, 1000);
    prctl(PR_SET_PDEATHSIG, 9);
    unsigned slots = atoi(word[6]);
    int length = atoi(word[7]);
    double gap = SECOND / atof(word[8]), seconds = atof(word[9]);
    if (!slots || slots > 1024 || slots & (slots - 1) || length < HEADERS || length > BUFFER - NET_HEADER || gap < 100 || seconds <= 0 || seconds > 86400)
        return 2;
    struct ring out = map(atoi(word[2]), 1, slots, atoi(word[3])), in = map(atoi(word[4]), 0, slots, atoi(word[5]));
    uint8_t model[BUFFER];
    build(model, length);
    uint64_t begin = now(), end = begin + (uint64_t)(seconds * SECOND), sent = 0, held = 0, last = begin, time;
    uint16_t at = atomic_load_explicit(out.available_index, memory_order_relaxed);
    for (;;) {
        time = now();
        uint64_t due = (uint64_t)(((time < end ? time : end) - begin) / gap);
        /* Frames that a full ring has no place for are not sent: how many, is told. */
        for (int burst = 0; burst < BURST && sent + held < due; burst++) {
            unsigned slot = at % slots;
            if ((uint16_t)(at - atomic_load_explicit(out.used_index, memory_order_acquire)) >= slots) {
                if (due - sent - held > slots)
                    held++;
                break;
            }
            uint8_t *buffer = out.memory + out.first + slot * BUFFER;
            memset(buffer, 0, NET_HEADER);
            memcpy(buffer + NET_HEADER, model, length);
            uint64_t stamp = now();
            memcpy(buffer + NET_HEADER + 42, &stamp, 8);
            memcpy(buffer + NET_HEADER + 50, &sent, 8);
            /* The memory lies at the guest's address 0. */
            out.descriptors[slot] = (struct descriptor){out.first + slot * BUFFER, length + NET_HEADER, 0, 0};
            out.heads[slot] = slot;
            at++;
            sent++;
            atomic_store_explicit(out.available_index, at, memory_order_release);
        }
        atomic_thread_fence(memory_order_seq_cst);
        if (at != atomic_load_explicit(out.used_index, memory_order_relaxed) && !(atomic_load_explicit(out.used_flags, memory_order_relaxed) & 1)) {
            uint64_t one = 1;
            if (write(out.kick, &one, 8) < 0)
                break;
        }
        if (receive(&in, begin, length))
            last = now();
        int settled = at == atomic_load_explicit(out.used_index, memory_order_acquire) && time > last + SETTLE_NS;
        if (time > end + SETTLE_NS && (settled || time > end + LAST_NS))
            break;
        struct timespec pause = {0, PAUSE_NS};
        nanosleep(&pause, 0);
    }
    uint16_t left = at - atomic_load_explicit(out.used_index, memory_order_acquire);
    /* Frames that were due in the end and had no chance. */
    uint64_t all = (uint64_t)(seconds * SECOND / gap);
    held = all > sent ? all - sent : 0;
    printf("{\"offered\":%lu,\"sent\":%lu,\"held\":%lu,\"left\":%u,\"received\":%lu,\"strange\":%lu,\"p50\":%.1f,\"p99\":%.1f,\"p999\":%.1f,\"worst\":%.1f,\"seconds\":%.4f}\n", all, sent, held, left, received,
           strange, share(.5), share(.99), share(.999), worst / 1e3, seconds);
    return 0;
}
