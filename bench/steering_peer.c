/* Traffic of bench/steering.py.
 *
 *   receive OBJECT DEVICE...     decrypts at devices' ingress; each line on standard input is
 *                                answered by a line of counts, in JSON
 *   send DEVICE CORE SECONDS FLOW:VNI:PORT:RATE:BYTES:DELAY...
 *                                sends VXLAN frames at fixed rates (packets a second)
 *   work CORE SECONDS            a busy process; prints how much it did
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <bpf/bpf.h>
#include <bpf/btf.h>
#include <bpf/libbpf.h>
#include <errno.h>
#include <linux/if_packet.h>
#include <net/ethernet.h>
#include <net/if.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define FLOWS 16
#define CPUS 64
#define BATCH 32
#define DUE_MAX 512 /* what a late sender makes up for at most */

struct counts {
	uint64_t packets[CPUS], next, late, wrong;
};

static void fail(const char *what)
{
	fprintf(stderr, "%s: %s\n", what, strerror(errno));
	exit(1);
}

static double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec + t.tv_nsec / 1e9;
}

static void pin(int core)
{
	cpu_set_t set;

	CPU_ZERO(&set);
	CPU_SET(core, &set);
	if (sched_setaffinity(0, sizeof(set), &set))
		fail("core");
}

/* clang 14 leaves type tags out: says afterwards that the pointer is a kptr. */
static void tag(struct bpf_object *object)
{
	struct btf *btf = bpf_object__btf(object);
	int target = btf__find_by_name_kind(btf, "bpf_crypto_ctx", BTF_KIND_STRUCT);
	int holder = btf__find_by_name_kind(btf, "holder", BTF_KIND_STRUCT);
	int pointer = btf__add_ptr(btf, btf__add_type_tag(btf, "kptr", target));

	btf_members(btf__type_by_id(btf, holder))[0].type = pointer;
}

static int receive(int argc, char **argv)
{
	struct bpf_object *object = bpf_object__open_file(argv[0], NULL);
	struct bpf_program *program;
	char line[64];
	int flows, zero = 0, failure = 1;

	if (!object)
		fail("open");
	tag(object);
	if (bpf_object__load(object))
		fail("load");
	LIBBPF_OPTS(bpf_test_run_opts, options);
	program = bpf_object__find_program_by_name(object, "make_context");
	if (bpf_prog_test_run_opts(bpf_program__fd(program), &options))
		fail("make_context");
	bpf_map_lookup_elem(bpf_object__find_map_fd_by_name(object, ".data"), &zero, &failure);
	if (failure) {
		fprintf(stderr, "no cbc(aes): %d\n", failure);
		return 1;
	}
	program = bpf_object__find_program_by_name(object, "decrypt");
	for (int i = 1; i < argc; i++) {
		LIBBPF_OPTS(bpf_tc_hook, hook, .ifindex = if_nametoindex(argv[i]),
			    .attach_point = BPF_TC_INGRESS);
		LIBBPF_OPTS(bpf_tc_opts, tc, .prog_fd = bpf_program__fd(program));
		bpf_tc_hook_create(&hook);
		if (bpf_tc_attach(&hook, &tc))
			fail(argv[i]);
	}
	flows = bpf_object__find_map_fd_by_name(object, "flows");
	puts("ready");
	fflush(stdout);
	while (fgets(line, sizeof(line), stdin)) {
		printf("{\"time\": %.6f, \"flows\": [", now());
		for (uint32_t flow = 0; flow < FLOWS; flow++) {
			struct counts c;

			bpf_map_lookup_elem(flows, &flow, &c);
			printf("%s{\"late\": %lu, \"wrong\": %lu, \"packets\": [", flow ? ", " : "",
			       c.late, c.wrong);
			for (int cpu = 0; cpu < 4; cpu++)
				printf("%s%lu", cpu ? ", " : "", c.packets[cpu]);
			printf("]}");
		}
		puts("]}");
		fflush(stdout);
	}
	return 0;
}

struct stream {
	uint8_t frame[1600];
	int bytes;
	uint64_t *number;
	uint64_t sent, skipped;
	double rate, begin;
};

static uint16_t sum(const uint8_t *at, int length)
{
	uint32_t total = 0;

	for (int i = 0; i < length; i += 2)
		total += at[i] << 8 | at[i + 1];
	total = (total & 0xffff) + (total >> 16);
	return ~(total + (total >> 16));
}

static void ip(uint8_t *at, int length, const char *from, const char *to, int port_from,
	       int port_to)
{
	uint16_t value;

	memset(at, 0, 28);
	at[0] = 0x45;
	value = htons(length), memcpy(at + 2, &value, 2);
	at[8] = 64, at[9] = 17;
	inet_pton(AF_INET, from, at + 12), inet_pton(AF_INET, to, at + 16);
	value = htons(sum(at, 20)), memcpy(at + 10, &value, 2);
	value = htons(port_from), memcpy(at + 20, &value, 2);
	value = htons(port_to), memcpy(at + 22, &value, 2);
	value = htons(length - 20), memcpy(at + 24, &value, 2);
}

static void prepare(struct stream *s, const char *text, double start)
{
	static const uint8_t outer[14] = {2, 0, 0, 0, 0, 0xb, 2, 0, 0, 0, 0, 0xa, 8, 0};
	static const uint8_t inner[14] = {2, 0, 0, 0, 0, 0x22, 2, 0, 0, 0, 0, 0x21, 8, 0};
	unsigned flow, vni, port, bytes;
	double delay;
	uint8_t *at = s->frame;
	uint32_t words[2];

	if (sscanf(text, "%u:%u:%u:%lf:%u:%lf", &flow, &vni, &port, &s->rate, &bytes,
		   &delay) != 6 ||
	    flow >= FLOWS || bytes % 16 || bytes > 1408)
		fail(text);
	s->begin = start + delay;
	s->bytes = 14 + 28 + 8 + 14 + 28 + 16 + bytes;
	memcpy(at, outer, 14);
	ip(at + 14, s->bytes - 14, "10.0.0.1", "10.0.0.2", port, 4789);
	at[42] = 8;
	memcpy(at + 46, (uint8_t[]){vni >> 16, vni >> 8, vni, 0}, 4);
	memcpy(at + 50, inner, 14);
	ip(at + 64, s->bytes - 64, "192.168.7.1", "192.168.7.2", 1, 2);
	words[0] = flow, words[1] = bytes;
	memcpy(at + 92, words, 8);
	s->number = (uint64_t *)(at + 100);
}

static int send_streams(int argc, char **argv)
{
	struct sockaddr_ll address = {.sll_family = AF_PACKET,
				      .sll_ifindex = if_nametoindex(argv[0])};
	int fd = socket(AF_PACKET, SOCK_RAW, 0), count = argc - 3, one = 1;
	struct stream *streams = calloc(count, sizeof(*streams));
	static uint8_t copies[BATCH][1600];
	struct mmsghdr messages[BATCH] = {};
	struct iovec vectors[BATCH];
	struct rusage usage;
	double start, end;

	pin(atoi(argv[1]));
	if (fd < 0 || bind(fd, (struct sockaddr *)&address, sizeof(address)))
		fail(argv[0]);
	setsockopt(fd, SOL_PACKET, PACKET_QDISC_BYPASS, &one, sizeof(one));
	start = now();
	end = start + atof(argv[2]);
	for (int i = 0; i < count; i++)
		prepare(&streams[i], argv[3 + i], start);
	for (double t = start; t < end; t = now()) {
		uint64_t sent = 0;

		for (int i = 0; i < count; i++) {
			struct stream *s = &streams[i];
			int64_t due = (t - s->begin) * s->rate - s->sent - s->skipped;

			if (due > DUE_MAX) {
				s->skipped += due - DUE_MAX;
				due = DUE_MAX;
			}
			while (due > 0) {
				int n = due < BATCH ? due : BATCH, done;

				for (int k = 0; k < n; k++) {
					memcpy(copies[k], s->frame, 108);
					uint64_t number = s->sent + k;
					memcpy(copies[k] + 100, &number, 8);
					vectors[k] = (struct iovec){copies[k], s->bytes};
					messages[k].msg_hdr.msg_iov = &vectors[k];
					messages[k].msg_hdr.msg_iovlen = 1;
				}
				done = sendmmsg(fd, messages, n, 0);
				if (done <= 0) {
					if (errno != ENOBUFS && errno != EAGAIN)
						fail("send");
					break;
				}
				s->sent += done;
				sent += done;
				due -= done;
			}
		}
		/* One that is late does not sleep: others' time slices would make it later. */
		if (sent < BATCH)
			usleep(100);
	}
	getrusage(RUSAGE_SELF, &usage);
	printf("{\"seconds\": %.3f, \"cpu\": %.3f, \"streams\": [", now() - start,
	       usage.ru_utime.tv_sec + usage.ru_stime.tv_sec +
		       (usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) / 1e6);
	for (int i = 0; i < count; i++)
		printf("%s{\"sent\": %lu, \"skipped\": %lu}", i ? ", " : "", streams[i].sent,
		       streams[i].skipped);
	puts("]}");
	return 0;
}

static int work(int core, double seconds)
{
	volatile uint64_t done = 0;
	double start, end;

	pin(core);
	start = now();
	printf("%.6f\n", start);
	fflush(stdout);
	for (end = start + seconds; now() < end;)
		for (int i = 0; i < 1000; i++)
			done++;
	printf("%.1f\n", done / (now() - start));
	return 0;
}

int main(int argc, char **argv)
{
	if (argc >= 4 && !strcmp(argv[1], "receive"))
		return receive(argc - 2, argv + 2);
	if (argc >= 6 && !strcmp(argv[1], "send"))
		return send_streams(argc - 2, argv + 2);
	if (argc == 4 && !strcmp(argv[1], "work"))
		return work(atoi(argv[2]), atof(argv[3]));
	fprintf(stderr, "see the head of steering_peer.c\n");
	return 2;
}
