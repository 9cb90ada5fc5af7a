/* SPDX-License-Identifier: GPL-3.0-or-later */
/* What the programs and their readers share: the numbers and layouts of the pinned maps. plugins/module_utils/_bpf/layout.py says the same in Python. */
#pragma once

/* What a probed function does, and with NARROW its probe's cookie. Numbers stay as they are: an upgrade has old and new probes attached at once. */
enum operation {
    ALLOCATE = 1,         /* (pointer *, size) */
    ALLOCATE_PITCH,       /* (pointer *, pitch *, width, height): pitch * height */
    ALLOCATE_MANAGED,     /* as ALLOCATE, and so are the next two */
    ALLOCATE_HOST,
    ALLOCATE_ASYNC,
    FREE,                 /* (pointer) */
    HANDLE_CREATE,        /* (handle *, size, properties *) */
    HANDLE_IMPORT,        /* (handle *) */
    HANDLE_RETAIN,        /* (handle *) */
    HANDLE_RELEASE,       /* (handle) */
    MAP,                  /* (address, size, offset, handle) */
    UNMAP,                /* (address, size) */
    POINTER_IMPORT,       /* (pointer *): memory that another process owns */
    CONTEXT_CREATE,       /* (context *) */
    CONTEXT_SET,          /* (context) */
    CONTEXT_PUSH,         /* (context) */
    CONTEXT_POP,          /* (context *) */
    CONTEXT_DESTROY,      /* (context) */
    PRIMARY_RETAIN,       /* (context *, device) */
    PRIMARY_RELEASE,      /* (device) */
    PRIMARY_RESET,        /* (device) */
};
#define NARROW 0x100 /* sizes and pointers have 32 bits: the first version of the interface */

enum kind { DEVICE, MANAGED, HOST, POOL, HANDLE, SHARED, KINDS };

struct usage {
    __u64 bytes[KINDS];
    __u64 live[KINDS]; /* allocations that are not freed yet */
    __u64 allocations;
    __u64 frees;
};

/* The id of a cgroup is the inode of its folder. v1 is the memory controller's, 0 where that one is on the unified hierarchy. */
struct cgroup_ids {
    __u64 v2;
    __u64 v1;
};

/* One process's memory in one cgroup and one context. A process has as many accounts as it needs; the process is their sum. */
struct account {
    __u64 start_boottime_ns;
    __u64 context;
    struct cgroup_ids cgroup;
    __u32 tgid;
    __u32 ns_tgid; /* as the process itself sees it */
    char comm[16];
    struct usage usage;
};

struct failure_key {
    struct cgroup_ids cgroup;
    __u32 operation;
    __u32 result; /* CUresult */
};

enum counter {
    NEXT_SERIAL,
    CALLS,                /* that ended, nested ones aside */
    UNTRACKED_ALLOCATIONS,/* succeeded and not charged, because a map was full or the pointer could not be read */
    UNTRACKED_BYTES,
    UNTRACKED_MAPPINGS,   /* of a handle that is not known */
    UNTRACKED_FREES,      /* of memory that is not known: it is older than the probes, or was untracked */
    ASSUMED_FREES,        /* committed at their entry, because the map of calls was full */
    REPLACED,             /* allocations at an address that was charged already */
    ABANDONED_CALLS,      /* that never returned */
    LOST_CALLS,           /* the map of calls was full */
    UNKNOWN_CONTEXTS,     /* ended, and nobody had seen them begin: their memory stays charged until the process ends */
    UNKNOWN_LOCATIONS,    /* handles whose properties could not be read: taken for the GPU's */
    UNDELETED,            /* entries that the kernel did not delete: marked, and passed over */
    COUNTERS,
};
#define COUNTERS_ROOM 32 /* so that a new counter does not change the map */
