/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* The receiver of bench/steering.py: at the ingress of VXLAN devices it decrypts what packets carry
 * (AES-256-CBC, bpf_crypto), counts by flow and core, and lets the packets go. */
#include <linux/bpf.h>
#include <linux/pkt_cls.h>
#include <bpf/bpf_helpers.h>

#define FLOWS 16
#define CPUS 64
#define HEADERS (14 + 20 + 8)
#define LENGTH_MAX 1408

struct bpf_crypto_ctx {
	int unknown;
};

struct bpf_crypto_params {
	char type[14];
	__u8 reserved[2];
	char algo[128];
	__u8 key[256];
	__u32 key_len;
	__u32 authsize;
} __attribute__((aligned(8)));

extern struct bpf_crypto_ctx *bpf_crypto_ctx_create(const struct bpf_crypto_params *params,
						    __u32 size, int *error)
	__attribute__((section(".ksyms")));
extern void bpf_crypto_ctx_release(struct bpf_crypto_ctx *ctx)
	__attribute__((section(".ksyms")));
extern int bpf_crypto_decrypt(struct bpf_crypto_ctx *ctx, const struct bpf_dynptr *from,
			      const struct bpf_dynptr *to, const struct bpf_dynptr *iv)
	__attribute__((section(".ksyms")));
extern int bpf_dynptr_from_skb(struct __sk_buff *skb, __u64 flags, struct bpf_dynptr *out)
	__attribute__((section(".ksyms")));
extern int bpf_dynptr_adjust(const struct bpf_dynptr *dynptr, __u32 start, __u32 end)
	__attribute__((section(".ksyms")));

/* The loader makes a kptr of this pointer: clang 14 has no type tags. */
struct holder {
	struct bpf_crypto_ctx *ctx;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct holder);
} context SEC(".maps");

struct scratch {
	__u8 iv[16];
	__u8 plain[LENGTH_MAX];
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct scratch);
} scratch SEC(".maps");

struct counts {
	__u64 packets[CPUS];
	__u64 next;  /* number of the packet that is due */
	__u64 late;  /* packets that came after a later one */
	__u64 wrong; /* not decrypted */
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, FLOWS);
	__type(key, __u32);
	__type(value, struct counts);
} flows SEC(".maps");

struct head {
	__u32 flow;
	__u32 length; /* encrypted bytes that follow */
	__u64 number;
};

int failure = 1;
/* Else clang describes the type as a forward declaration, which libbpf does not take for the
 * kernel's. */
struct bpf_crypto_ctx whole;

SEC("syscall")
int make_context(void *unused)
{
	struct bpf_crypto_params params = {.type = "skcipher", .algo = "cbc(aes)", .key_len = 32};
	struct bpf_crypto_ctx *ctx;
	struct holder *holder;
	__u32 zero = 0;

	for (int i = 0; i < 32; i++)
		params.key[i] = i;
	ctx = bpf_crypto_ctx_create(&params, sizeof(params), &failure);
	if (!ctx)
		return 0;
	holder = bpf_map_lookup_elem(&context, &zero);
	if (!holder) {
		bpf_crypto_ctx_release(ctx);
		return 0;
	}
	ctx = bpf_kptr_xchg(&holder->ctx, ctx);
	if (ctx)
		bpf_crypto_ctx_release(ctx);
	failure = 0;
	return 0;
}

SEC("tc")
int decrypt(struct __sk_buff *skb)
{
	struct bpf_dynptr from, to, iv;
	struct bpf_crypto_ctx *ctx;
	struct scratch *scratch_;
	struct counts *counts;
	struct holder *holder;
	struct head head;
	__u32 zero = 0, cpu = bpf_get_smp_processor_id() & (CPUS - 1);
	int failed;

	if (bpf_skb_load_bytes(skb, HEADERS, &head, sizeof(head)))
		return TC_ACT_OK;
	counts = bpf_map_lookup_elem(&flows, &head.flow);
	holder = bpf_map_lookup_elem(&context, &zero);
	scratch_ = bpf_map_lookup_elem(&scratch, &zero);
	if (!counts || !holder || !scratch_)
		return TC_ACT_OK;
	ctx = holder->ctx;
	if (!ctx || head.length < 16 || head.length > LENGTH_MAX)
		return TC_ACT_OK;
	if (bpf_dynptr_from_skb(skb, 0, &from))
		return TC_ACT_OK;
	bpf_dynptr_from_mem(scratch_->plain, LENGTH_MAX, 0, &to);
	bpf_dynptr_from_mem(scratch_->iv, sizeof(scratch_->iv), 0, &iv);
	failed = bpf_dynptr_adjust(&from, HEADERS + sizeof(head),
				   HEADERS + sizeof(head) + head.length);
	failed = failed ?: bpf_crypto_decrypt(ctx, &from, &to, &iv);
	if (failed)
		counts->wrong++;
	__sync_fetch_and_add(&counts->packets[cpu], 1);
	if (head.number < counts->next)
		counts->late++;
	else
		counts->next = head.number + 1;
	return TC_ACT_SHOT;
}

char LICENSE[] SEC("license") = "GPL";
