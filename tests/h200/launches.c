/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Launches and system calls in known numbers: each line "NAME COUNT" is answered with the nanoseconds that one of them took. */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/ioctl.h>

#include "driver.h"

static const char *EMPTY = ".version 7.0\n.target sm_70\n.address_size 64\n.visible .entry empty() { ret; }\n";

int main(int count, char **arguments) {
    library = dlopen(count > 1 ? arguments[1] : "libcuda.so.1", RTLD_NOW);
    if (!library) return 2;
    int (*init)(unsigned) = find("cuInit"), (*synchronize)(void) = find("cuCtxSynchronize");
    int (*device_get)(int *, int) = find("cuDeviceGet"), (*create)(void **, unsigned, int) = find("cuCtxCreate_v2");
    int (*load)(void **, const void *) = find("cuModuleLoadData"), (*get)(void **, void *, const char *) = find("cuModuleGetFunction");
    typedef int launch_t(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **);
    launch_t *launch = find("cuLaunchKernel");
    int (*cooperative)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **) =
        find("cuLaunchCooperativeKernel");
    void *context, *module, *kernel;
    int device, rounds;
    char name[16];
    check(init(0), "cuInit");
    check(device_get(&device, 0), "cuDeviceGet");
    check(create(&context, 4 /* a thread that waits sleeps until an interrupt */, device), "cuCtxCreate");
    check(load(&module, EMPTY), "cuModuleLoadData");
    check(get(&kernel, module, "empty"), "cuModuleGetFunction");
    int control = open("/dev/nvidiactl", O_RDWR | O_CLOEXEC);
    if (control < 0) return 5;
    puts("ready");
    fflush(stdout);
    while (scanf("%15s %d", name, &rounds) == 2) {
        struct timespec began, ended;
        clock_gettime(CLOCK_MONOTONIC, &began);
        for (int i = 0; i < rounds; i++) {
            if (!strcmp(name, "kernel")) {
                check(launch(kernel, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0), "cuLaunchKernel");
            } else if (!strcmp(name, "cooperative")) {
                check(cooperative(kernel, 1, 1, 1, 1, 1, 1, 0, 0, 0), "cuLaunchCooperativeKernel");
            } else if (!strcmp(name, "refused")) {
                if (!launch(kernel, 1, 1, 1, 2048, 1, 1, 0, 0, 0, 0)) return 6; /* more threads than a block can have */
            } else if (!strcmp(name, "wait")) {
                check(launch(kernel, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0), "cuLaunchKernel");
                check(synchronize(), "cuCtxSynchronize");
            } else if (ioctl(control, 0, 0) != -1 || errno == EFAULT) { /* a number that the driver does not have */
                return 7;
            }
        }
        clock_gettime(CLOCK_MONOTONIC, &ended);
        check(synchronize(), "cuCtxSynchronize");
        printf("%.1f\n", nanoseconds(began, ended, rounds));
        fflush(stdout);
    }
    return 0;
}
