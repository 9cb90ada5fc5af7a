/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Who calls a function of a library. */
#pragma once

#include "kernel.h"

#include "gpuops.h"

#define NEAR 0x100000 /* frames that are further apart are on different stacks */

#define TABLE(name, map_type, map_key, map_value, entries) \
    struct {                                             \
        __uint(type, map_type);                          \
        __uint(max_entries, entries);                    \
        __type(key, map_key);                            \
        __type(value, map_value);                        \
    } name SEC(".maps")

static __always_inline struct cgroup_ids cgroup_of(struct task_struct *task) {
    struct cgroup_ids ids = {.v2 = bpf_get_current_cgroup_id()};
    if (bpf_core_enum_value_exists(enum cgroup_subsys_id, memory_cgrp_id)) {
        struct css_set *set = BPF_CORE_READ(task, cgroups);
        struct cgroup_subsys_state *state = 0;
        int index = bpf_core_enum_value(enum cgroup_subsys_id, memory_cgrp_id);
        bpf_probe_read_kernel(&state, sizeof(state), (void *)__builtin_preserve_access_index(&set->subsys[0]) + index * sizeof(state));
        if (state && BPF_CORE_READ(state, cgroup, root, hierarchy_id)) ids.v1 = BPF_CORE_READ(state, cgroup, kn, id);
    }
    return ids;
}

static __always_inline __u32 namespaced_tgid(struct task_struct *leader) {
    struct pid *pid = BPF_CORE_READ(leader, thread_pid);
    __u32 level = BPF_CORE_READ(pid, level);
    struct upid *at = (void *)__builtin_preserve_access_index(&pid->numbers[0]) + level * bpf_core_type_size(struct upid);
    return BPF_CORE_READ(at, nr);
}
