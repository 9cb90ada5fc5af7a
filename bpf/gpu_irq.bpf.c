// SPDX-License-Identifier: GPL-3.0-or-later
/*
 * Counts the interrupts of the driver's devices by line, and how long its handlers kept a CPU.
 *
 * The programs run at every interrupt of the node. At others than the driver's they read a name and no more.
 */
#include "kernel.h"

#include "irq.h"

char LICENSE[] SEC("license") = "GPL";

#ifndef HANDLERS
#define HANDLERS "nvidia" /* how the names of handlers begin */
#endif

enum { NOT_OURS, HANDLED, WAKE_THREAD }; /* what a handler returns */

struct irqaction {
    const char *name;
} KERNEL;

struct {
    __uint(type, BPF_MAP_TYPE_HASH);
    __uint(max_entries, 4096);
    __type(key, struct irq_key);
    __type(value, struct irq);
} irqs SEC(".maps");

struct running {
    __u64 action;
    __u64 entered_ns;
};

struct {
    __uint(type, BPF_MAP_TYPE_PERCPU_ARRAY); /* a CPU runs one handler at a time */
    __uint(max_entries, 1);
    __type(key, __u32);
    __type(value, struct running);
} irq_running SEC(".maps");

struct {
    __uint(type, BPF_MAP_TYPE_ARRAY);
    __uint(max_entries, IRQ_COUNTERS);
    __type(key, __u32);
    __type(value, __u64);
} irq_counters SEC(".maps");

static __always_inline struct running *this_cpu(void) {
    __u32 zero = 0;
    return bpf_map_lookup_elem(&irq_running, &zero);
}

SEC("raw_tp/irq_handler_entry")
int on_entry(struct bpf_raw_tracepoint_args *ctx) {
    static const char words[] = HANDLERS;
    char name[sizeof(words)] = {};
    struct irqaction *action = (void *)ctx->args[1];
    bpf_probe_read_kernel(name, sizeof(name) - 1, BPF_CORE_READ(action, name));
    for (int i = 0; i < (int)sizeof(words) - 1; i++)
        if (name[i] != words[i]) return 0;
    struct running *running = this_cpu();
    if (!running) return 0;
    running->action = (__u64)action;
    running->entered_ns = bpf_ktime_get_ns();
    return 0;
}

SEC("raw_tp/irq_handler_exit")
int on_exit(struct bpf_raw_tracepoint_args *ctx) {
    struct running *running = this_cpu();
    if (!running || !running->action || running->action != ctx->args[1]) return 0;
    __u64 took = bpf_ktime_get_ns() - running->entered_ns;
    running->action = 0; /* counted once, also by programs that are attached twice */

    struct irqaction *action = (void *)ctx->args[1];
    struct irq_key key = {.irq = ctx->args[0]};
    bpf_probe_read_kernel_str(key.handler, sizeof(key.handler), BPF_CORE_READ(action, name));
    struct irq *irq = bpf_map_lookup_elem(&irqs, &key);
    if (!irq) {
        struct irq none = {};
        bpf_map_update_elem(&irqs, &key, &none, BPF_NOEXIST);
        irq = bpf_map_lookup_elem(&irqs, &key);
    }
    if (!irq) {
        __u32 full = IRQS_FULL;
        __u64 *count = bpf_map_lookup_elem(&irq_counters, &full);
        if (count) __sync_fetch_and_add(count, 1);
        return 0;
    }
    observe(&irq->durations, took);
    __u32 result = ctx->args[2];
    if (result == NOT_OURS) __sync_fetch_and_add(&irq->unhandled, 1);
    if (result == WAKE_THREAD) __sync_fetch_and_add(&irq->woken, 1);
    return 0;
}
