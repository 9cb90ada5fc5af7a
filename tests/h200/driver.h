/* SPDX-License-Identifier: GPL-3.0-or-later */
/* The driver's functions by name, as a program has them that knows no header of CUDA's. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static void *library;

static void *find(const char *name) {
    void *function = dlsym(library, name);
    if (!function) {
        fprintf(stderr, "no %s\n", name);
        exit(3);
    }
    return function;
}

static void check(int result, const char *what) {
    if (result) {
        fprintf(stderr, "%s: %d\n", what, result);
        exit(4);
    }
}

static double nanoseconds(struct timespec began, struct timespec ended, int rounds) {
    return ((ended.tv_sec - began.tv_sec) * 1e9 + (ended.tv_nsec - began.tv_nsec)) / rounds;
}
