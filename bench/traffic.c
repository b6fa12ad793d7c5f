/* Traffic for bench/slicing.py: senders, receivers and a probe of the processor, over packet sockets and TCP.

   Frames are Ethernet, IPv4, UDP; the class of a frame is its destination port, counted from BASE. Behind the UDP header stand the time at which it was handed to the
   kernel and a number. The receiver takes its times from the kernel (SO_TIMESTAMPNS), so it does not matter when it runs itself. Results are one line of JSON.

     traffic send CORE DEVICE SOURCE-MAC TARGET-MAC SECONDS STREAM...
     with STREAM = FIRST-CLASS:CLASSES:BYTES:PACKETS/S:cbr|poisson|burst|calm:LENGTH-OF-BURST (calm is cbr without spinning until a packet is due)
     traffic receive CORE DEVICE CLASSES SECONDS WARM-UP LIMIT-US [DUMP]
     traffic sink CORE PORT
     traffic tcp CORE ADDRESS PORT ALGORITHM[+p] WARM-UP SECONDS
     traffic probe CORE SECONDS
     traffic preempted CORE THREAD SECONDS
     traffic idle CORE SECONDS */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <linux/if_packet.h>
#include <linux/perf_event.h>
#include <linux/tcp.h>
#include <math.h>
#include <net/ethernet.h>
#include <net/if.h>
#include <pthread.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define BASE 10000
#define BATCH 16
/* Ethernet, IPv4, UDP, time and number, and up to the shortest frame. */
#define HEADERS 60
#define SECOND 1000000000ull
#define BIN (SECOND / 100)
#define BINS 100000
/* Classes whose windows and delays are kept one by one. */
#define DETAILED 256

static uint64_t now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return t.tv_sec * SECOND + t.tv_nsec;
}

static void fail(const char *what)
{
    perror(what);
    exit(1);
}

static void pin(const char *core)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(atoi(core), &set);
    sched_setaffinity(0, sizeof set, &set);
    prctl(PR_SET_TIMERSLACK, 1000);
}

static int packet_socket(const char *device, int protocol)
{
    int fd = socket(AF_PACKET, SOCK_RAW, htons(protocol));
    struct sockaddr_ll address = {.sll_family = AF_PACKET, .sll_protocol = htons(protocol), .sll_ifindex = if_nametoindex(device)};
    if (fd < 0 || bind(fd, (void *)&address, sizeof address))
        fail(device);
    return fd;
}

static void read_mac(const char *text, uint8_t *mac)
{
    unsigned part[6];
    if (sscanf(text, "%x:%x:%x:%x:%x:%x", part, part + 1, part + 2, part + 3, part + 4, part + 5) != 6)
        exit(2);
    for (int i = 0; i < 6; i++)
        mac[i] = part[i];
}

static void put16(uint8_t *at, unsigned value)
{
    at[0] = value >> 8;
    at[1] = value;
}

/* Headers of a frame: Ethernet, IPv4, UDP. */
static void build(uint8_t *frame, int length, const uint8_t *source, const uint8_t *target)
{
    static const uint8_t addresses[8] = {10, 9, 0, 1, 10, 9, 0, 77};
    uint8_t *ip = frame + 14;
    uint32_t sum = 0;
    memset(frame, 0, HEADERS);
    memcpy(frame, target, 6);
    memcpy(frame + 6, source, 6);
    frame[12] = 8;
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
    put16(ip + 24, length - 34);
}

struct stream {
    int first, classes, length, class, burst;
    char process[16];
    double gap, at;
    uint64_t number, due;
};

/* When the next packet is to be sent, by the process of arrivals. */
static void next_due(struct stream *stream, uint64_t start)
{
    if (*stream->process == 'p')
        stream->at += -log(1 - drand48()) * stream->gap;
    else if (*stream->process == 'b')
        stream->at = stream->number / stream->burst * stream->burst * stream->gap;
    else
        stream->at = stream->number * stream->gap;
    stream->due = start + (uint64_t)stream->at;
    stream->number++;
}

static struct stream *soonest(struct stream *streams, int count)
{
    struct stream *found = streams;
    for (int i = 1; i < count; i++)
        if (streams[i].due < found->due)
            found = &streams[i];
    return found;
}

/* A probe looks so often whether it can run, and stops are noted from so much on, in ns. */
#define PROBE_PERIOD 25000
#define LEAST_STOP 15000

/* When somebody was stopped: begin and length in ns. Told at the end, as a reader that is late must not stop who notes them. */
static struct { uint64_t at, length; } stops[1000000];
static int stops_noted;

static void note_stop(uint64_t at, uint64_t length)
{
    if (stops_noted < (int)(sizeof stops / sizeof *stops)) {
        stops[stops_noted].at = at;
        stops[stops_noted++].length = length;
    }
}

static void tell_stops(void)
{
    printf("[");
    for (int i = 0; i < stops_noted; i++)
        printf("%s[%lu,%lu]", i ? "," : "", stops[i].at, stops[i].length);
    printf("]");
}

static int do_send(char **word)
{
    enum { STREAMS = 8 };
    pin(word[0]);
    uint8_t source[6], target[6];
    static uint8_t headers[STREAMS][HEADERS], frames[BATCH][2048];
    struct mmsghdr messages[BATCH] = {0};
    struct iovec parts[BATCH];
    struct stream streams[STREAMS] = {0};
    int fd = packet_socket(word[1], 0), count = 0, bypass = 1;
    uint64_t begin = now(), end = begin + (uint64_t)(atof(word[4]) * SECOND), sent = 0, refused = 0, skipped = 0, time;
    read_mac(word[2], source);
    read_mac(word[3], target);
    setsockopt(fd, SOL_PACKET, PACKET_QDISC_BYPASS, &bypass, sizeof bypass);
    for (; word[5 + count] && count < STREAMS; count++) {
        struct stream *stream = &streams[count];
        double rate;
        if (sscanf(word[5 + count], "%d:%d:%d:%lf:%15[a-z]:%d", &stream->first, &stream->classes, &stream->length, &rate, stream->process, &stream->burst) != 6 || stream->length < HEADERS || stream->length > 2048)
            return 2;
        stream->gap = SECOND / rate;
        build(headers[count], stream->length, source, target);
        next_due(stream, begin);
    }
    for (int i = 0; i < BATCH; i++) {
        messages[i].msg_hdr.msg_iov = &parts[i];
        messages[i].msg_hdr.msg_iovlen = 1;
    }
    while ((time = now()) < end) {
        struct stream *stream = soonest(streams, count);
        if (stream->due > time) {
            /* Short waits are spun, so that packets leave when they should. */
            if (*stream->process == 'c' && stream->process[1] == 'a') {
                struct timespec pause = {0, 50000};
                nanosleep(&pause, 0);
            } else if (stream->due > time + 200000) {
                uint64_t wait = stream->due - time - 100000;
                struct timespec pause = {wait / SECOND, wait % SECOND};
                nanosleep(&pause, 0);
            }
            continue;
        }
        /* When it falls behind by 20 ms, what it could not send is left out, and said. */
        for (int late = time > stream->due + 20000000; late && stream->due + 1000000 < time; skipped++)
            next_due(stream, begin);
        int batch = 0;
        for (; batch < BATCH && (stream = soonest(streams, count))->due <= time; batch++) {
            uint64_t stamp = now();
            uint8_t *frame = frames[batch];
            uint64_t number = stream->number - 1;
            memcpy(frame, headers[stream - streams], HEADERS);
            put16(frame + 36, BASE + stream->first + stream->class);
            stream->class = (stream->class + 1) % stream->classes;
            memcpy(frame + 42, &stamp, 8);
            memcpy(frame + 50, &number, 8);
            parts[batch] = (struct iovec){frame, stream->length};
            next_due(stream, begin);
        }
        for (int done = 0; done < batch;) {
            int took = sendmmsg(fd, messages + done, batch - done, 0);
            if (took <= 0) {
                refused++;
                took = 1;
            } else {
                sent += took;
            }
            done += took;
        }
        /* A sender that was stopped between a stamp and the kernel says when. */
        uint64_t took = now() - time;
        if (took > LEAST_STOP)
            note_stop(time, took);
    }
    printf("{\"sent\":%lu,\"refused\":%lu,\"skipped\":%lu,\"seconds\":%.4f,\"stops\":", sent, refused, skipped, (now() - begin) * 1e-9);
    tell_stops();
    printf("}\n");
    return 0;
}

/* Delays, in buckets of 1/64 of their size. */
struct delays {
    uint32_t count[64 * 40];
    uint64_t packets, worst;
    double sum;
};

static void note(struct delays *delays, uint64_t ns)
{
    int bucket = ns;
    if (ns >= 64) {
        int high = 63 - __builtin_clzll(ns);
        bucket = (high - 5) * 64 + (ns >> (high - 6) & 63);
    }
    if (bucket >= 64 * 40)
        bucket = 64 * 40 - 1;
    delays->count[bucket]++;
    delays->packets++;
    delays->sum += ns;
    if (ns > delays->worst)
        delays->worst = ns;
}

static double share(const struct delays *delays, double wanted)
{
    uint64_t so_far = 0;
    for (int bucket = 0; bucket < 64 * 40; bucket++) {
        so_far += delays->count[bucket];
        if (delays->packets && so_far >= wanted * delays->packets)
            return bucket < 64 ? bucket / 1e3 : ((1ull << (bucket / 64 + 5)) + ((uint64_t)(bucket % 64) << (bucket / 64 - 1))) / 1e3;
    }
    return 0;
}

struct class {
    uint64_t packets, bytes;
    /* Of classes in detail. */
    uint32_t *bins;
    struct delays *delays;
};

static struct class *classes;

/* Least and most bits of a class in any window of this many bins, as bit/s. */
static void windows(const uint32_t *bins, int from, int to, int width, double *least, double *most)
{
    uint64_t sum = 0;
    *least = 1e18;
    *most = 0;
    for (int at = from; at < to; at++) {
        sum += bins[at];
        if (at - from >= width)
            sum -= bins[at - width];
        if (at - from + 1 < width)
            continue;
        double rate = sum * 8.0 * SECOND / (width * (double)BIN);
        *least = rate < *least ? rate : *least;
        *most = rate > *most ? rate : *most;
    }
}

/* Standard deviation of a class's rate over windows of this many bins that do not overlap, as a part of its mean. */
static double variation(const uint32_t *bins, int to, int width)
{
    double sum = 0, squares = 0;
    int count = to / width;
    for (int window = 0; window < count; window++) {
        double bytes = 0;
        for (int at = 0; at < width; at++)
            bytes += bins[window * width + at];
        sum += bytes;
        squares += bytes * bytes;
    }
    return count > 1 && sum > 0 ? sqrt(fmax(0, squares / count - sum * sum / count / count)) / (sum / count) : 0;
}

static int do_receive(char **word)
{
    enum { MANY = 128 };
    static uint8_t frames[MANY][128];
    static char control[MANY][64];
    struct mmsghdr messages[MANY];
    struct iovec parts[MANY];
    struct delays *all = calloc(1, sizeof *all);
    pin(word[0]);
    int fd = packet_socket(word[1], ETH_P_IP), count = atoi(word[2]), on = 1, buffer = 256 << 20, last_bin = 0;
    uint64_t seconds = atof(word[3]) * SECOND, warm = atof(word[4]) * SECOND, limit = atof(word[5]) * 1e3, first = 0, late = 0;
    FILE *dump = word[6] ? fopen(word[6], "wb") : 0;
    struct timeval pause = {0, 50000};
    classes = calloc(count, sizeof *classes);
    for (int i = 0; i < count && i < DETAILED; i++) {
        classes[i].bins = calloc(BINS, 4);
        classes[i].delays = calloc(1, sizeof *all);
    }
    setsockopt(fd, SOL_SOCKET, SO_TIMESTAMPNS, &on, sizeof on);
    setsockopt(fd, SOL_SOCKET, SO_RCVBUFFORCE, &buffer, sizeof buffer);
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &pause, sizeof pause);
    memset(messages, 0, sizeof messages);
    printf("ready\n");
    fflush(stdout);
    for (uint64_t begin = now(); now() < (first ? first : begin + 3 * SECOND) + warm + seconds + SECOND / 5;) {
        for (int i = 0; i < MANY; i++) {
            parts[i] = (struct iovec){frames[i], sizeof frames[i]};
            messages[i].msg_hdr = (struct msghdr){.msg_iov = &parts[i], .msg_iovlen = 1, .msg_control = control[i], .msg_controllen = sizeof control[i]};
        }
        int got = recvmmsg(fd, messages, MANY, MSG_TRUNC | MSG_WAITFORONE, 0);
        /* Times are the kernel's: reading seldom keeps this from taking the sender's core for each packet. */
        if (got < MANY)
            usleep(1000);
        for (int i = 0; i < got; i++) {
            const uint8_t *frame = frames[i];
            int at = (frame[36] << 8 | frame[37]) - BASE;
            struct cmsghdr *message = CMSG_FIRSTHDR(&messages[i].msg_hdr);
            if (frame[23] != 17 || at < 0 || at >= count || !message || message->cmsg_type != SCM_TIMESTAMPNS)
                continue;
            struct timespec time;
            memcpy(&time, CMSG_DATA(message), sizeof time);
            uint64_t came = time.tv_sec * SECOND + time.tv_nsec, left, length = messages[i].msg_len;
            memcpy(&left, frame + 42, 8);
            if (!first)
                first = came;
            uint64_t delay = came > left ? came - left : 0;
            if (came < first + warm || came >= first + warm + seconds)
                continue;
            struct class *class = &classes[at];
            class->packets++;
            class->bytes += length;
            note(all, delay);
            if (class->bins) {
                int bin = (came - first - warm) / BIN;
                if (bin < BINS) {
                    class->bins[bin] += length;
                    last_bin = bin > last_bin ? bin : last_bin;
                }
                note(class->delays, delay);
            }
            late += limit && delay > limit;
            if (dump && (!limit || delay > limit)) {
                uint64_t record[3] = {left, came, 0};
                memcpy(&record[2], frame + 50, 8);
                fwrite(record, sizeof record, 1, dump);
            }
        }
    }
    struct tpacket_stats stats = {0};
    socklen_t size = sizeof stats;
    getsockopt(fd, SOL_PACKET, PACKET_STATISTICS, &stats, &size);
    if (dump)
        fclose(dump);
    printf("{\"packets\":%lu,\"lost\":%u,\"late\":%lu,\"mean\":%.1f,\"p50\":%.1f,\"p99\":%.1f,\"p999\":%.1f,\"worst\":%.1f,\"seconds\":%.6f,\"classes\":[", all->packets, stats.tp_drops, late,
           all->packets ? all->sum / all->packets / 1e3 : 0, share(all, .5), share(all, .99), share(all, .999), all->worst / 1e3, seconds * 1e-9);
    for (int i = 0; i < count; i++) {
        double least = 0, most = 0;
        if (classes[i].bins)
            windows(classes[i].bins, 0, last_bin, SECOND / BIN, &least, &most);
        printf("%s[%lu,%lu,%.0f,%.0f", i ? "," : "", classes[i].packets, classes[i].bytes, least, most);
        if (classes[i].delays)
            printf(",%.1f,%.1f,%.1f,%.4f", share(classes[i].delays, .5), share(classes[i].delays, .99), classes[i].delays->worst / 1e3, variation(classes[i].bins, last_bin, SECOND / 10 / BIN));
        printf("]");
    }
    printf("]}\n");
    return 0;
}

static int do_sink(char **word)
{
    static char buffer[1 << 18];
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(atoi(word[1]))};
    int fd = socket(AF_INET, SOCK_STREAM, 0), on = 1;
    long total = 0, got;
    pin(word[0]);
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (bind(fd, (void *)&address, sizeof address) || listen(fd, 8))
        fail("listen");
    printf("ready\n");
    fflush(stdout);
    int peer = accept(fd, 0, 0);
    while ((got = read(peer, buffer, sizeof buffer)) > 0)
        total += got;
    printf("{\"bytes\":%ld}\n", total);
    return 0;
}

static int connection;
static volatile int stop;

static void *write_on(void *nothing)
{
    static char buffer[1 << 17];
    while (!stop && write(connection, buffer, sizeof buffer) > 0)
        ;
    return nothing;
}

static int compare(const void *one, const void *other)
{
    double a = *(const double *)one, b = *(const double *)other;
    return a < b ? -1 : a > b;
}

/* With +p the kernel paces the sender: what "iperf3 -C cubic" gets unasked where bbr is the default. */
static int do_tcp(char **word)
{
    enum { MOST = 400000 };
    static double rtt[MOST], window[MOST], series[MOST / 50];
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(atoi(word[2])), .sin_addr.s_addr = inet_addr(word[1])};
    struct tcp_info first = {0}, info = {0};
    char *paced = strchr(word[3], '+');
    uint64_t begin, from = 0, time, rate = 1000000000000ull;
    int samples = 0;
    pthread_t thread;
    pin(word[0]);
    connection = socket(AF_INET, SOCK_STREAM, 0);
    if (paced)
        *paced = 0;
    if (setsockopt(connection, IPPROTO_TCP, TCP_CONGESTION, word[3], strlen(word[3])))
        fail(word[3]);
    if (paced && setsockopt(connection, SOL_SOCKET, SO_MAX_PACING_RATE, &rate, sizeof rate))
        fail("pacing");
    if (connect(connection, (void *)&address, sizeof address))
        fail("connect");
    pthread_create(&thread, 0, write_on, 0);
    begin = now();
    while ((time = now()) < begin + (uint64_t)((atof(word[4]) + atof(word[5])) * SECOND)) {
        socklen_t size = sizeof info;
        getsockopt(connection, IPPROTO_TCP, TCP_INFO, &info, &size);
        if (time > begin + (uint64_t)(atof(word[4]) * SECOND)) {
            if (!from) {
                from = time;
                first = info;
            }
            if (samples < MOST) {
                rtt[samples] = info.tcpi_rtt;
                window[samples++] = info.tcpi_snd_cwnd;
            }
        }
        usleep(2000);
    }
    stop = 1;
    double seconds = (time - from) * 1e-9;
    if (!samples)
        return 1;
    /* The window in the order of time, one of 50 samples: each 0.1 s and a little. */
    int steps = 0;
    for (; steps < samples / 50; steps++)
        series[steps] = window[steps * 50];
    shutdown(connection, SHUT_RDWR);
    pthread_join(thread, 0);
    qsort(rtt, samples, sizeof *rtt, compare);
    qsort(window, samples, sizeof *window, compare);
    printf("{\"goodput\":%.0f,\"mss\":%u,\"retransmissions\":%.1f,\"rtt50\":%.0f,\"rtt99\":%.0f,\"window50\":%.0f,\"window1\":%.0f,\"windows\":[", (info.tcpi_bytes_acked - first.tcpi_bytes_acked) * 8 / seconds,
           info.tcpi_snd_mss, (info.tcpi_total_retrans - first.tcpi_total_retrans) / seconds, rtt[samples / 2], rtt[(int)(samples * .99)], window[samples / 2], window[samples / 100]);
    for (int step = 0; step < steps; step++)
        printf("%s%.0f", step ? "," : "", series[step]);
    printf("]}\n");
    return 0;
}

/* Wakes up every 25 us before everybody else, and notes when it could not: [begin, length] in ns. What stops it is not of this machine. */
static int do_probe(char **word)
{
    struct sched_param first = {.sched_priority = 1};
    uint64_t end = now() + (uint64_t)(atof(word[1]) * SECOND), due, time;
    pin(word[0]);
    if (sched_setscheduler(0, SCHED_FIFO, &first))
        fail("sched_setscheduler");
    for (due = now(); (time = now()) < end;) {
        if (time > due + LEAST_STOP)
            note_stop(due, time - due);
        due = (due > time ? due : time) + PROBE_PERIOD;
        struct timespec until = {due / SECOND, due % SECOND};
        clock_nanosleep(CLOCK_REALTIME, TIMER_ABSTIME, &until, 0);
    }
    tell_stops();
    printf("\n");
    return 0;
}

/* Notes when a thread would have run and others did, as the kernel's scheduler tells (perf_event_open(2), PERF_RECORD_SWITCH). */
static int do_preempted(char **word)
{
    enum { PAGE = 4096, PAGES = 2048 };
    struct perf_event_attr attr = {.type = PERF_TYPE_SOFTWARE, .size = sizeof attr, .config = PERF_COUNT_SW_DUMMY, .sample_type = PERF_SAMPLE_TIME, .sample_id_all = 1,
                                   .context_switch = 1, .use_clockid = 1, .clockid = CLOCK_REALTIME};
    pin(word[0]);
    int fd = syscall(SYS_perf_event_open, &attr, atoi(word[1]), -1, -1, PERF_FLAG_FD_CLOEXEC);
    if (fd < 0)
        fail("perf_event_open");
    char *memory = mmap(0, (PAGES + 1) * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (memory == MAP_FAILED)
        fail("mmap");
    struct perf_event_mmap_page *control = (void *)memory;
    uint64_t end = now() + (uint64_t)(atof(word[2]) * SECOND), tail = 0, left = 0;
    while (now() < end) {
        usleep(20000);
        uint64_t head = __atomic_load_n(&control->data_head, __ATOMIC_ACQUIRE);
        while (tail < head) {
            /* Records of 16 and of 32 bytes: none is cut by the buffer's end but a lost one's rest, which is not read. */
            struct perf_event_header *record = (void *)(memory + PAGE + tail % (PAGES * PAGE));
            uint64_t time = *(uint64_t *)(record + 1);
            tail += record->size;
            if (record->type != PERF_RECORD_SWITCH)
                continue;
            if (!(record->misc & PERF_RECORD_MISC_SWITCH_OUT)) {
                if (left && time > left + LEAST_STOP)
                    note_stop(left, time - left);
                left = 0;
            } else if (record->misc & PERF_RECORD_MISC_SWITCH_OUT_PREEMPT) {
                left = time;
            }
        }
        __atomic_store_n(&control->data_tail, tail, __ATOMIC_RELEASE);
    }
    tell_stops();
    printf("\n");
    return 0;
}

/* Runs whenever nobody else wants to, and tells for how long it could not: what the core spent on everybody and everything else, interrupts included, to the microsecond. */
static int do_idle(char **word)
{
    enum { LEAST_GAP = 400 };
    struct sched_param none = {0};
    /* Below what is measured; where that goes before everybody else (SCHED_FIFO), still above what does not count. */
    int first = sched_getscheduler(0) == SCHED_FIFO;
    pin(word[0]);
    setpriority(PRIO_PROCESS, 0, 0);
    if (sched_setscheduler(0, first ? SCHED_OTHER : SCHED_IDLE, &none))
        fail("sched_setscheduler");
    uint64_t begin = now(), end = begin + (uint64_t)(atof(word[1]) * SECOND), last = begin, time, lost = 0, gaps = 0;
    for (; (time = now()) < end; last = time)
        if (time > last + LEAST_GAP) {
            lost += time - last;
            gaps++;
        }
    printf("{\"lost\":%.9f,\"gaps\":%lu,\"seconds\":%.9f}\n", lost * 1e-9, gaps, (last - begin) * 1e-9);
    return 0;
}

int main(int count, char **word)
{
    const struct { const char *name; int words; int (*run)(char **); } works[] = {
        {"send", 6, do_send}, {"receive", 6, do_receive}, {"sink", 2, do_sink}, {"tcp", 6, do_tcp}, {"probe", 2, do_probe}, {"preempted", 3, do_preempted}, {"idle", 2, do_idle}};
    for (unsigned i = 0; i < sizeof works / sizeof *works; i++)
        if (count >= works[i].words + 2 && !strcmp(word[1], works[i].name))
            return works[i].run(word + 2);
    return 2;
}
