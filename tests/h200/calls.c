/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Calls of the driver in a loop: each line "NAME COUNT" is answered with the nanoseconds that one round took. */
#include <stdint.h>
#include <string.h>

#include "driver.h"

int main(int count, char **arguments) {
    library = dlopen(count > 1 ? arguments[1] : "libcuda.so.1", RTLD_NOW);
    if (!library) return 2;
    int (*init)(unsigned) = find("cuInit"), (*synchronize)(void) = find("cuCtxSynchronize");
    int (*device_get)(int *, int) = find("cuDeviceGet"), (*retain)(void **, int) = find("cuDevicePrimaryCtxRetain");
    int (*set)(void *) = find("cuCtxSetCurrent");
    int (*alloc)(uint64_t *, size_t) = find("cuMemAlloc_v2"), (*release)(uint64_t) = find("cuMemFree_v2");
    int (*alloc_async)(uint64_t *, size_t, void *) = find("cuMemAllocAsync"), (*free_async)(uint64_t, void *) = find("cuMemFreeAsync");
    int device, rounds;
    void *context;
    char name[16];
    check(init(0), "cuInit");
    check(device_get(&device, 0), "cuDeviceGet");
    check(retain(&context, device), "cuDevicePrimaryCtxRetain");
    check(set(context), "cuCtxSetCurrent");
    puts("ready");
    fflush(stdout);
    while (scanf("%15s %d", name, &rounds) == 2) {
        struct timespec began, ended;
        uint64_t address;
        clock_gettime(CLOCK_MONOTONIC, &began);
        for (int i = 0; i < rounds; i++) {
            if (!strcmp(name, "async")) {
                check(alloc_async(&address, 4096, 0), "cuMemAllocAsync");
                check(free_async(address, 0), "cuMemFreeAsync");
            } else if (!strcmp(name, "alloc")) {
                check(alloc(&address, 2 << 20), "cuMemAlloc_v2");
                check(release(address), "cuMemFree_v2");
            } else {
                check(set(context), "cuCtxSetCurrent");
            }
        }
        clock_gettime(CLOCK_MONOTONIC, &ended);
        check(synchronize(), "cuCtxSynchronize");
        printf("%.1f\n", nanoseconds(began, ended, rounds));
        fflush(stdout);
    }
    return 0;
}
