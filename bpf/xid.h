/* SPDX-License-Identifier: GPL-3.0-or-later */
/* The pinned maps of gpu_xid. plugins/module_utils/_bpf/xids.py says the same in Python. */
#pragma once

enum xid_source { FROM_LOG = 1, FROM_TRACEPOINT };

struct xid_key {
    char pci[20]; /* without the function */
    __u32 code;
};

struct xid {
    __u64 count; /* what came within a second is one */
    __u64 lines;
    __u64 traces;
    __u64 first_boottime_ns;
    __u64 last_boottime_ns; /* when the last that counted began */
};

/* The last XID_EVENTS events: number N is in slot N % XID_EVENTS, until a later one takes it. Any number of readers can follow. */
#define XID_EVENTS 256
struct xid_event {
    __u64 number; /* from 1; 0 while it is written */
    __u64 boottime_ns;
    struct xid_key key;
    __u32 source;
    __u32 unused;
    char text[240];
};

enum xid_counter { NEXT_EVENT, XIDS_FULL, UNREADABLE, XID_COUNTERS };
