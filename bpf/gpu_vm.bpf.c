// SPDX-License-Identifier: GPL-3.0-or-later
/*
 * Counts what processes ask the driver for by system calls: ioctl and mmap on its device files, whichever library or none they come from.
 *
 * A tracepoint of one system call costs every system call of the node a little.
 */
#include "process.h"

#include "vm.h"

char LICENSE[] SEC("license") = "GPL";

#define MAP_ANONYMOUS 0x20
#define FORMAT 0170000
#define CHARACTER_DEVICE 0020000
#define ERRORS 4095UL

struct qstr {
    const unsigned char *name;
} KERNEL;

struct dentry {
    struct qstr d_name;
} KERNEL;

struct path {
    struct dentry *dentry;
} KERNEL;

struct inode {
    unsigned short i_mode;
} KERNEL;

struct file {
    struct path f_path;
    struct inode *f_inode;
} KERNEL;

struct fdtable {
    unsigned int max_fds;
    struct file **fd;
} KERNEL;

struct files_struct {
    struct fdtable *fdt;
} KERNEL;

struct task_struct___files {
    struct files_struct *files;
} KERNEL;

struct entered { /* of a tracepoint of the set syscalls */
    __u64 common;
    __u64 number;
    __u64 arguments[6];
};

struct left {
    __u64 common;
    __u64 number;
    __u64 result;
};

struct waiting {
    __u64 entered_ns; /* 0 between calls */
    __u64 bytes;
    struct vm_key key;
};

TABLE(vm_waiting, BPF_MAP_TYPE_LRU_HASH, __u64, struct waiting, 32768); /* an ended thread's entry is the oldest one day */
TABLE(vm_calls, BPF_MAP_TYPE_HASH, struct vm_key, struct vm_calls, 8192);
TABLE(vm_counters, BPF_MAP_TYPE_ARRAY, __u32, __u64, VM_COUNTERS);

/* The name of the driver's device file behind a descriptor of this process; 0 of any other. */
static __always_inline int device_of(__u32 fd, char *name, __u32 room) {
    struct task_struct___files *task = (void *)bpf_get_current_task();
    struct fdtable *table = BPF_CORE_READ(task, files, fdt);
    if (fd >= BPF_CORE_READ(table, max_fds)) return 0;
    struct file **place = BPF_CORE_READ(table, fd) + fd, *file = 0;
    bpf_probe_read_kernel(&file, sizeof(file), place);
    if (!file || (BPF_CORE_READ(file, f_inode, i_mode) & FORMAT) != CHARACTER_DEVICE) return 0;
    bpf_probe_read_kernel_str(name, room, BPF_CORE_READ(file, f_path.dentry, d_name.name));
    static const char words[] = "nvidia";
    for (int i = 0; i < (int)sizeof(words) - 1; i++)
        if (name[i] != words[i]) return 0;
    return 1;
}

static __always_inline int begin(__u32 call, __u32 fd, __u64 bytes) {
    struct waiting waiting = {.bytes = bytes, .key = {.call = call}};
    if (!device_of(fd, waiting.key.device, sizeof(waiting.key.device))) return 0;
    __u64 thread = bpf_get_current_pid_tgid();
    struct task_struct *task = (void *)bpf_get_current_task();
    waiting.key.tgid = thread >> 32;
    waiting.key.start_boottime_ns = BPF_CORE_READ(task, group_leader, start_boottime);
    waiting.entered_ns = bpf_ktime_get_ns();
    bpf_map_update_elem(&vm_waiting, &thread, &waiting, BPF_ANY);
    return 0;
}

static __noinline struct vm_calls *of_this_process(struct vm_key *key) {
    struct vm_calls *found = bpf_map_lookup_elem(&vm_calls, key);
    if (found) return found;
    struct task_struct *task = (void *)bpf_get_current_task();
    struct vm_calls none = {.cgroup = cgroup_of(task), .ns_tgid = namespaced_tgid(BPF_CORE_READ(task, group_leader))};
    bpf_get_current_comm(none.comm, sizeof(none.comm));
    bpf_map_update_elem(&vm_calls, key, &none, BPF_NOEXIST);
    return bpf_map_lookup_elem(&vm_calls, key);
}

static __always_inline int end(__u32 call, __u64 result) {
    __u64 thread = bpf_get_current_pid_tgid();
    struct waiting *waiting = bpf_map_lookup_elem(&vm_waiting, &thread);
    if (!waiting || !waiting->entered_ns || waiting->key.call != call) return 0;
    __u64 took = bpf_ktime_get_ns() - waiting->entered_ns;
    waiting->entered_ns = 0; /* counted once, also by programs that are attached twice */
    struct vm_key key = waiting->key;
    struct vm_calls *calls = of_this_process(&key);
    if (!calls) {
        __u32 full = VM_FULL;
        __u64 *count = bpf_map_lookup_elem(&vm_counters, &full);
        if (count) __sync_fetch_and_add(count, 1);
        return 0;
    }
    observe(&calls->durations, took);
    if (result >= -ERRORS)
        __sync_fetch_and_add(&calls->failed, 1);
    else
        __sync_fetch_and_add(&calls->bytes, waiting->bytes);
    return 0;
}

SEC("tracepoint/syscalls/sys_enter_ioctl")
int enter_ioctl(struct entered *ctx) { return begin(IOCTL, ctx->arguments[0], 0); }

SEC("tracepoint/syscalls/sys_exit_ioctl")
int leave_ioctl(struct left *ctx) { return end(IOCTL, ctx->result); }

SEC("tracepoint/syscalls/sys_enter_mmap")
int enter_mmap(struct entered *ctx) {
    return ctx->arguments[3] & MAP_ANONYMOUS ? 0 : begin(MMAP, ctx->arguments[4], ctx->arguments[1]);
}

SEC("tracepoint/syscalls/sys_exit_mmap")
int leave_mmap(struct left *ctx) { return end(MMAP, ctx->result); }
