/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* Decides when a flow may move (steer::drain): counts the packets of lanes, and those finished.
 *
 * A core has finished the packets that its cpumap thread took once that thread sleeps with an empty
 * queue and no receive softirq is pending there. (A packet that leaves a VXLAN device continues in
 * such a softirq.) If the thread never sleeps, frames count as finished one group later: the
 * thread's GRO holds packets back for up to 64 further ones, or a jiffy, and a group is longer than
 * that. Packets that went straight to the stack are finished when the receive softirq has ended and
 * none is pending.
 *
 * The core also records the longest time of a packet from the redirect to that moment. After a
 * longer gap a flow may move, too, but only if the core has since taken a packet that was sent
 * later: otherwise a thread that busy tasks keep waiting would seem to have finished. So this rule
 * only matters for packets that were lost on the way. */
#pragma once
#include "maps.h"

#define GROUP_FRAMES 96 /* 64, a batch of 8 that overshoots, and a begun batch */
#define GROUP_NS 4000000 /* with HZ >= 1000 a busy thread's GRO may hold for a jiffy */
#define STAMP_MAGIC 0x51c3

/* In the headroom, right before the frame. */
struct stamp {
	__u16 magic;
	__u16 rx;
	__u32 number;
	__u64 sent_ns;
};

INLINE void note_wait(struct core *core, const struct config *config, __u64 since, __u64 now)
{
	__u64 age = now - core->wait_begun_ns;

	if (age >= config->wait_window_ns) {
		core->wait_before_ns = age < 2 * config->wait_window_ns ? core->wait_ns : 0;
		core->wait_ns = 0;
		core->wait_begun_ns = now;
	}
	if (since && now > since && now - since > core->wait_ns)
		core->wait_ns = now - since;
}

struct lane_walk {
	const struct config *config;
	__u64 lanes;
	__u32 cpu;
	__u32 all; /* whether all that was taken has finished, or only the last group */
};

static long finish_step(__u32 rx, void *context)
{
	struct lane_walk *walk = context;
	struct lane *lane;

	if (!(walk->lanes >> (rx & 63)))
		return 1;
	if (!(walk->lanes >> (rx & 63) & 1))
		return 0;
	lane = lane_of(walk->config, rx, walk->cpu);
	if (!lane)
		return 0;
	if (walk->all) {
		WRITE_ONCE(lane->finished, lane->taken);
	} else {
		WRITE_ONCE(lane->finished, lane->handed);
	}
	lane->handed = lane->taken;
	return 0;
}

INLINE void finish(const struct config *config, struct core *core, __u32 cpu, __u32 all)
{
	struct lane_walk walk = {.config = config, .lanes = core->lanes, .cpu = cpu, .all = all};

	bpf_loop(CPUS_MAX, finish_step, &walk, 0);
}

/* Notes that all packets that the cpumap's thread took have left the core. */
INLINE void drained(const struct config *config, struct core *core, __u32 cpu, __u64 now)
{
	__u64 since = core->handed_ns ? core->handed_ns : core->group_ns;

	if (!core->lanes)
		return;
	finish(config, core, cpu, 1);
	note_wait(core, config, since, now);
	core->lanes = 0;
	core->group_frames = 0;
	core->group_ns = 0;
	core->handed_ns = 0;
}

/* Ends a group, if it is long enough, when the thread has taken a batch from the queue. */
INLINE void batch_taken(const struct config *config, struct core *core, __u32 cpu, __u64 now)
{
	if (core->group_frames < GROUP_FRAMES || core->net_rx_pending ||
	    now - core->group_begun_ns < GROUP_NS)
		return;
	finish(config, core, cpu, 0);
	note_wait(core, config, core->handed_ns, now);
	core->handed_ns = core->group_ns;
	core->group_begun_ns = now;
	core->group_ns = 0;
	core->group_frames = 0;
}

SEC("xdp/cpumap")
int steer_arrive(struct xdp_md *ctx)
{
	__u32 cpu = bpf_get_smp_processor_id();
	struct config *config = configuration();
	struct core *core = core_of(cpu);
	struct stamp stamp;
	struct lane *lane;
	__u8 *data, *end;

	if (!config || !core)
		return XDP_PASS;
	core->thread = bpf_get_current_task();
	core->asleep = 0;
	core->frames++;
	if (bpf_xdp_adjust_head(ctx, -(int)sizeof(stamp)))
		return XDP_PASS;
	data = (__u8 *)(long)ctx->data;
	end = (__u8 *)(long)ctx->data_end;
	stamp.magic = 0;
	if (data + sizeof(stamp) <= end)
		__builtin_memcpy(&stamp, data, sizeof(stamp));
	/* This restores the previous head, so it should not fail. */
	if (bpf_xdp_adjust_head(ctx, sizeof(stamp))) {
		core->lost++;
		return XDP_ABORTED;
	}
	if (stamp.magic != STAMP_MAGIC || stamp.rx >= CPUS_MAX || stamp.rx >= config->cpus)
		return XDP_PASS;
	lane = lane_of(config, stamp.rx, cpu);
	if (!lane)
		return XDP_PASS;
	lane->taken = stamp.number;
	core->lanes |= 1ull << (stamp.rx & 63);
	core->group_frames++;
	if ((__s64)(stamp.sent_ns - core->newest_ns) > 0)
		WRITE_ONCE(core->newest_ns, stamp.sent_ns);
	if (!core->group_ns)
		core->group_ns = stamp.sent_ns;
	return XDP_PASS;
}

/* Writes the lane and number of a packet in front of it. Returns an error if there is no room. */
INLINE int put_stamp(struct xdp_md *ctx, __u32 rx, __u32 number, __u64 now)
{
	struct stamp stamp = {.magic = STAMP_MAGIC, .rx = rx, .number = number, .sent_ns = now};
	__u8 *data, *end;

	if (bpf_xdp_adjust_head(ctx, -(int)sizeof(stamp)))
		return -1;
	data = (__u8 *)(long)ctx->data;
	end = (__u8 *)(long)ctx->data_end;
	if (data + sizeof(stamp) > end)
		return -1;
	__builtin_memcpy(data, &stamp, sizeof(stamp));
	return bpf_xdp_adjust_head(ctx, sizeof(stamp));
}

struct ticket_walk {
	const struct config *config;
	__u64 now;
	__u32 slot;
	__u32 direct; /* a processor whose direct lane is ignored, or NONE */
	__u32 pending;
};

static long ticket_step(__u32 rx, void *context)
{
	struct ticket_walk *walk = context;
	const struct config *config = walk->config;
	__u32 at = walk->slot * config->cpus + rx;
	struct ticket *ticket;
	struct core *core;
	struct lane *lane;
	__u64 wait, gap;

	if (rx >= config->cpus)
		return 1;
	ticket = bpf_map_lookup_elem(&tickets, &at);
	if (!ticket || !ticket->sent_ns)
		return 0;
	if (rx == walk->direct && ticket->core == config->cpus)
		return 0;
	gap = walk->now - ticket->sent_ns;
	/* For packets that another processor sent after the walk began the gap is 0. */
	if ((__s64)gap < 0)
		gap = 0;
	if (gap >= config->choice_age_ns)
		return 0;
	lane = lane_of(config, rx, ticket->core);
	core = core_of(ticket->core == config->cpus ? rx : ticket->core);
	if (!lane || !core)
		return 0;
	if ((__s32)(READ_ONCE(lane->finished) - ticket->number) >= 0)
		return 0;
	walk->pending = 1;
	if (ticket->core == config->cpus || READ_ONCE(core->newest_ns) <= ticket->sent_ns)
		return 1;
	wait = READ_ONCE(core->wait_ns);
	if (wait < core->wait_before_ns)
		wait = core->wait_before_ns;
	if (wait < config->least_wait_ns)
		wait = config->least_wait_ns;
	if (gap <= wait)
		return 1;
	walk->pending = 0;
	return 0;
}

/* Returns whether all packets of a choice have left the cores where they went, ignoring those that
 * went straight to the stack on processor `direct`, unless that is NONE. */
INLINE int has_drained(const struct config *config, __u32 slot, __u32 direct, __u64 now)
{
	struct ticket_walk walk = {
		.config = config, .slot = slot, .direct = direct, .now = now};

	bpf_loop(CPUS_MAX, ticket_step, &walk, 0);
	return !walk.pending;
}
