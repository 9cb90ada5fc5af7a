// SPDX-License-Identifier: GPL-3.0-or-later
/*
 * Counts the driver's errors (Xid) from the kernel log and from the driver's tracepoint, whoever listens or not.
 *
 * Both tell of the same error within microseconds, and one fault writes several lines at once: what one GPU says of one code within a second is one
 * error. The log alone has the process and the MIG instance, and the tracepoint speaks also where the log is silenced.
 */
#include "kernel.h"

#include "xid.h"

char LICENSE[] SEC("license") = "GPL";

#define WINDOW_NS 1000000000ULL
#define PREFIX 32 /* characters: before Linux 5.17 a line begins with the time */
#define DIGITS 6

struct kobject {
    const char *name;
} KERNEL;

struct device {
    struct kobject kobj;
} KERNEL;

struct pci_dev {
    struct device dev;
} KERNEL;

struct {
    __uint(type, BPF_MAP_TYPE_HASH);
    __uint(max_entries, 4096);
    __type(key, struct xid_key);
    __type(value, struct xid);
} xids SEC(".maps");

struct {
    __uint(type, BPF_MAP_TYPE_ARRAY);
    __uint(max_entries, XID_EVENTS);
    __type(key, __u32);
    __type(value, struct xid_event);
} events SEC(".maps");

struct {
    __uint(type, BPF_MAP_TYPE_ARRAY);
    __uint(max_entries, XID_COUNTERS);
    __type(key, __u32);
    __type(value, __u64);
} xid_counters SEC(".maps");

static __always_inline __u64 count(__u32 counter) {
    __u64 *value = bpf_map_lookup_elem(&xid_counters, &counter);
    return value ? __sync_fetch_and_add(value, 1) + 1 : 0;
}

static __always_inline int ends(char letter) { return !letter || letter == ')' || letter == ' ' || letter == '.'; }

/* `pci` is 0000:06:00, whatever follows it. */
static __always_inline void seen(enum xid_source source, const char *pci, __u32 code, const char *text) {
    struct xid_key key = {.code = code};
    char where[sizeof(key.pci)] = {};
    bpf_probe_read_kernel_str(where, sizeof(where), pci);
    for (int i = 0; i < (int)sizeof(where) - 1 && !ends(where[i]); i++) key.pci[i] = where[i];

    __u64 now = bpf_ktime_get_boot_ns();
    struct xid *xid = bpf_map_lookup_elem(&xids, &key);
    if (!xid) {
        struct xid none = {.first_boottime_ns = now};
        bpf_map_update_elem(&xids, &key, &none, BPF_NOEXIST);
        xid = bpf_map_lookup_elem(&xids, &key);
    }
    if (xid) {
        __u64 began = xid->last_boottime_ns;
        if ((!began || now - began >= WINDOW_NS) && __sync_val_compare_and_swap(&xid->last_boottime_ns, began, now) == began)
            __sync_fetch_and_add(&xid->count, 1);
        __sync_fetch_and_add(source == FROM_LOG ? &xid->lines : &xid->traces, 1);
    } else {
        count(XIDS_FULL);
    }

    __u64 number = count(NEXT_EVENT);
    __u32 slot = number % XID_EVENTS;
    struct xid_event *event = bpf_map_lookup_elem(&events, &slot);
    if (!event) return;
    __sync_lock_test_and_set(&event->number, 0); /* half written until the number is back */
    event->boottime_ns = now;
    event->key = key;
    event->source = source;
    bpf_probe_read_kernel_str(event->text, sizeof(event->text), text);
    __sync_lock_test_and_set(&event->number, number);
}

SEC("raw_tp/console")
int on_console(struct bpf_raw_tracepoint_args *ctx) {
    static const char words[] = "NVRM: Xid (PCI:";
    const char *text = (const char *)ctx->args[0];
    char head[64] = {};
    bpf_probe_read_kernel_str(head, sizeof(head), text);
    int at = 0;
    if (head[0] == '[')
        for (int i = 1; i < PREFIX; i++)
            if (head[i - 1] == ']' && head[i] == ' ') {
                at = i + 1;
                break;
            }
    if (at > PREFIX) return 0;
    for (int i = 0; i < (int)sizeof(words) - 1; i++)
        if (head[(at + i) & 63] != words[i]) return 0;

    char rest[64] = {}; /* 0000:06:00 GPU-I:02 GPU-CI:00): 31, */
    const char *pci = text + at + sizeof(words) - 1;
    bpf_probe_read_kernel_str(rest, sizeof(rest), pci);
    int state = 0, digits = 0;
    __u32 code = 0;
    for (int i = 0; i < (int)sizeof(rest); i++) {
        char letter = rest[i];
        if (!letter) break;
        if (state == 0) {
            if (letter == ')') state = 1;
        } else if (letter >= '0' && letter <= '9' && digits < DIGITS) {
            code = code * 10 + (letter - '0');
            digits++;
        } else if (digits) {
            break;
        }
    }
    if (digits)
        seen(FROM_LOG, pci, code, text + at);
    else
        count(UNREADABLE);
    return 0;
}

SEC("raw_tp/nvidia_dev_xid")
int on_xid(struct bpf_raw_tracepoint_args *ctx) {
    struct pci_dev *device = (void *)ctx->args[0];
    seen(FROM_TRACEPOINT, BPF_CORE_READ(device, dev.kobj.name), ctx->args[1], (const char *)ctx->args[2]);
    return 0;
}
