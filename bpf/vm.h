/* SPDX-License-Identifier: GPL-3.0-or-later */
/* The pinned maps of gpu_vm. plugins/module_utils/_bpf/mappings.py says the same in Python. */
#pragma once

#include "gpuops.h"
#include "histogram.h"

enum vm_call { IOCTL = 1, MMAP };

struct vm_key {
    __u64 start_boottime_ns;
    __u32 tgid;
    __u32 call;
    char device[24]; /* the name of its file: nvidia0, nvidiactl, nvidia-uvm */
};

struct vm_calls {
    struct cgroup_ids cgroup; /* in which the first one was */
    __u32 ns_tgid;
    __u32 unused;
    char comm[16];
    __u64 failed;
    __u64 bytes; /* that were mapped, whether or not they still are */
    struct durations durations;
};

enum vm_counter { VM_FULL, VM_COUNTERS };
