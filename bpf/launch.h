/* SPDX-License-Identifier: GPL-3.0-or-later */
/* The pinned maps of cuda_launch. plugins/module_utils/_bpf/launches.py says the same in Python. */
#pragma once

#include "gpuops.h"
#include "histogram.h"

/* What a probed function launches: its probe's cookie. Numbers stay as they are, as operations' do. */
enum launch_kind {
    LAUNCH_KERNEL = 1,
    LAUNCH_COOPERATIVE,
    LAUNCH_GRAPH, /* of any number of kernels */
};

struct launch_key {
    __u64 start_boottime_ns;
    __u32 tgid;
    __u32 kind;
};

struct launches {
    struct cgroup_ids cgroup; /* in which the first one was */
    __u32 ns_tgid;
    __u32 unused;
    char comm[16];
    __u64 failed;
    struct durations durations; /* of the calls on the host, those that failed among them */
};

enum launch_counter {
    LAUNCH_HITS,        /* of probes, two a call */
    LAUNCH_PROGRAMS_NS, /* how long the programs ran, by their own clock; the way into the kernel and back is not in it */
    LAUNCHES_FULL,      /* launches of processes that the map has no room for */
    ABANDONED_LAUNCHES, /* that never returned */
    LAUNCH_COUNTERS,
};
