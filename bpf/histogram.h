/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Durations by powers of two. plugins/module_utils/_bpf/durations.py says the same in Python. */
#pragma once

#define SLOTS 32 /* number N is from 2^N ns, the first from 0; the last has all that is longer */

struct durations {
    __u64 count;
    __u64 total_ns;
    __u64 slots[SLOTS];
};

static __always_inline void observe(struct durations *durations, __u64 ns) {
    __u32 rest = ns >> SLOTS ? ~0U : (__u32)ns, slot = 0;
    for (int shift = SLOTS / 2; shift; shift /= 2)
        if (rest >> shift) rest >>= shift, slot += shift;
    asm volatile("" : "+r"(slot)); /* the verifier does not know that it is below SLOTS, and the compiler does */
    __sync_fetch_and_add(&durations->slots[slot & (SLOTS - 1)], 1);
    __sync_fetch_and_add(&durations->total_ns, ns);
    __sync_fetch_and_add(&durations->count, 1);
}
