/* Copyright (c) The gpuops.remediation maintainers
 * GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
 * SPDX-License-Identifier: GPL-3.0-or-later
 *
 * A process on a GPU: joins a cgroup, opens device files, tells its pid, and waits.
 *   holder CGROUP_PROCS ENDS DEVICE...      ENDS: normal | late:SECONDS | never
 * SIGTERM ends it at once, after that many seconds, or not at all. SIGKILL ends it too, unless it is `never`: then its supervisor traces
 * it and holds it at the door of its exit, device files still open, as a driver does that cannot tear a client down. Whoever ends that
 * supervisor (the second number printed, else 0) lets it go.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <error.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

static unsigned int late;

static void on_term(int signal_number) {
    (void)signal_number;
    unsigned int left = alarm(late); /* SIGALRM ends us; a second SIGTERM must not put it off */
    if (left)
        alarm(left);
}

static void detach(void) { /* whoever started us waits for the end of our output */
    int null = open("/dev/null", O_RDWR);
    for (int stream = 0; stream < 3; stream++)
        dup2(null, stream);
    if (null > 2)
        close(null);
}

static void hold(char **argv, int never, const int *release, int ready) {
    char go;
    if (never && read(release[0], &go, 1) != 1) /* until the supervisor has its hands on us */
        _exit(1);
    close(release[0]), close(release[1]);
    int procs = open(argv[1], O_WRONLY | O_CLOEXEC);
    if (procs < 0 || write(procs, "0", 1) != 1)
        error(1, errno, "%s", argv[1]);
    close(procs);
    for (char **device = argv + 3; *device; device++)
        if (open(*device, O_RDWR) < 0)
            error(1, errno, "%s", *device);
    if (never)
        signal(SIGTERM, SIG_IGN);
    else if (sscanf(argv[2], "late:%u", &late) == 1)
        sigaction(SIGTERM, &(struct sigaction){.sa_handler = on_term}, NULL);
    detach();
    if (write(ready, "+", 1) != 1)
        _exit(1);
    close(ready);
    for (;;)
        pause();
}

/* Reaps the holder at once, whatever init does; while it traces, it also decides when the holder is gone. */
static void supervise(pid_t pid) {
    int status;
    while (waitpid(pid, &status, __WALL) == pid && WIFSTOPPED(status)) {
        int event = status >> 16;
        unsigned long end = 0;
        if (event == PTRACE_EVENT_EXIT && !ptrace(PTRACE_GETEVENTMSG, pid, 0, &end) && WIFSIGNALED(end))
            for (;;)
                pause();
        if (event == PTRACE_EVENT_STOP)
            ptrace(PTRACE_LISTEN, pid, 0, 0);
        else
            ptrace(PTRACE_CONT, pid, 0, event ? 0 : WSTOPSIG(status));
    }
}

int main(int argc, char **argv) {
    int release[2], ready[2];
    char byte;
    if (argc < 3 || pipe2(release, O_CLOEXEC) || pipe2(ready, O_CLOEXEC))
        error(2, errno, "usage: holder CGROUP_PROCS normal|late:SECONDS|never DEVICE...");
    int never = !strcmp(argv[2], "never");
    if (fork()) {
        close(ready[1]); /* so that the read ends when both others are gone, which is when a start has failed */
        return read(ready[0], &byte, 1) == 1 ? 0 : 1;
    }
    setsid();
    close(ready[0]);
    pid_t pid = fork();
    if (pid == 0) {
        setsid();
        hold(argv, never, release, ready[1]);
    }
    if (never && ptrace(PTRACE_SEIZE, pid, 0, PTRACE_O_TRACEEXIT | PTRACE_O_EXITKILL))
        error(1, errno, "cannot trace %d", pid);
    printf("%d %d\n", pid, never ? getpid() : 0);
    fflush(stdout);
    if (never && write(release[1], "+", 1) != 1)
        return 1;
    prctl(PR_SET_NAME, "gpusim-hold");
    detach();
    supervise(pid);
    return 0;
}
