/* SPDX-License-Identifier: GPL-3.0-or-later */
/*
 * The functions of libcuda that the probes know, over a counter in place of a GPU. Addresses are reused at once, by whichever thread comes next, as a
 * driver may.
 * The exported names are in entries.S, which jumps here through the entry shape of a driver.
 */
#include <pthread.h>
#include <setjmp.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <unistd.h>

enum { SUCCESS, INVALID_VALUE, OUT_OF_MEMORY, INVALID_HANDLE = 400, LAUNCH_FAILURE = 719 };

#define PAGES 65536
#define PAGE 512
#define MAPPING 65536 /* the least size of one */
#define MAPPINGS 1024

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static uint64_t sizes[PAGES];
static int next_free[PAGES], head = -1, fresh = 1;
static uint64_t base = 0x700000000000, mapped[MAPPINGS];

static int failing; /* the next call that ends memory, or maps it */

int fail_once(void) {
    failing = 1;
    return SUCCESS;
}
static int fails(void) { return __sync_lock_test_and_set(&failing, 0); }

static int take(uint64_t *out, size_t size) {
    if (!size) return INVALID_VALUE;
    if (size > 1ULL << 40) return OUT_OF_MEMORY;
    pthread_mutex_lock(&lock);
    int page = head >= 0 ? head : fresh < PAGES ? fresh : 0;
    if (head >= 0)
        head = next_free[head];
    else if (page)
        fresh++;
    if (page) sizes[page] = size;
    pthread_mutex_unlock(&lock);
    if (!page) return OUT_OF_MEMORY;
    *out = base + (uint64_t)page * PAGE;
    return SUCCESS;
}

static int give(uint64_t address) {
    if (!address) return SUCCESS;
    if (fails()) return LAUNCH_FAILURE;
    uint64_t page = (address - base) / PAGE;
    if (address < base || page >= PAGES) return INVALID_VALUE;
    pthread_mutex_lock(&lock);
    int known = sizes[page] != 0;
    if (known) {
        sizes[page] = 0;
        next_free[page] = head;
        head = page;
    }
    pthread_mutex_unlock(&lock);
    return known ? SUCCESS : INVALID_VALUE;
}

int cuMemAlloc_v2(uint64_t *, size_t);

int impl_cuMemAlloc_v2(uint64_t *out, size_t size) { return take(out, size); }
int impl_cuMemAlloc(uint32_t *out, uint32_t size) {
    uint64_t wide;
    int result = cuMemAlloc_v2(&wide, size); /* a call within a call */
    if (!result) *out = wide;
    return result;
}
int impl_cuMemAllocManaged(uint64_t *out, size_t size, unsigned flags) { return take(out, size); }
int impl_cuMemAllocAsync(uint64_t *out, size_t size, void *stream) { return take(out, size); }
int impl_cuMemAllocFromPoolAsync_ptsz(uint64_t *out, size_t size, void *pool, void *stream) { return take(out, size); }
int impl_cuMemHostAlloc(uint64_t *out, size_t size, unsigned flags) { return take(out, size); }
int impl_cuMemAllocPitch_v2(uint64_t *out, size_t *pitch, size_t width, size_t height, unsigned element) {
    *pitch = (width + 511) / 512 * 512;
    return cuMemAlloc_v2(out, *pitch * height);
}
int impl_cuMemFree_v2(uint64_t address) { return give(address); }
int impl_cuMemFreeAsync(uint64_t address, void *stream) { return give(address); }
int impl_cuMemFreeHost(uint64_t address) { return give(address); }
int impl_cuMemCreate(uint64_t *handle, size_t size, void *properties, uint64_t flags) {
    (void)*(volatile int *)((char *)properties + 8);
    return take(handle, size);
}
int impl_cuMemRelease(uint64_t handle) { return fails() ? LAUNCH_FAILURE : SUCCESS; } /* no handle is used again: a mapping may still need it */
int impl_cuMemMap(uint64_t address, size_t size, size_t offset, uint64_t handle, uint64_t flags) {
    if (!handle) return INVALID_VALUE;
    if (fails()) return LAUNCH_FAILURE;
    mapped[address / MAPPING % MAPPINGS] = handle;
    return SUCCESS;
}
int impl_cuMemRetainAllocationHandle(uint64_t *handle, uint64_t address) {
    *handle = mapped[address / MAPPING % MAPPINGS];
    return SUCCESS;
}
int impl_cuMemUnmap(uint64_t address, size_t size) { return fails() ? LAUNCH_FAILURE : SUCCESS; }
int impl_cuCtxCreate_v2(uint64_t *context, unsigned flags, int device) {
    static uint64_t contexts = 0xc0000;
    *context = __sync_add_and_fetch(&contexts, 16);
    return SUCCESS;
}
int impl_cuCtxPushCurrent_v2(uint64_t context) { return SUCCESS; }
int impl_cuCtxPopCurrent_v2(uint64_t *context) { return SUCCESS; }
int impl_cuCtxSetCurrent(uint64_t context) { return SUCCESS; }
int impl_cuCtxDestroy_v2(uint64_t context) { return SUCCESS; }
int impl_cuDevicePrimaryCtxRetain(uint64_t *context, int device) {
    *context = 0xd0000 + device;
    return SUCCESS;
}
int impl_cuDevicePrimaryCtxRelease_v2(int device) { return SUCCESS; }
int impl_cuDevicePrimaryCtxReset_v2(int device) { return SUCCESS; }
int impl_cuIpcOpenMemHandle_v2(uint64_t *out, ...) { return take(out, 1); }
int impl_cuIpcCloseMemHandle(uint64_t address) { return give(address); }

static jmp_buf where;
static int leaving;

static int launch(uint64_t what, unsigned milliseconds) {
    if (!what) return INVALID_HANDLE;
    if (leaving) longjmp(where, 1);
    if (milliseconds) usleep(1000 * milliseconds);
    return SUCCESS;
}
int cuLaunchKernel(uint64_t, unsigned);
int impl_cuLaunchKernel(uint64_t function, unsigned milliseconds) { return launch(function, milliseconds); }
int impl_cuLaunchKernelEx_ptsz(uint64_t configuration, uint64_t function) { return launch(function, 0); }
int impl_cuLaunchCooperativeKernel(uint64_t function, unsigned milliseconds) { return cuLaunchKernel(function, milliseconds); }
int impl_cuGraphLaunch(uint64_t graph, uint64_t stream) { return launch(graph, 0); }
int launch_many(uint64_t function, uint64_t times) { /* from deep in the stack */
    volatile char deep[65536];
    deep[0] = 0;
    for (uint64_t each = 0; each < times; each++) cuLaunchKernel(function, 0);
    return SUCCESS;
}
int leave_a_launch(uint64_t function, int deep) {
    leaving = 1;
    if (!setjmp(where)) deep ? launch_many(function, 1) : cuLaunchKernel(function, 0);
    leaving = 0;
    return SUCCESS;
}
