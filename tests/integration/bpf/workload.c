/* SPDX-License-Identifier: GPL-3.0-or-later */
/*
 * Calls the library at random from several threads, and knows what it holds: workload LIBRARY SEED THREADS CALLS
 * Memory is freed by whichever thread finds it. Prints the bytes held by kind and the calls made, then does as the next line says: exec, exit or fork.
 */
#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define SLOTS 4096
enum { DEVICE, MANAGED, HOST, POOL, KINDS };

struct memory {
    uint64_t address, size;
    int kind;
};

static int (*alloc[5])(uint64_t *, uint64_t, uint64_t);
static int (*release[KINDS])(uint64_t);
static int (*pitch)(uint64_t *, uint64_t *, uint64_t, uint64_t, unsigned);
static struct memory *slots[SLOTS];
static unsigned seed, calls_each;
static uint64_t made, failed;

static void *find(void *library, const char *name) {
    void *function = dlsym(library, name);
    if (!function) exit(3);
    return function;
}

static void *run(void *argument) {
    unsigned random = seed * 1000 + (unsigned)(uintptr_t)argument;
    for (unsigned i = 0; i < calls_each; i++) {
        struct memory **slot = &slots[rand_r(&random) % SLOTS], *found = __atomic_exchange_n(slot, NULL, __ATOMIC_SEQ_CST);
        __sync_fetch_and_add(&made, 1);
        if (found) {
            if (release[found->kind](found->address)) abort();
            free(found);
            continue;
        }
        struct memory *fresh = malloc(sizeof *fresh);
        int choice = rand_r(&random) % 8, result;
        fresh->size = 1 + rand_r(&random) % 1000000;
        if (choice == 0) { /* fails: too much, or nothing */
            result = alloc[0](&fresh->address, rand_r(&random) % 2 ? 1ULL << 41 : 0, 0);
            if (!result) abort();
            __sync_fetch_and_add(&failed, 1);
            free(fresh);
            continue;
        }
        if (choice == 1) {
            uint64_t row, height = 1 + rand_r(&random) % 100;
            result = pitch(&fresh->address, &row, fresh->size, height, 4);
            fresh->size = row * height;
            fresh->kind = DEVICE;
        } else {
            int which = choice % 5;
            result = alloc[which](&fresh->address, fresh->size, 0);
            fresh->kind = which == 1 ? MANAGED : which == 2 ? HOST : which >= 3 ? POOL : DEVICE;
        }
        if (result) abort();
        fresh = __atomic_exchange_n(slot, fresh, __ATOMIC_SEQ_CST);
        if (fresh) { /* another thread filled the slot meanwhile */
            __sync_fetch_and_add(&made, 1);
            if (release[fresh->kind](fresh->address)) abort();
            free(fresh);
        }
    }
    return NULL;
}

int main(int count, char **arguments) {
    void *library = dlopen(arguments[1], RTLD_NOW);
    pthread_t threads[64];
    char line[16] = "";
    if (count != 5 || !library) return 2;
    const char *names[5] = {"cuMemAlloc_v2", "cuMemAllocManaged", "cuMemHostAlloc", "cuMemAllocAsync", "cuMemAllocFromPoolAsync_ptsz"};
    for (int i = 0; i < 5; i++) alloc[i] = find(library, names[i]);
    release[DEVICE] = release[MANAGED] = find(library, "cuMemFree_v2");
    release[HOST] = find(library, "cuMemFreeHost");
    release[POOL] = find(library, "cuMemFreeAsync");
    pitch = find(library, "cuMemAllocPitch_v2");
    seed = atoi(arguments[2]);
    calls_each = atoi(arguments[4]) / atoi(arguments[3]);
    for (int i = 0; i < atoi(arguments[3]); i++) pthread_create(&threads[i], NULL, run, (void *)(uintptr_t)i);
    for (int i = 0; i < atoi(arguments[3]); i++) pthread_join(threads[i], NULL);

    uint64_t held[KINDS] = {};
    for (int i = 0; i < SLOTS; i++)
        if (slots[i]) held[slots[i]->kind] += slots[i]->size;
    printf("{\"device\": %lu, \"managed\": %lu, \"host\": %lu, \"pool\": %lu, \"made\": %lu, \"failed\": %lu}\n", held[0], held[1], held[2], held[3], made,
           failed);
    fflush(stdout);
    while (fgets(line, sizeof line, stdin)) {
        if (!strcmp(line, "exec\n")) execlp("sleep", "sleep", "600", NULL);
        if (!strcmp(line, "exit\n")) _exit(0);
        if (!strcmp(line, "fork\n") && !fork()) { /* the child is another process, and frees nothing of its parent's */
            for (int i = 0; i < SLOTS; i++)
                if (slots[i]) release[slots[i]->kind](slots[i]->address);
            _exit(0);
        }
    }
    return 0;
}
