/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* The interface's XDP program. */
#pragma once
#include "choose.h"
#include "drain.h"
#include "parse.h"

#define NO_FRAME -1

/* Reads a packet into a key that is zero. Returns the offset of its IP header (0: none), or
 * NO_FRAME. A global function, so that it is verified separately. */
__noinline int read_packet(struct xdp_md *ctx, struct key *key)
{
	__u8 *data = (__u8 *)(long)ctx->data;
	__u8 *end = (__u8 *)(long)ctx->data_end;
	struct config *config = configuration();
	struct frame frame = {};
	__u8 priority = 0;
	__u16 vm = 0;

	if (!key || !config)
		return NO_FRAME;
	if (parse_packet(config, data, end, key, &frame) < 0)
		return NO_FRAME;
	if (parse_fcf(config->layout, data, end, &frame, key, &vm, &priority)) {
		if (config->trusted) {
			key->fcf = 1;
			key->fcf_vm = bpf_htons(vm);
			key->fcf_priority = priority;
		} else {
			count(FCF_IGNORED);
		}
	}
	key->in_port = bpf_htonl(ctx->ingress_ifindex);
	return frame.ip;
}

/* Removes the flow control field. Returns whether it did. */
__noinline int strip(struct xdp_md *ctx, __u32 ip)
{
	struct config *config = configuration();
	__u8 *data = (__u8 *)(long)ctx->data;
	__u8 *end = (__u8 *)(long)ctx->data_end;
	__u8 addresses[12];
	__u64 at;
	__u8 keep;

	if (!config)
		return 0;
	if (config->layout == LAYOUT_VLAN) {
		if (data + 18 > end)
			return 0;
		__builtin_memcpy(addresses, data, 12);
		if (bpf_xdp_adjust_head(ctx, 4))
			return 0;
		data = (__u8 *)(long)ctx->data;
		end = (__u8 *)(long)ctx->data_end;
		if (data + 12 > end)
			return 0;
		__builtin_memcpy(data, addresses, 12);
		return 1;
	}
	at = ip & 31;
	if (at < 14 || at > 22 || data + at + 12 > end)
		return 0;
	data += at;
	keep = config->layout == LAYOUT_DSCP6 ? 3 : 0;
	if (data[0] >> 4 == 4) {
		__u32 before = (__u32)data[0] << 8 | data[1];
		__u32 after = (__u32)data[0] << 8 | (data[1] & keep);
		/* Incremental checksum update (RFC 1624). */
		__u32 sum = (__u16)~two(data + 10);

		sum += (__u16)~before + after;
		sum = (sum & 0xffff) + (sum >> 16);
		sum = (sum & 0xffff) + (sum >> 16);
		sum = (__u16)~sum;
		data[1] &= keep;
		data[10] = sum >> 8;
		data[11] = sum;
	} else {
		data[0] &= 0xf0;
		data[1] = (data[1] & 0x0f) | (data[1] & (keep << 4));
	}
	return 1;
}

INLINE void place(__u32 core, const struct entry *entry)
{
	struct placement *placement = bpf_map_lookup_elem(&placements, &core);

	if (!placement)
		return;
	__sync_fetch_and_add(&placement->load, entry->expected);
	if (entry->priority)
		__sync_fetch_and_add(&placement->priority, 1);
}

/* Returns the core of a choice; chooses one if there is none or the choice has aged. A global
 * function, so that it is verified separately. */
__noinline int core_for(struct config *config, struct entry *entry, struct slot *slot, __u32 at,
			__u32 rx)
{
	__u64 now = bpf_ktime_get_ns();
	struct decision decision = {};
	__u32 core, wanted;

	if (!config || !entry || !slot)
		return rx;
	core = READ_ONCE(slot->core);
	/* Signed, because another processor may have used it after `now`. */
	if (core == NONE ||
	    (__s64)(now - READ_ONCE(slot->used_ns)) >= (__s64)config->choice_age_ns) {
		__u32 before = core;

		if (entry->target == TARGET_CORE) {
			core = entry->core;
			decision.basis = BASIS_FIXED;
		} else {
			decide(config, entry, &decision);
			core = decision.core == NONE ? rx : decision.core;
		}
		slot->used_ns = now;
		if (__sync_val_compare_and_swap(&slot->core, before, core) != before)
			return READ_ONCE(slot->core);
		slot->basis = decision.basis;
		slot->chosen_ns = now;
		slot->load = entry->expected;
		__sync_fetch_and_add(&slot->chosen, 1);
		if (entry->target != TARGET_CORE) {
			count(CHOSEN);
			place(core, entry);
		}
		return core;
	}
	slot->used_ns = now;
	wanted = READ_ONCE(slot->wanted);
	if (wanted == NONE || wanted == core)
		return core;
	if (!has_drained(config, at, NONE, now)) {
		__sync_fetch_and_add(&slot->kept, 1);
		count(KEPT);
		return core;
	}
	if (__sync_val_compare_and_swap(&slot->core, core, wanted) != core)
		return READ_ONCE(slot->core);
	slot->chosen_ns = now;
	__sync_fetch_and_add(&slot->moves, 1);
	count(MOVED);
	return wanted;
}

#define SEEN_SHIFT 20 /* a unit is about a millisecond */
#define SEEN_LEAST 4  /* a packet that stayed has left its softirq after this time */
#define SEEN_MOST 1000

/* Notes a flow without a slot; returns whether it has been seen lately. A flow whose element is
 * reused for another flow is forgotten. */
INLINE int seen_lately(__u64 flow, __u64 now)
{
	__u32 at = within(flow, SEEN), units = now >> SEEN_SHIFT, ago;
	struct seen *seen = bpf_map_lookup_elem(&seen_flows, &at);
	int same;

	if (!seen)
		return 0;
	same = seen->flow == (__u32)(flow >> 32);
	ago = units - seen->units;
	if (same && ago < SEEN_LEAST)
		return 0; /* keep the time of its first packet */
	seen->flow = flow >> 32;
	seen->units = units;
	return same && ago < SEEN_MOST;
}

/* Returns whether one more flow of an entry may have a slot. An entry gets at most as many as are
 * left, so that other entries find some. Once it has a quarter of that, only flows that are seen
 * twice get one, so that a flood of single packets does not fill the slots. */
INLINE int may_have_slot(const struct slot *of_entry, __u64 flow, __u64 now)
{
	__u32 zero = 0, held = READ_ONCE(of_entry->flows), left;
	struct room *left_over = bpf_map_lookup_elem(&room, &zero);

	left = left_over ? READ_ONCE(left_over->vacant) : 0;
	if (held >= left) {
		count(NO_ROOM);
		return 0;
	}
	if (held >= left / 4 && !seen_lately(flow, now)) {
		count(ONCE);
		return 0;
	}
	return 1;
}

INLINE void change_room(struct slot *of_entry, __s32 taken)
{
	__u32 zero = 0;
	struct room *left_over = bpf_map_lookup_elem(&room, &zero);

	__sync_fetch_and_add(&of_entry->flows, taken);
	if (left_over)
		__sync_fetch_and_add(&left_over->vacant, -taken);
}

/* Returns the slot of a flow with its own choice, or NONE. With `make`, creates the choice if there
 * is none and a slot is free. */
INLINE __u32 slot_of_flow(const struct entry *entry, struct slot *of_entry, __u64 flow, __u64 now,
			  int make)
{
	struct flow_key key = {.entry = entry->id, .flow = flow};
	__u32 *found = bpf_map_lookup_elem(&flows, &key);
	struct slot *slot;
	__u32 at;

	if (found)
		return *found;
	if (!make || !may_have_slot(of_entry, flow, now))
		return NONE;
	if (bpf_map_pop_elem(&vacant, &at)) {
		count(NO_ROOM);
		return NONE;
	}
	change_room(of_entry, 1);
	slot = bpf_map_lookup_elem(&slots, &at);
	if (!slot)
		return NONE;
	slot->core = NONE;
	slot->wanted = NONE;
	slot->entry = entry->id;
	slot->flow = flow;
	slot->used_ns = bpf_ktime_get_ns();
	slot->chosen_ns = 0;
	slot->packets = 0;
	slot->bytes = 0;
	slot->moves = 0;
	slot->kept = 0;
	slot->chosen = 0;
	WRITE_ONCE(slot->state, SLOT_LIVE);
	if (bpf_map_update_elem(&flows, &key, &at, BPF_NOEXIST)) {
		/* Another processor has added it first, or the map is full. */
		WRITE_ONCE(slot->state, SLOT_FREE);
		bpf_map_push_elem(&vacant, &at, 0);
		change_room(of_entry, -1);
		found = bpf_map_lookup_elem(&flows, &key);
		if (found)
			return *found;
		count(NO_ROOM);
		return NONE;
	}
	return at;
}

/* Returns the core for a packet of an entry, or NONE if it stays. */
INLINE __u32 steer(struct config *config, struct entry *entry, const struct key *key, __u32 length,
		   __u32 rx, __u64 now, __u32 *used)
{
	__u32 at = entry->slot, own;
	struct slot *slot = bpf_map_lookup_elem(&slots, &at);
	__u64 flow;

	if (!slot)
		return NONE;
	__sync_fetch_and_add(&slot->all_packets, 1);
	__sync_fetch_and_add(&slot->all_bytes, length);
	slot->all_used_ns = now;
	if (entry->target == TARGET_FLOW || entry->overrides) {
		flow = flow_of(key, config->seed);
		own = slot_of_flow(entry, slot, flow, now, entry->target == TARGET_FLOW);
		if (own == NONE && entry->target == TARGET_FLOW)
			return NONE;
		if (own != NONE) {
			at = own;
			slot = bpf_map_lookup_elem(&slots, &at);
			if (!slot)
				return NONE;
		}
	}
	if (READ_ONCE(slot->state) == SLOT_RETIRING)
		__sync_val_compare_and_swap(&slot->state, SLOT_RETIRING, SLOT_LIVE);
	if (READ_ONCE(slot->state) != SLOT_LIVE) {
		count(RETIRED);
		return NONE;
	}
	__sync_fetch_and_add(&slot->packets, 1);
	__sync_fetch_and_add(&slot->bytes, length);
	*used = at;
	return core_for(config, entry, slot, at, rx);
}

/* Returns whether a packet that is already on its core goes straight to the stack. It must not
 * while packets of the same choice from other processors still wait in this core's queue:
 * then it queues behind them. A global function, so that it is verified separately. */
__noinline int goes_direct(struct config *config, struct slot *slot, __u32 at, __u32 rx)
{
	if (!config || !slot)
		return 1;
	if (!(READ_ONCE(config->usable) >> (rx & 63) & 1))
		return 1;
	if (READ_ONCE(slot->last) == (rx | WENT_DIRECT))
		return 1;
	return has_drained(config, at, rx, bpf_ktime_get_ns());
}

/* Not "xdp.frags": in generic mode the kernel (6.18) copies such frames into new packets without
 * setting their MAC header, and drops them as malformed behind a cpumap. */
SEC("xdp")
int steer_receive(struct xdp_md *ctx)
{
	__u32 rx = bpf_get_smp_processor_id();
	struct config *config = configuration();
	struct key key = {};
	struct search search = {};
	__u32 core, at = 0, slot = NONE, which, number;
	struct ticket *ticket;
	struct slot *chosen;
	struct core *here;
	struct lane *lane;
	int ip, direct;
	__u64 now;

	if (!config || rx >= CPUS_MAX || rx >= config->cpus)
		return XDP_PASS;
	count(RECEIVED);
	ip = read_packet(ctx, &key);
	if (ip == NO_FRAME) {
		count(UNPARSED);
		return XDP_PASS;
	}
	which = READ_ONCE(config->view) & 1;
	search.key = &key;
	search.view = &config->views[which];
	bpf_loop(MASKS_MAX, search_mask, &search, 0);
	if (key.fcf && config->strip && strip(ctx, ip))
		count(STRIPPED);
	if (!search.best) {
		count(key.fcf ? FCF_MISS : MISS);
		return XDP_PASS;
	}
	now = bpf_ktime_get_ns();
	core = steer(config, search.best, &key, bpf_xdp_get_buff_len(ctx), rx, now, &slot);
	if (core == NONE || slot == NONE)
		return XDP_PASS;
	if (core >= CPUS_MAX || core >= config->cpus) {
		count(CORE_GONE);
		return XDP_PASS;
	}
	/* A core that has gone processes no packets that this one could overtake. */
	if (core != rx && !(READ_ONCE(config->usable) >> core & 1)) {
		count(CORE_GONE);
		core = rx;
	}
	chosen = bpf_map_lookup_elem(&slots, &slot);
	if (!chosen)
		return XDP_PASS;
	direct = core == rx && goes_direct(config, chosen, slot, rx);
	lane = lane_of(config, rx, direct ? config->cpus : core);
	if (!lane)
		return XDP_PASS;
	number = lane->sent + 1;
	if (!direct && put_stamp(ctx, rx, number, now)) {
		count(NO_HEADROOM);
		return XDP_PASS;
	}
	WRITE_ONCE(lane->sent, number);
	WRITE_ONCE(chosen->last, direct ? rx | WENT_DIRECT : rx);
	at = slot * config->cpus + rx;
	ticket = bpf_map_lookup_elem(&tickets, &at);
	if (ticket) {
		ticket->core = direct ? config->cpus : core;
		ticket->number = number;
		WRITE_ONCE(ticket->sent_ns, now);
	}
	if (direct) {
		here = core_of(rx);
		if (here) {
			here->direct++;
			if (!here->direct_ns)
				here->direct_ns = now;
		}
		count(DIRECT);
		return XDP_PASS;
	}
	count(REDIRECTED);
	return bpf_redirect_map(&cpumap, core, XDP_PASS);
}
