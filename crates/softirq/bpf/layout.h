/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* Structures shared by the programs and user space. src/layout.rs has the same in Rust; a test
 * compares both. Loads are in millionths of a core, times in ns of CLOCK_MONOTONIC. */
#pragma once
#include <linux/bpf.h>

#define CPUS_MAX 64      /* the number of lanes grows with its square; core sets are one word */
#define MASKS_MAX 32     /* steer::table::MASKS_MAX */
#define OWN_MAX 256      /* virtual machines' cores in a ranking */
#define NONE 0xffffffffu /* no core */
#define KEY_BYTES 128
#define SEEN 8192        /* remembered flows without a slot */

/* One frame's headers, in wire format. */
struct headers {
	__u8 dl_dst[6];
	__u8 dl_src[6];
	__be16 dl_type;
	__be16 dl_vlan; /* 0xffff: no tag, as in OpenFlow 1.0 */
	__u8 dl_vlan_pcp;
	__u8 nw_tos; /* without the ECN bits */
	__u8 nw_proto;
	__u8 frag; /* 1: a fragment; 3: not the first one */
	__be16 tp_src;
	__be16 tp_dst;
	__u8 nw_src[16]; /* IPv4 and ARP: the first four bytes */
	__u8 nw_dst[16];
};

struct key {
	__be32 in_port; /* the interface's index */
	__u8 tunnel;    /* 1: VXLAN */
	__u8 vni[3];
	__be16 fcf_vm;
	__u8 fcf_priority;
	__u8 fcf; /* 1: there is one, and it is trusted */
	__u32 zero;
	struct headers outer;
	struct headers inner;
};

_Static_assert(sizeof(struct headers) == 56, "headers");
_Static_assert(sizeof(struct key) == KEY_BYTES, "key");

struct entry_key {
	__u32 mask; /* its slot in `masks` */
	__u32 zero;
	__u64 words[KEY_BYTES / 8];
};

struct mask {
	__u64 words[KEY_BYTES / 8];
};

enum target { TARGET_CORE, TARGET_ENTRY, TARGET_FLOW };

/* Written by user space only. */
struct entry {
	__u64 id;
	__u32 slot;     /* its own choice, and its counters */
	__u32 expected; /* expected load of a new flow */
	__u32 core;     /* TARGET_CORE */
	__u16 precedence;
	__u16 vm;
	__u8 has_vm;
	__u8 priority;
	__u8 target;
	__u8 overrides; /* whether some flows have their own choices */
	__u32 zero;
};

struct flow_key {
	__u64 entry;
	__u64 flow;
};

enum slot_state { SLOT_FREE, SLOT_LIVE, SLOT_RETIRING, SLOT_DEAD };
enum basis { BASIS_STAYED, BASIS_LEAST, BASIS_DISPLACING, BASIS_OWN, BASIS_FIXED };

#define WENT_DIRECT 0x80000000u

/* A choice of a core, and an entry's counters. User space writes `state` and `wanted`, and the
 * rest before the slot is used; the program writes everything else. */
struct slot {
	__u32 state;
	__u32 core;
	__u32 wanted; /* where it is to move, once drained */
	__u32 basis;
	__u64 entry;
	__u64 flow;
	__u64 used_ns;
	__u64 chosen_ns; /* when it was chosen or moved last */
	__u64 packets;   /* that followed this choice */
	__u64 bytes;
	__u64 all_packets; /* that matched the entry */
	__u64 all_bytes;
	__u64 all_used_ns;
	__u64 moves;
	__u64 kept; /* packets that went to the old core while a move was pending */
	__u32 chosen; /* how many times a core was chosen */
	__u32 load;   /* the load expected then */
	__u32 last; /* the processor that received its last packet, and WENT_DIRECT */
	__u32 flows; /* of an entry: how many of its flows have slots */
	__u32 zero[2];
};
_Static_assert(sizeof(struct slot) == 128, "slot");

/* Number of free slots for new flows. */
struct room {
	__u32 vacant;
	__u32 zero;
};

/* When a flow without a slot was seen. */
struct seen {
	__u32 flow;  /* upper half of its hash; the index comes from the lower half */
	__u32 units; /* time in units of 2^20 ns */
};

/* The last packet of a choice that one receiving processor has sent. */
struct ticket {
	__u32 core; /* `cpus`: directly */
	__u32 number;
	__u64 sent_ns;
};

/* The lane from one receiving processor to one core through the cpumap. The lane to core `cpus` is
 * the direct one: straight to the stack on the receiving processor. */
struct lane {
	__u32 sent; /* by the receiving processor */
	__u32 zero[15];
	__u32 taken; /* this and the rest: by the core */
	__u32 handed;
	__u32 finished;
	__u32 more[13];
};
_Static_assert(sizeof(struct lane) == 128, "lane");

enum bucket { IDLE, TASK, CPUMAP, SOFTIRQ, IRQ, BUCKETS };

/* One processor. Written by programs that run there. */
struct core {
	__u64 since_ns; /* begin of the time that is not in `ns` yet; 0: nothing seen so far */
	__u64 ns[BUCKETS];
	__u32 running; /* IDLE, TASK or CPUMAP: the current task */
	__u32 irq_depth;
	__u32 in_softirq;
	__u32 begun, ended; /* counts of changes: equal unless a change is half written */
	__u32 net_rx_pending;
	__u64 thread;       /* its cpumap thread */
	__u32 asleep;       /* whether the thread waits for packets */
	__u32 group_frames; /* frames of the current group */
	__u64 group_ns;     /* when its first one was sent */
	__u64 handed_ns;    /* the same of the group before; 0: none */
	__u64 direct_ns;    /* first packet sent straight to the stack that has not finished; 0: none */
	__u64 lanes;        /* receiving processors whose packets have not all finished */
	__u64 wait_begun_ns;
	__u64 wait_ns; /* longest in this window */
	__u64 wait_before_ns;
	__u64 frames;   /* taken from the cpumap */
	__u64 direct;   /* sent straight to the stack here */
	__u64 dropped;  /* at the cpumap's full queue */
	__u64 lost;     /* in the cpumap's thread, for lack of memory */
	__u64 newest_ns; /* when the newest frame that it has taken was sent */
	__u64 group_begun_ns; /* when the current group began */
	__u64 zero[8];
};
_Static_assert(sizeof(struct core) == 256, "core");

struct candidate {
	__u32 load;
	__u32 core;
};

struct own {
	__u32 vm;
	__u32 load;
	__u32 core;
};

struct rankings {
	__u64 usable_until_ns;
	__u64 held;     /* set of cores that priority flows hold */
	__u64 vm_cores; /* set of cores that run virtual machines */
	__u32 high;
	__u32 held_limit;
	__u32 all_high;
	__u32 normal_count;
	__u32 displacing_count;
	__u32 own_count;
	__u32 placed[CPUS_MAX]; /* `placements` when the ranking was made */
	__u32 priority[CPUS_MAX];
	struct candidate normal[CPUS_MAX];
	struct candidate displacing[CPUS_MAX];
	struct own own[OWN_MAX];
};

/* All that the program has ever placed on a core; both wrap around. */
struct placement {
	__u32 load;
	__u32 priority;
};

struct view {
	__u32 count;
	__u32 zero;
	struct {
		__u32 slot;
		__u32 precedence; /* the highest of its entries */
	} masks[MASKS_MAX]; /* the highest precedence first */
};

enum layout { LAYOUT_NONE, LAYOUT_DSCP6, LAYOUT_TOS8, LAYOUT_VLAN };

struct config {
	__u64 choice_age_ns;
	__u64 least_wait_ns;
	__u64 wait_window_ns;
	__u64 seed;
	__u64 usable; /* set of cores with a place in the cpumap */
	__u32 cpus;
	__u32 slots;
	__u32 ranking; /* the current one, 0 or 1 */
	__u32 view;    /* the current one, 0 or 1 */
	__u32 layout;
	__u32 trusted;
	__u32 strip;
	__u32 vxlan_port;
	__u32 cpumap_id;
	__u32 zero;
	struct view views[2];
};

enum counter {
	RECEIVED,
	UNPARSED,
	MISS,
	FCF_MISS,
	FCF_IGNORED,
	STRIPPED,
	REDIRECTED,
	DIRECT,
	CORE_GONE,
	CHOSEN,
	STAYED_OLD_RANKING,
	STAYED_ALL_HIGH,
	STAYED_NONE_FIT,
	NO_ROOM,
	NO_HEADROOM,
	RETIRED,
	MOVED,
	KEPT,
	ONCE,
	COUNTERS,
};
