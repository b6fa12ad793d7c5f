/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* Finds the entry that matches a key (steer::table), and the core for a flow (steer::ranking). */
#pragma once
#include "maps.h"

struct search {
	const struct config *config;
	const struct view *view;
	const struct key *key;
	struct entry *best;
	__u32 precedence;
};

static long search_mask(__u32 index, void *context)
{
	struct search *search = context;
	const struct view *view = search->view;
	const __u64 *words = (const __u64 *)search->key;
	struct entry_key masked = {};
	struct entry *found;
	struct mask *mask;
	__u64 at;
	__u32 slot;

	if (index >= MASKS_MAX || index >= view->count)
		return 1;
	/* Masks are ordered by their entries' highest precedence, the highest first. */
	at = within(index, MASKS_MAX);
	if (search->best && search->best->precedence > view->masks[at].precedence)
		return 1;
	slot = view->masks[at].slot;
	mask = bpf_map_lookup_elem(&masks, &slot);
	if (!mask)
		return 1;
	masked.mask = slot;
#pragma unroll
	for (int i = 0; i < KEY_BYTES / 8; i++)
		masked.words[i] = words[i] & mask->words[i];
	found = bpf_map_lookup_elem(&entries, &masked);
	/* Among equal precedences the entry added first wins. */
	if (found && (!search->best || found->precedence > search->best->precedence ||
		      (found->precedence == search->best->precedence &&
		       found->id < search->best->id)))
		search->best = found;
	return 0;
}

struct walk {
	const struct rankings *rankings;
	__u32 list; /* 0: normal, 1: displacing, 2: own */
	__u32 vm;
	__u32 priority;
	__u32 all_held;
	__u64 held;
	__u32 best_load;
	__u32 best_core;
};

/* Returns the load placed on a core since a ranking was made. */
INLINE __u32 placed_since(const struct rankings *rankings, __u32 core)
{
	struct placement *placement = bpf_map_lookup_elem(&placements, &core);

	if (!placement || core >= CPUS_MAX)
		return 0;
	return READ_ONCE(placement->load) - rankings->placed[within(core, CPUS_MAX)];
}

INLINE __u32 plus(__u32 a, __u32 b)
{
	__u32 sum = a + b;

	return sum < a ? 0xffffffff : sum;
}

static long walk_step(__u32 index, void *context)
{
	struct walk *walk = context;
	const struct rankings *rankings = walk->rankings;
	__u32 load, core;

	if (walk->list == 2) {
		if (index >= OWN_MAX || index >= rankings->own_count)
			return 1;
		if (rankings->own[within(index, OWN_MAX)].vm != walk->vm)
			return 0;
		load = rankings->own[within(index, OWN_MAX)].load;
		core = rankings->own[within(index, OWN_MAX)].core;
	} else if (walk->list == 1) {
		if (index >= CPUS_MAX || index >= rankings->displacing_count)
			return 1;
		load = rankings->displacing[within(index, CPUS_MAX)].load;
		core = rankings->displacing[within(index, CPUS_MAX)].core;
	} else {
		if (index >= CPUS_MAX || index >= rankings->normal_count)
			return 1;
		load = rankings->normal[within(index, CPUS_MAX)].load;
		core = rankings->normal[within(index, CPUS_MAX)].core;
	}
	if (walk->best_core != NONE &&
	    (walk->best_load < load || (walk->best_load == load && walk->best_core < core)))
		return 1;
	if (core >= CPUS_MAX)
		return 1;
	if (walk->list != 2) {
		__u32 held = walk->held >> core & 1;

		if (walk->priority ? !held && walk->all_held : held)
			return 0;
	}
	load = plus(load, placed_since(rankings, core));
	if (load < rankings->high &&
	    (walk->best_core == NONE || load < walk->best_load ||
	     (load == walk->best_load && core < walk->best_core))) {
		walk->best_load = load;
		walk->best_core = core;
	}
	return 0;
}

struct held {
	const struct rankings *rankings;
	__u64 set;
	__u32 count;
};

static long held_step(__u32 core, void *context)
{
	struct held *held = context;
	struct placement *placement;
	__u32 before;

	if (core >= CPUS_MAX)
		return 1;
	placement = bpf_map_lookup_elem(&placements, &core);
	before = held->rankings->priority[within(core, CPUS_MAX)];
	if (placement && READ_ONCE(placement->priority) != before &&
	    !(held->rankings->vm_cores >> core & 1))
		held->set |= 1ull << core;
	held->count += held->set >> core & 1;
	return 0;
}

struct decision {
	__u32 core; /* NONE: the flow stays */
	__u32 basis;
};

/* Chooses a core for a flow of an entry. A global function, so that it is verified separately. */
__noinline int decide(struct config *config, struct entry *entry, struct decision *out)
{
	struct held held = {};
	struct walk walk = {};
	struct rankings *rankings;
	__u32 which;

	if (!config || !entry || !out)
		return 0;
	out->core = NONE;
	out->basis = BASIS_STAYED;
	which = READ_ONCE(config->ranking) & 1;
	rankings = bpf_map_lookup_elem(&rankings_map, &which);
	if (!rankings)
		return 0;
	if (bpf_ktime_get_ns() > rankings->usable_until_ns) {
		count(STAYED_OLD_RANKING);
		return 0;
	}
	if (rankings->all_high) {
		count(STAYED_ALL_HIGH);
		return 0;
	}
	held.rankings = rankings;
	held.set = rankings->held;
	bpf_loop(CPUS_MAX, held_step, &held, 0);
	walk.rankings = rankings;
	walk.held = held.set;
	walk.priority = entry->priority;
	walk.all_held = entry->priority && held.count >= rankings->held_limit;
	walk.vm = entry->vm;
	walk.best_core = NONE;
	out->basis = BASIS_LEAST;
	bpf_loop(CPUS_MAX, walk_step, &walk, 0);
	if (walk.best_core == NONE && entry->priority) {
		walk.list = 1;
		out->basis = BASIS_DISPLACING;
		bpf_loop(CPUS_MAX, walk_step, &walk, 0);
	}
	if (walk.best_core == NONE && entry->has_vm) {
		walk.list = 2;
		out->basis = BASIS_OWN;
		bpf_loop(OWN_MAX, walk_step, &walk, 0);
	}
	if (walk.best_core == NONE) {
		out->basis = BASIS_STAYED;
		count(STAYED_NONE_FIT);
	}
	out->core = walk.best_core;
	return 0;
}
