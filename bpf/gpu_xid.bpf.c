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

#define WINDOW_NS 1000000000LL
#define PREFIX 32 /* characters: before Linux 5.19 a line begins with the time */
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

/* The kernel's lines are not terminated, and what lies behind them is older ones'. The rest of `to` is left as it is. */
static __always_inline __u64 copy(char *to, __u64 room, __u64 from, __u64 length) {
    if (length > room) length = room;
    asm volatile("" : "+r"(length)); /* the verifier knows the bound of this register alone */
    bpf_probe_read_kernel(to, length, (void *)from);
    return length;
}

/*
 * `pci` is 0000:06:00, whatever follows it. A text of length 0 is terminated. This and `code_of` are verified once, for any arguments, since they are
 * not static: for each place where a line may begin it would be too much.
 */
__attribute__((noinline)) int seen(enum xid_source source, __u64 pci, __u32 code, __u64 text, __u64 length) {
    struct xid_key key = {.code = code};
    char where[sizeof(key.pci)] = {};
    bpf_probe_read_kernel_str(where, sizeof(where), (void *)pci);
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
        if ((!began || (__s64)(now - began) >= WINDOW_NS) && /* another CPU's may be later than this one's */
             __sync_val_compare_and_swap(&xid->last_boottime_ns, began, now) == began)
            __sync_fetch_and_add(&xid->count, 1);
        __sync_fetch_and_add(source == FROM_LOG ? &xid->lines : &xid->traces, 1);
    } else {
        count(XIDS_FULL);
    }

    __u64 number = count(NEXT_EVENT);
    __u32 slot = number % XID_EVENTS;
    struct xid_event *event = bpf_map_lookup_elem(&events, &slot);
    if (!event) return 0;
    __sync_lock_test_and_set(&event->number, 0); /* half written until the number is back */
    event->boottime_ns = now;
    event->key = key;
    event->source = source;
    if (length)
        event->text[copy(event->text, sizeof(event->text) - 1, text, length)] = 0;
    else
        bpf_probe_read_kernel_str(event->text, sizeof(event->text), (void *)text);
    __sync_lock_test_and_set(&event->number, number);
    return 0;
}

/* Of what follows "(PCI:", such as 0000:06:00 GPU-I:02 GPU-CI:00): 31, or -1. */
__attribute__((noinline)) int code_of(__u64 text, __u64 length) {
    char rest[64] = {};
    copy(rest, sizeof(rest) - 1, text, length);
    int state = 0, digits = 0, code = 0;
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
    return digits ? code : -1;
}

SEC("raw_tp/console")
int on_console(struct bpf_raw_tracepoint_args *ctx) {
    static const char words[] = "NVRM: Xid (PCI:";
    __u64 text = ctx->args[0], length = ctx->args[1];
    char head[64] = {};
    copy(head, sizeof(head) - 1, text, length);
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

    int before = at + sizeof(words) - 1; /* within the line */
    int code = code_of(text + before, length - before);
    if (code >= 0)
        seen(FROM_LOG, text + before, code, text + at, length - at);
    else
        count(UNREADABLE);
    return 0;
}

SEC("raw_tp/nvidia_dev_xid")
int on_xid(struct bpf_raw_tracepoint_args *ctx) {
    struct pci_dev *device = (void *)ctx->args[0];
    seen(FROM_TRACEPOINT, (__u64)BPF_CORE_READ(device, dev.kobj.name), ctx->args[1], ctx->args[2], 0);
    return 0;
}
