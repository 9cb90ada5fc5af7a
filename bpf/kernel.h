/* SPDX-License-Identifier: GPL-3.0-or-later */
/* The few kernel structures that the programs read. Offsets are relocated when a program is loaded (CO-RE), so only names and types count. */
#pragma once
#include <linux/bpf.h>

#include <bpf/bpf_core_read.h>
#include <bpf/bpf_helpers.h>

#define KERNEL __attribute__((preserve_access_index))

struct kernfs_node {
    __u64 id;
} KERNEL;

struct cgroup_root {
    int hierarchy_id;
} KERNEL;

struct cgroup {
    struct kernfs_node *kn;
    struct cgroup_root *root;
} KERNEL;

struct cgroup_subsys_state {
    struct cgroup *cgroup;
} KERNEL;

enum cgroup_subsys_id { memory_cgrp_id };

struct css_set {
    struct cgroup_subsys_state *subsys[1];
} KERNEL;

struct upid {
    int nr;
} KERNEL;

struct pid {
    unsigned int level;
    struct upid numbers[1];
} KERNEL;

typedef struct {
    int counter;
} atomic_t;

struct signal_struct {
    atomic_t live;
} KERNEL;

struct task_struct {
    __u64 start_boottime;
    struct task_struct *group_leader;
    struct signal_struct *signal;
    struct css_set *cgroups;
    struct pid *thread_pid;
} KERNEL;

/* User registers as the x86-64 ABI has them: stable, no relocation. */
struct pt_regs {
    unsigned long r15, r14, r13, r12, bp, bx, r11, r10, r9, r8, ax, cx, dx, si, di, orig_ax, ip, cs, flags, sp, ss;
};
