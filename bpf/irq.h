/* SPDX-License-Identifier: GPL-3.0-or-later */
/* The pinned maps of gpu_irq. plugins/module_utils/_bpf/irqs.py says the same in Python. */
#pragma once

#include "histogram.h"

struct irq_key {
    char handler[20]; /* nvidia, nvidia-nvswitch0 */
    __u32 irq;
};

struct irq {
    struct durations durations;
    __u64 unhandled; /* it was not this handler's device */
    __u64 woken;     /* the handler's thread goes on; its time is not in the durations */
};

enum irq_counter { IRQS_FULL, IRQ_COUNTERS };
