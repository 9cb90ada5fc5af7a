// SPDX-License-Identifier: GPL-3.0-or-later
/*
 * Counts what processes launch on GPUs, and how long the calls took on the host. Not how long the GPU worked: a launch only queues it.
 *
 * Launches come a hundred thousand times a second. So a thread's entry is made once and used again, and the programs tell what they cost.
 * Of a thread's nested calls the outermost counts, as in cuda_mem.
 */
#include "process.h"

#include "launch.h"

char LICENSE[] SEC("license") = "GPL";

#define NESTED 16 /* calls in one at most: that one has been left without a return, and would hide all that come after it */

struct launch {
    __u64 sp; /* 0 between launches */
    __u64 cookie;
    __u64 entered_ns;
    __u32 passed; /* another function returned from this frame: the call itself does right after it, or never */
    __u32 nested; /* calls that began meanwhile */
};

TABLE(launch_calls, BPF_MAP_TYPE_LRU_HASH, __u64, struct launch, 32768); /* an ended thread's entry is the oldest one day */
TABLE(launches, BPF_MAP_TYPE_HASH, struct launch_key, struct launches, 8192);
TABLE(launch_counters, BPF_MAP_TYPE_ARRAY, __u32, __u64, LAUNCH_COUNTERS);

static __always_inline void add(__u32 counter, __u64 amount) {
    __u64 *value = bpf_map_lookup_elem(&launch_counters, &counter);
    if (value) __sync_fetch_and_add(value, amount);
}

/* Returns the time: what ends now is not in the call that begins. */
static __always_inline __u64 spent_since(__u64 began) {
    __u64 now = bpf_ktime_get_ns();
    add(LAUNCH_HITS, 1);
    add(LAUNCH_PROGRAMS_NS, now - began);
    return now;
}

static __noinline struct launches *of_this_process(struct launch_key *key) {
    struct launches *found = bpf_map_lookup_elem(&launches, key);
    if (found) return found;
    struct task_struct *task = (void *)bpf_get_current_task();
    struct launches none = {.cgroup = cgroup_of(task), .ns_tgid = namespaced_tgid(BPF_CORE_READ(task, group_leader))};
    bpf_get_current_comm(none.comm, sizeof(none.comm));
    bpf_map_update_elem(&launches, key, &none, BPF_NOEXIST);
    return bpf_map_lookup_elem(&launches, key);
}

SEC("uprobe/enter")
int enter(struct pt_regs *ctx) {
    __u64 began = bpf_ktime_get_ns(), thread = bpf_get_current_pid_tgid(), sp = ctx->sp, cookie = bpf_get_attach_cookie(ctx);
    struct launch *launch = bpf_map_lookup_elem(&launch_calls, &thread);
    if (launch && launch->sp) {
        if (launch->sp == sp && launch->cookie == cookie) { /* attached twice, or once more after one that did not return */
            launch->entered_ns = spent_since(began);
            return 0;
        }
        int inside = launch->sp >= sp && launch->sp - sp < NEAR && !launch->passed; /* with the same sp by a tail call */
        if (inside && launch->nested++ < NESTED) {
            spent_since(began);
            return 0;
        }
        add(ABANDONED_LAUNCHES, 1);
    }
    if (!launch) {
        struct launch fresh = {};
        bpf_map_update_elem(&launch_calls, &thread, &fresh, BPF_ANY);
        launch = bpf_map_lookup_elem(&launch_calls, &thread);
        if (!launch) {
            spent_since(began);
            return 0;
        }
    }
    launch->cookie = cookie;
    launch->passed = launch->nested = 0;
    launch->sp = sp;
    launch->entered_ns = spent_since(began);
    return 0;
}

SEC("uretprobe/leave")
int leave(struct pt_regs *ctx) {
    __u64 began = bpf_ktime_get_ns(), thread = bpf_get_current_pid_tgid();
    struct launch *launch = bpf_map_lookup_elem(&launch_calls, &thread);
    if (!launch || !launch->sp || ctx->sp - launch->sp > 8) {
        spent_since(began);
        return 0;
    }
    if (launch->cookie != bpf_get_attach_cookie(ctx)) {
        launch->passed = 1;
        spent_since(began);
        return 0;
    }
    launch->sp = 0;
    struct task_struct *task = (void *)bpf_get_current_task_btf();
    struct launch_key key = {
        .start_boottime_ns = task->group_leader->start_boottime,
        .tgid = thread >> 32,
        .kind = launch->cookie,
    };
    struct launches *its = of_this_process(&key);
    if (its) {
        observe(&its->durations, began - launch->entered_ns);
        if ((__u32)ctx->ax) __sync_fetch_and_add(&its->failed, 1);
    } else {
        add(LAUNCHES_FULL, 1);
    }
    spent_since(began);
    return 0;
}
