/* A wall clock that is FORGE_TEST_CLOCK seconds off, for a process started with this in LD_PRELOAD. Spans of time
   (the monotonic clock) stay what they are. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static long off(void) {
    const char *said = getenv("FORGE_TEST_CLOCK");
    return said ? atol(said) : 0;
}

int clock_gettime(clockid_t which, struct timespec *at) {
    int failed = syscall(SYS_clock_gettime, which, at);
    if (!failed && (which == CLOCK_REALTIME || which == CLOCK_REALTIME_COARSE)) at->tv_sec += off();
    return failed;
}

int gettimeofday(struct timeval *restrict at, void *restrict zone) {
    int failed = syscall(SYS_gettimeofday, at, zone);
    if (!failed) at->tv_sec += off();
    return failed;
}

time_t time(time_t *at) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (at) *at = now.tv_sec;
    return now.tv_sec;
}
