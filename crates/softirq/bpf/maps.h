/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* The maps. User space sets sizes that depend on the machine before loading them. */
#pragma once
#include "layout.h"
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#define INLINE static __always_inline

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct config);
} config SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, MASKS_MAX);
	__type(key, __u32);
	__type(value, struct mask);
} masks SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 4096);
	__type(key, struct entry_key);
	__type(value, struct entry);
} entries SEC(".maps");

/* First one slot for each entry, then those for flows. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 4096 + 16384);
	__type(key, __u32);
	__type(value, struct slot);
} slots SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 16384);
	__type(key, struct flow_key);
	__type(value, __u32);
} flows SEC(".maps");

/* Free slots for new flows. */
struct {
	__uint(type, BPF_MAP_TYPE_STACK);
	__uint(max_entries, 16384);
	__type(value, __u32);
} vacant SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct room);
} room SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, SEEN);
	__type(key, __u32);
	__type(value, struct seen);
} seen_flows SEC(".maps");

/* Index: slot * cpus + receiving processor. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct ticket);
} tickets SEC(".maps");

/* Index: receiving processor * (cpus + 1) + core. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct lane);
} lanes SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, CPUS_MAX);
	__type(key, __u32);
	__type(value, struct core);
} cores SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 2);
	__type(key, __u32);
	__type(value, struct rankings);
} rankings_map SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, CPUS_MAX);
	__type(key, __u32);
	__type(value, struct placement);
} placements SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, COUNTERS);
	__type(key, __u32);
	__type(value, __u64);
} counters SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_CPUMAP);
	__uint(max_entries, CPUS_MAX);
	__type(key, __u32);
	__type(value, struct bpf_cpumap_val);
} cpumap SEC(".maps");

INLINE void count(__u32 counter)
{
	__u64 *value = bpf_map_lookup_elem(&counters, &counter);
	if (value)
		*value += 1;
}

INLINE struct config *configuration(void)
{
	__u32 zero = 0;
	return bpf_map_lookup_elem(&config, &zero);
}

INLINE struct core *core_of(__u32 cpu)
{
	return bpf_map_lookup_elem(&cores, &cpu);
}

INLINE struct lane *lane_of(const struct config *config, __u32 rx, __u32 core)
{
	__u32 at = rx * (config->cpus + 1) + core;
	return bpf_map_lookup_elem(&lanes, &at);
}

/* Bounds an index to an array whose length is a power of two. The compiler may know the bound and
 * remove a plain mask, but the verifier may not: it forgets a variable's bounds when a part of the
 * variable is spilled. */
INLINE __u64 within(__u32 index, __u32 length)
{
	__u64 at = index;

	asm volatile("" : "+r"(at));
	return at & (length - 1);
}

#define READ_ONCE(x) (*(volatile typeof(x) *)&(x))
#define WRITE_ONCE(x, value) (*(volatile typeof(x) *)&(x) = (value))
