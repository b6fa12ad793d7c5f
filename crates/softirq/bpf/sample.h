/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* Measures how each core spends its time, by tracepoints. Every moment is charged to the innermost
 * of: interrupt, softirq, current task. So nothing counts twice, although the scheduler's own times
 * of a task include interrupts. */
#pragma once
#include "drain.h"
#include "maps.h"
#include <bpf/bpf_core_read.h>

#define NET_RX 3 /* NET_RX_SOFTIRQ */

struct task_struct {
	int pid;
} __attribute__((preserve_access_index));

struct raw {
	__u64 args[5];
};

/* Charges the time since the last event. An interrupt may come in between; the atomic exchange
 * keeps the sum right. */
INLINE __u64 account(struct core *core)
{
	__u64 now = bpf_ktime_get_ns();
	__u64 since = __sync_lock_test_and_set(&core->since_ns, now);
	__u32 bucket = core->running;

	if (!since)
		return now;
	if (core->irq_depth)
		bucket = IRQ;
	else if (core->in_softirq)
		bucket = SOFTIRQ;
	if (bucket < BUCKETS)
		core->ns[bucket] += now - since;
	return now;
}

#define BEGIN(core) __sync_fetch_and_add(&(core)->begun, 1)
#define END(core) __sync_fetch_and_add(&(core)->ended, 1)

INLINE struct core *here(void)
{
	return core_of(bpf_get_smp_processor_id());
}

SEC("raw_tp/irq_handler_entry")
int on_irq_entry(void *ctx)
{
	struct core *core = here();

	if (!core)
		return 0;
	BEGIN(core);
	account(core);
	core->irq_depth++;
	END(core);
	return 0;
}

SEC("raw_tp/irq_handler_exit")
int on_irq_exit(void *ctx)
{
	struct core *core = here();

	if (!core)
		return 0;
	BEGIN(core);
	account(core);
	if (core->irq_depth)
		core->irq_depth--;
	END(core);
	return 0;
}

SEC("raw_tp/softirq_raise")
int on_softirq_raise(struct raw *ctx)
{
	struct core *core = here();

	if (core && ctx->args[0] == NET_RX)
		core->net_rx_pending = 1;
	return 0;
}

SEC("raw_tp/softirq_entry")
int on_softirq_entry(struct raw *ctx)
{
	struct core *core = here();

	if (!core)
		return 0;
	BEGIN(core);
	account(core);
	core->in_softirq = 1;
	END(core);
	if (ctx->args[0] == NET_RX)
		core->net_rx_pending = 0;
	return 0;
}

SEC("raw_tp/softirq_exit")
int on_softirq_exit(struct raw *ctx)
{
	__u32 cpu = bpf_get_smp_processor_id();
	struct config *config = configuration();
	struct core *core = core_of(cpu);
	struct lane *lane;
	__u64 now;

	if (!core || !config)
		return 0;
	BEGIN(core);
	now = account(core);
	core->in_softirq = 0;
	END(core);
	if (ctx->args[0] != NET_RX || core->net_rx_pending)
		return 0;
	if (core->direct_ns) {
		lane = lane_of(config, cpu, config->cpus);
		if (lane)
			WRITE_ONCE(lane->finished, lane->sent);
		note_wait(core, config, core->direct_ns, now);
		core->direct_ns = 0;
	}
	if (core->asleep)
		drained(config, core, cpu, now);
	return 0;
}

SEC("raw_tp/sched_switch")
int on_switch(struct raw *ctx)
{
	struct task_struct *next = (struct task_struct *)ctx->args[2];
	__u32 cpu = bpf_get_smp_processor_id();
	struct config *config = configuration();
	struct core *core = core_of(cpu);
	int preempted = ctx->args[0], pid = 0;
	__u64 now;

	if (!core || !config)
		return 0;
	BPF_CORE_READ_INTO(&pid, next, pid);
	BEGIN(core);
	now = account(core);
	core->irq_depth = 0;
	core->in_softirq = 0;
	core->running = !pid ? IDLE : core->thread == (__u64)next ? CPUMAP : TASK;
	END(core);
	/* The thread sleeps only when its queue is empty. */
	if (core->thread && core->thread == ctx->args[1] && !preempted && (__u32)ctx->args[3]) {
		core->asleep = 1;
		if (!core->net_rx_pending)
			drained(config, core, cpu, now);
	}
	return 0;
}

SEC("raw_tp/xdp_cpumap_kthread")
int on_cpumap_batch(struct raw *ctx)
{
	__u32 cpu = bpf_get_smp_processor_id();
	struct config *config = configuration();
	struct core *core = core_of(cpu);

	if (!core || !config || (__u32)ctx->args[0] != config->cpumap_id)
		return 0;
	core->lost += (__u32)ctx->args[2];
	batch_taken(config, core, cpu, bpf_ktime_get_ns());
	return 0;
}

SEC("raw_tp/xdp_cpumap_enqueue")
int on_cpumap_enqueue(struct raw *ctx)
{
	struct config *config = configuration();
	struct core *core;
	__u32 dropped = ctx->args[2];

	if (!config || !dropped || (__u32)ctx->args[0] != config->cpumap_id)
		return 0;
	core = core_of(ctx->args[3]);
	if (core)
		__sync_fetch_and_add(&core->dropped, dropped);
	return 0;
}
