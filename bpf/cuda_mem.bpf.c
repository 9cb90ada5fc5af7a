// SPDX-License-Identifier: GPL-3.0-or-later
/*
 * Counts the GPU memory that processes hold, at the driver's interface (libcuda), by return code.
 *
 * - Of a thread's nested calls the outermost counts. It is known by its stack pointer, so that a probe that is attached twice changes nothing.
 * - What ends memory takes its record at the entry, and gives it back when the call failed: the driver may hand the same address to another
 *   thread before this one's return is seen.
 * - Bytes are charged only when all records could be made. What could not is counted.
 * - A record belongs to an account, an account to a process in one cgroup and context. Accounts end as a whole; records of ended ones mean nothing.
 */
#include "process.h"

char LICENSE[] SEC("license") = "GPL";

#define CONTEXTS 4   /* depth of a thread's stack of contexts that is followed */
#define ACCOUNTS 16  /* of one process at once */
#define MAPPINGS 64  /* that one cuMemUnmap may end */
#define UNSEEN (1ULL << 32) /* contexts: memory was seen before the first of them began */
#define NO_CONTEXT (~0ULL) /* of memory that belongs to no context */

enum space { ADDRESS, PHYSICAL, MAPPING };

struct record_key {
    __u64 value;
    __u64 incarnation; /* of the process: a pid, an exec and a fork are not enough */
    __u64 space;
};

struct record {
    __u64 size;
    __u64 account; /* of a MAPPING: the handle */
    __u32 kind;
    __s32 references; /* of a PHYSICAL handle: its own, and one each mapping */
};

struct call {
    __u64 sp;
    __u64 cookie;
    __u64 arguments[4];
    __u64 extra;           /* where the memory of a handle is to be, 0 if that is not known; the handle that was mapped */
    struct record_key key; /* what was taken at the entry */
    struct record record;
    __u32 taken;
    __u32 known;
    __u32 passed; /* another function returned from this frame: the call itself does right after it, or never */
    __u32 ended;    /* counted: it stays where the kernel did not delete it */
    __u32 unmapped; /* at the entry: the one mapping of `extra` */
    __u32 unused;
};

struct process {
    __u64 incarnation;
    __u64 start_boottime_ns;
    __u64 contexts; /* that have begun and not ended */
    __u64 accounts[ACCOUNTS];
};

struct primary_key {
    __u64 incarnation;
    __u64 device;
};

struct primary {
    __u64 context;
    __s64 references;
};

struct contexts {
    __u64 stack[CONTEXTS]; /* the current one first */
};

TABLE(calls, BPF_MAP_TYPE_HASH, __u64, struct call, 16384);
TABLE(records, BPF_MAP_TYPE_HASH, struct record_key, struct record, 262144);
TABLE(processes, BPF_MAP_TYPE_HASH, __u32, struct process, 8192);
TABLE(accounts, BPF_MAP_TYPE_HASH, __u64, struct account, 16384);
TABLE(cgroups, BPF_MAP_TYPE_HASH, struct cgroup_ids, struct usage, 8192);
TABLE(failures, BPF_MAP_TYPE_HASH, struct failure_key, __u64, 8192);
TABLE(threads, BPF_MAP_TYPE_HASH, __u64, struct contexts, 32768);
TABLE(primaries, BPF_MAP_TYPE_HASH, struct primary_key, struct primary, 16384);
TABLE(counters, BPF_MAP_TYPE_ARRAY, __u32, __u64, COUNTERS_ROOM);

static __always_inline void add(__u32 counter, __u64 amount) {
    __u64 *value = bpf_map_lookup_elem(&counters, &counter);
    if (value) __sync_fetch_and_add(value, amount);
}

static __always_inline __u64 serial(void) {
    __u32 key = NEXT_SERIAL;
    __u64 *value = bpf_map_lookup_elem(&counters, &key);
    return value ? __sync_fetch_and_add(value, 1) + 1 : 0;
}

static __always_inline void charge(struct usage *usage, __u32 kind, __u64 size, __s64 sign) {
    if (kind >= KINDS) return;
    __sync_fetch_and_add(&usage->bytes[kind], size * sign);
    __sync_fetch_and_add(&usage->live[kind], sign);
    if (sign > 0)
        __sync_fetch_and_add(&usage->allocations, 1);
    else
        __sync_fetch_and_add(&usage->frees, 1);
}

static __always_inline struct usage *cgroup_usage(struct cgroup_ids *ids) {
    struct usage *usage = bpf_map_lookup_elem(&cgroups, ids);
    if (usage) return usage;
    struct usage none = {};
    bpf_map_update_elem(&cgroups, ids, &none, BPF_NOEXIST);
    return bpf_map_lookup_elem(&cgroups, ids);
}

/* Whoever deletes the account takes its bytes off the cgroup: two threads that end at once both get here. */
static __noinline int close_account(__u64 id) {
    struct account *account = bpf_map_lookup_elem(&accounts, &id);
    if (!account) return 0;
    struct cgroup_ids ids = account->cgroup;
    struct usage last = account->usage; /* once deleted, the element may be another's at once */
    struct usage *usage = bpf_map_lookup_elem(&cgroups, &ids);
    if (bpf_map_delete_elem(&accounts, &id) || !usage) return 0;
    for (int kind = 0; kind < KINDS; kind++) {
        __sync_fetch_and_add(&usage->bytes[kind], -last.bytes[kind]);
        __sync_fetch_and_add(&usage->live[kind], -last.live[kind]);
    }
    return 1;
}

static __noinline int close_process(__u32 tgid) {
    struct process *process = bpf_map_lookup_elem(&processes, &tgid);
    if (!process) return 0;
    struct process last = *process;
    if (bpf_map_delete_elem(&processes, &tgid)) return 0;
    for (int i = 0; i < ACCOUNTS; i++)
        if (last.accounts[i]) close_account(last.accounts[i]);
    return 1;
}

enum create { FIND, BY_MEMORY, BY_CONTEXT };

static __always_inline struct process *this_process(enum create create) {
    __u32 tgid = bpf_get_current_pid_tgid() >> 32;
    struct task_struct *task = (void *)bpf_get_current_task();
    __u64 start = BPF_CORE_READ(task, group_leader, start_boottime);
    struct process *process = bpf_map_lookup_elem(&processes, &tgid);
    if (process && process->start_boottime_ns != start) { /* the pid's earlier owner ended unseen */
        close_process(tgid);
        process = 0;
    }
    if (process || create == FIND) return process;
    struct process fresh = {.incarnation = serial(), .start_boottime_ns = start, .contexts = create == BY_CONTEXT ? 0 : UNSEEN};
    bpf_map_update_elem(&processes, &tgid, &fresh, BPF_NOEXIST);
    return bpf_map_lookup_elem(&processes, &tgid);
}

static __always_inline __u64 current_context(void) {
    __u64 thread = bpf_get_current_pid_tgid();
    struct contexts *found = bpf_map_lookup_elem(&threads, &thread);
    return found ? found->stack[0] : 0;
}

/* The account of this process for its present cgroup; 0 when there is no room. */
static __noinline __u64 account_for(__u64 context) {
    struct process *process = this_process(BY_MEMORY);
    if (!process) return 0;
    struct task_struct *task = (void *)bpf_get_current_task();
    struct cgroup_ids ids = cgroup_of(task);
    for (int i = 0; i < ACCOUNTS; i++) {
        __u64 id = process->accounts[i];
        struct account *account = id ? bpf_map_lookup_elem(&accounts, &id) : 0;
        if (account && account->context == context && account->cgroup.v2 == ids.v2 && account->cgroup.v1 == ids.v1) return id;
    }
    if (!cgroup_usage(&ids)) return 0;
    struct task_struct *leader = BPF_CORE_READ(task, group_leader);
    struct account fresh = {
        .start_boottime_ns = process->start_boottime_ns,
        .context = context,
        .cgroup = ids,
        .tgid = bpf_get_current_pid_tgid() >> 32,
        .ns_tgid = namespaced_tgid(leader),
    };
    bpf_get_current_comm(fresh.comm, sizeof(fresh.comm));
    __u64 id = serial();
    if (bpf_map_update_elem(&accounts, &id, &fresh, BPF_NOEXIST)) return 0;
    for (int i = 0; i < ACCOUNTS; i++) {
        __u64 was = process->accounts[i];
        if (was && bpf_map_lookup_elem(&accounts, &was)) continue;
        if (__sync_val_compare_and_swap(&process->accounts[i], was, id) == was) return id; /* two equal ones of two threads do no harm */
    }
    bpf_map_delete_elem(&accounts, &id);
    return 0;
}

/* Counts the end of a record, unless its account has ended before. */
static __noinline int discharge(struct record *record) {
    if (!record) return 0;
    __u64 id = record->account;
    struct account *account = bpf_map_lookup_elem(&accounts, &id);
    if (!account) return 0;
    struct cgroup_ids ids = account->cgroup;
    struct usage *usage = bpf_map_lookup_elem(&cgroups, &ids);
    charge(&account->usage, record->kind, record->size, -1);
    if (usage) charge(usage, record->kind, record->size, -1);
    return 1;
}

static __noinline int store(struct record_key *key, struct record *record, __u64 context) {
    if (!key || !record) return 0;
    __u64 id = account_for(context);
    struct process *process = this_process(FIND);
    struct account *account = id ? bpf_map_lookup_elem(&accounts, &id) : 0;
    if (!account || !process) goto untracked;
    struct cgroup_ids ids = account->cgroup;
    struct usage *usage = bpf_map_lookup_elem(&cgroups, &ids);
    if (!usage) goto untracked;
    record->account = id;
    key->incarnation = process->incarnation;
    struct record *old = bpf_map_lookup_elem(&records, key);
    if (old) { /* its end was missed */
        if (discharge(old)) add(REPLACED, 1);
    }
    if (bpf_map_update_elem(&records, key, record, BPF_ANY)) goto untracked;
    charge(&account->usage, record->kind, record->size, 1);
    charge(usage, record->kind, record->size, 1);
    return 1;
untracked:
    add(UNTRACKED_ALLOCATIONS, 1);
    add(UNTRACKED_BYTES, record->size);
    return 0;
}

static __always_inline void failed(__u32 operation, __u32 result) {
    struct task_struct *task = (void *)bpf_get_current_task();
    struct failure_key key = {.cgroup = cgroup_of(task), .operation = operation, .result = result};
    __u64 one = 1, *count = bpf_map_lookup_elem(&failures, &key);
    if (!count && !bpf_map_update_elem(&failures, &key, &one, BPF_NOEXIST)) return;
    if (!count) count = bpf_map_lookup_elem(&failures, &key);
    if (count) __sync_fetch_and_add(count, 1);
}

static __always_inline __u64 argument(struct call *call, int index) {
    return call->cookie & NARROW ? (__u32)call->arguments[index] : call->arguments[index];
}

static __always_inline __u64 read_result(struct call *call, int index) {
    __u64 value = 0;
    if (call->cookie & NARROW)
        bpf_probe_read_user(&value, 4, (void *)call->arguments[index]);
    else
        bpf_probe_read_user(&value, 8, (void *)call->arguments[index]);
    return value;
}

static __always_inline int take(struct call *call, __u64 value, __u32 space) {
    struct process *process = this_process(FIND);
    if (!process) return 0;
    call->key.value = value;
    call->key.incarnation = process->incarnation;
    call->key.space = space;
    struct record *record = bpf_map_lookup_elem(&records, &call->key);
    if (!record) return 0;
    call->known = 1;
    if (space == PHYSICAL && __sync_fetch_and_add(&record->references, -1) != 1) return 0;
    call->record = *record;
    call->taken = 1;
    if (bpf_map_delete_elem(&records, &call->key)) {
        record->account = 0; /* of nobody: whoever finds it charges and discharges nothing */
        add(UNDELETED, 1);
    }
    return 1;
}

/* One mapping that is the whole range, which is the rule, is taken like memory that is freed: a handle's number may come again at once. */
static __always_inline void unmap_one(struct call *call) {
    struct process *process = this_process(FIND);
    if (!process) return;
    struct record_key key = {.value = call->arguments[0], .incarnation = process->incarnation, .space = MAPPING};
    struct record *mapping = bpf_map_lookup_elem(&records, &key);
    if (!mapping || mapping->size != call->arguments[1]) return;
    call->extra = mapping->account;
    if (bpf_map_delete_elem(&records, &key)) return;
    call->unmapped = 1;
    take(call, call->extra, PHYSICAL);
}

static __always_inline void give_back(struct call *call) {
    if (call->taken) {
        call->record.references = 1;
        bpf_map_update_elem(&records, &call->key, &call->record, BPF_NOEXIST);
    } else if (call->known) {
        struct record *record = bpf_map_lookup_elem(&records, &call->key);
        if (record) __sync_fetch_and_add(&record->references, 1);
    }
    if (call->unmapped) {
        struct record_key key = {.value = call->arguments[0], .incarnation = call->key.incarnation, .space = MAPPING};
        struct record mapping = {.size = call->arguments[1], .account = call->extra};
        bpf_map_update_elem(&records, &key, &mapping, BPF_NOEXIST);
    }
}

/* One more reference to a handle; a mapping keeps one for itself. */
static __noinline int refer(__u64 handle, __u64 address, __u64 size) {
    struct process *process = this_process(FIND);
    if (!process) return 0;
    struct record_key key = {.value = handle, .incarnation = process->incarnation, .space = PHYSICAL};
    struct record *record = bpf_map_lookup_elem(&records, &key);
    if (!record) return 0;
    if (address) {
        struct record mapping = {.size = size, .account = handle};
        key.value = address;
        key.space = MAPPING;
        if (bpf_map_update_elem(&records, &key, &mapping, BPF_NOEXIST)) return 0;
    }
    __sync_fetch_and_add(&record->references, 1);
    return 1;
}

/* Ends the mappings that cover exactly the range, as the driver itself demands. */
static __noinline int unmap(__u64 address, __u64 size) {
    struct process *process = this_process(FIND);
    if (!process) return 0;
    struct record_key key = {.value = address, .incarnation = process->incarnation, .space = MAPPING};
    struct record *mapping = 0;
    for (int i = 0; i < MAPPINGS && key.value < address + size; i++) {
        mapping = bpf_map_lookup_elem(&records, &key);
        if (!mapping || !mapping->size) return 0;
        key.value += mapping->size;
    }
    if (key.value != address + size) return 0;
    key.value = address;
    for (int i = 0; i < MAPPINGS && key.value < address + size; i++) {
        mapping = bpf_map_lookup_elem(&records, &key);
        if (!mapping) return 0;
        struct record_key physical = {.value = mapping->account, .incarnation = key.incarnation, .space = PHYSICAL};
        __u64 length = mapping->size;
        if (bpf_map_delete_elem(&records, &key)) return 0;
        struct record *record = bpf_map_lookup_elem(&records, &physical);
        if (record && __sync_fetch_and_add(&record->references, -1) == 1) {
            struct record last = *record;
            if (!bpf_map_delete_elem(&records, &physical)) discharge(&last);
        }
        key.value += length;
    }
    return 1;
}

static __noinline int end_memory_of(__u64 context) {
    struct process *process = this_process(FIND);
    if (!process) return 0;
    for (int i = 0; i < ACCOUNTS; i++) {
        __u64 id = process->accounts[i];
        struct account *account = id ? bpf_map_lookup_elem(&accounts, &id) : 0;
        if (!account) continue;
        /* Memory of a context that nobody saw become current is this one's, or an ended one's, where there is no other. */
        if (account->context == context || (!account->context && process->contexts <= 1)) close_account(id);
    }
    return 1;
}

static __always_inline void end_context(__u64 context) {
    end_memory_of(context);
    struct process *process = this_process(FIND);
    if (process && process->contexts) __sync_fetch_and_add(&process->contexts, -1);
}

static __always_inline void enter_context(__u64 context, int push) {
    __u64 thread = bpf_get_current_pid_tgid();
    struct contexts *found = bpf_map_lookup_elem(&threads, &thread);
    if (!found) {
        struct contexts fresh = {.stack = {context}};
        bpf_map_update_elem(&threads, &thread, &fresh, BPF_ANY);
        return;
    }
    if (push)
        for (int i = CONTEXTS - 1; i > 0; i--) found->stack[i] = found->stack[i - 1];
    found->stack[0] = context;
}

static __always_inline void leave_context(void) {
    __u64 thread = bpf_get_current_pid_tgid();
    struct contexts *found = bpf_map_lookup_elem(&threads, &thread);
    if (!found) return;
    for (int i = 0; i < CONTEXTS - 1; i++) found->stack[i] = found->stack[i + 1];
    found->stack[CONTEXTS - 1] = 0;
}

static __always_inline void begin_context(void) {
    struct process *process = this_process(BY_CONTEXT);
    if (process) __sync_fetch_and_add(&process->contexts, 1);
}

static __always_inline void primary(struct call *call, __u32 operation) {
    struct process *process = this_process(BY_CONTEXT);
    if (!process) return;
    struct primary_key key = {
        .incarnation = process->incarnation,
        .device = (__u32)call->arguments[operation == PRIMARY_RETAIN ? 1 : 0],
    };
    struct primary *found = bpf_map_lookup_elem(&primaries, &key);
    if (operation == PRIMARY_RETAIN) {
        struct primary fresh = {.context = read_result(call, 0), .references = 1};
        if (found && found->context != fresh.context) bpf_map_delete_elem(&primaries, &key); /* its end was missed */
        if (!bpf_map_update_elem(&primaries, &key, &fresh, BPF_NOEXIST)) {
            begin_context();
        } else { /* there already, or since another thread was faster */
            found = bpf_map_lookup_elem(&primaries, &key);
            if (found) __sync_fetch_and_add(&found->references, 1);
        }
    } else if (!found) {
        add(UNKNOWN_CONTEXTS, 1);
    } else if (operation == PRIMARY_RESET) { /* what it is referred to by stays, and so does the context */
        end_memory_of(found->context);
    } else if (__sync_fetch_and_add(&found->references, -1) == 1) {
        end_context(found->context);
        bpf_map_delete_elem(&primaries, &key);
    }
}

SEC("uprobe/enter")
int enter(struct pt_regs *ctx) {
    __u64 thread = bpf_get_current_pid_tgid(), sp = ctx->sp, cookie = bpf_get_attach_cookie(ctx);
    struct call *outer = bpf_map_lookup_elem(&calls, &thread);
    if (outer && !outer->ended) {
        if (outer->sp == sp && outer->cookie == cookie) return 0; /* attached twice */
        if (outer->sp >= sp && outer->sp - sp < NEAR && !outer->passed) return 0; /* nested, with the same sp by a tail call */
        add(ABANDONED_CALLS, 1);
        give_back(outer);
    }
    struct call call = {.sp = sp, .cookie = cookie, .arguments = {ctx->di, ctx->si, ctx->dx, ctx->cx}};
    __u32 operation = cookie & 0xff;
    if (operation == FREE)
        take(&call, argument(&call, 0), ADDRESS);
    else if (operation == HANDLE_RELEASE)
        take(&call, call.arguments[0], PHYSICAL);
    else if (operation == MAP)
        call.known = refer(call.arguments[3], call.arguments[0], call.arguments[1]);
    else if (operation == UNMAP)
        unmap_one(&call);
    else if (operation == HANDLE_CREATE)
        bpf_probe_read_user(&call.extra, 4, (void *)call.arguments[2] + 8); /* properties->location.type */
    if (bpf_map_update_elem(&calls, &thread, &call, BPF_ANY)) {
        add(LOST_CALLS, 1);
        if (call.taken) {
            add(ASSUMED_FREES, 1);
            discharge(&call.record);
        } else if (operation == UNMAP && !call.unmapped) {
            unmap(call.arguments[0], call.arguments[1]);
        }
    }
    return 0;
}

static __always_inline int kind_of(__u32 operation) {
    switch (operation) {
    case ALLOCATE_MANAGED:
        return MANAGED;
    case ALLOCATE_HOST:
        return HOST;
    case ALLOCATE_ASYNC:
        return POOL;
    default:
        return DEVICE;
    }
}

static __always_inline void allocated(struct call *call, __u32 operation) {
    struct record_key key = {.value = read_result(call, 0), .space = ADDRESS};
    struct record record = {.size = argument(call, 1), .kind = kind_of(operation)};
    __u64 context = current_context();
    if (operation == ALLOCATE_PITCH) record.size = read_result(call, 1) * argument(call, 3);
    if (operation == POINTER_IMPORT) record.size = 0, record.kind = SHARED;
    if (operation == HANDLE_CREATE || operation == HANDLE_IMPORT) {
        int shared = operation == HANDLE_IMPORT;
        if (!shared && !call->extra) { /* not in memory at the entry, and now that the driver has read it */
            bpf_probe_read_user(&call->extra, 4, (void *)call->arguments[2] + 8);
            if (!call->extra) add(UNKNOWN_LOCATIONS, 1);
        }
        int on_device = call->extra <= 1;
        context = NO_CONTEXT;
        key.space = PHYSICAL;
        record.references = 1;
        record.kind = shared ? SHARED : on_device ? HANDLE : HOST;
        if (shared) record.size = 0;
    }
    if (!key.value) { /* unreadable, or an allocation of nothing */
        if (record.size) add(UNTRACKED_ALLOCATIONS, 1), add(UNTRACKED_BYTES, record.size);
        return;
    }
    store(&key, &record, context);
}

SEC("uretprobe/leave")
int leave(struct pt_regs *ctx) {
    __u64 thread = bpf_get_current_pid_tgid();
    struct call *found = bpf_map_lookup_elem(&calls, &thread);
    if (!found || found->ended || ctx->sp - found->sp > 8) return 0;
    if (found->cookie != bpf_get_attach_cookie(ctx)) {
        found->passed = 1;
        return 0;
    }
    struct call call = *found;
    found->ended = 1;
    if (bpf_map_delete_elem(&calls, &thread)) add(UNDELETED, 1);
    add(CALLS, 1);
    __u32 operation = call.cookie & 0xff, result = ctx->ax;
    if (result) {
        failed(operation, result);
        if (operation == MAP && call.known)
            unmap(call.arguments[0], call.arguments[1]);
        else
            give_back(&call);
        return 0;
    }
    switch (operation) {
    case FREE:
    case HANDLE_RELEASE:
        if (call.taken)
            discharge(&call.record);
        else if (!call.known && call.arguments[0])
            add(UNTRACKED_FREES, 1);
        break;
    case UNMAP:
        if (!call.unmapped) call.known = unmap(call.arguments[0], call.arguments[1]);
        if (call.taken) discharge(&call.record);
        if (!call.known) add(UNTRACKED_FREES, 1);
        break;
    case MAP:
        if (!call.known) add(UNTRACKED_MAPPINGS, 1);
        break;
    case HANDLE_RETAIN:
        refer(read_result(&call, 0), 0, 0);
        break;
    case CONTEXT_CREATE:
        begin_context();
        enter_context(read_result(&call, 0), 1);
        break;
    case CONTEXT_SET:
        enter_context(call.arguments[0], 0);
        break;
    case CONTEXT_PUSH:
        enter_context(call.arguments[0], 1);
        break;
    case CONTEXT_POP:
        leave_context();
        break;
    case CONTEXT_DESTROY:
        end_context(call.arguments[0]);
        break;
    case PRIMARY_RETAIN:
    case PRIMARY_RELEASE:
    case PRIMARY_RESET:
        primary(&call, operation);
        break;
    default:
        allocated(&call, operation);
    }
    return 0;
}

SEC("raw_tp/sched_process_exit")
int on_exit(void *ctx) {
    __u64 thread = bpf_get_current_pid_tgid();
    bpf_map_delete_elem(&calls, &thread);
    bpf_map_delete_elem(&threads, &thread);
    __u32 tgid = thread >> 32;
    if (!bpf_map_lookup_elem(&processes, &tgid)) return 0;
    struct task_struct *task = (void *)bpf_get_current_task();
    if (!BPF_CORE_READ(task, signal, live.counter)) close_process(tgid); /* the last thread, not the main one */
    return 0;
}

SEC("raw_tp/sched_process_exec")
int on_exec(void *ctx) {
    __u64 thread = bpf_get_current_pid_tgid();
    bpf_map_delete_elem(&calls, &thread);
    bpf_map_delete_elem(&threads, &thread);
    close_process(thread >> 32);
    return 0;
}
