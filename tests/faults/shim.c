/* Faults of a file system and a clock, for a program that is started with LD_PRELOAD.

   FAULT_COUNTER   a file of 8 bytes that counts what FAULT_KIND names, in all processes
   FAULT_KIND      full: writes to plain files fail, no space left
                   locks: files cannot be locked
                   clock: the clock is a day back
   FAULT_AFTER     how many such calls do well before; -1 for all                            */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

static long *counter;
static long after = -1;
static enum { NONE, FULL, LOCKS, CLOCK } kind;
#define DAY_S 86400
#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

__attribute__((constructor)) static void begin(void) {
    const char *named = getenv("FAULT_KIND"), *file = getenv("FAULT_COUNTER");
    const char *times = getenv("FAULT_AFTER");
    if (!named || !file) return;
    kind = !strcmp(named, "full") ? FULL : !strcmp(named, "locks") ? LOCKS : CLOCK;
    after = times ? atol(times) : -1;
    int handle = open(file, O_RDWR);
    if (handle < 0) return;
    void *page = mmap(NULL, 8, PROT_READ | PROT_WRITE, MAP_SHARED, handle, 0);
    if (page != MAP_FAILED) counter = page;
    close(handle);
}

static int fails(void) {
    if (!counter) return 0;
    long seen = __sync_fetch_and_add(counter, 1);
    return after >= 0 && seen >= after;
}

static int is_full(int handle) {
    struct stat about;
    if (kind != FULL || fstat(handle, &about) || !S_ISREG(about.st_mode)) return 0;
    return fails();
}

ssize_t write(int handle, const void *from, size_t size) {
    if (is_full(handle)) return errno = ENOSPC, -1;
    return REAL(write)(handle, from, size);
}
ssize_t pwrite(int handle, const void *from, size_t size, off_t at) {
    if (is_full(handle)) return errno = ENOSPC, -1;
    return REAL(pwrite)(handle, from, size, at);
}
ssize_t pwrite64(int handle, const void *from, size_t size, off64_t at) {
    if (is_full(handle)) return errno = ENOSPC, -1;
    return REAL(pwrite64)(handle, from, size, at);
}
ssize_t writev(int handle, const struct iovec *from, int count) {
    if (is_full(handle)) return errno = ENOSPC, -1;
    return REAL(writev)(handle, from, count);
}
int ftruncate(int handle, off_t size) {
    if (size && is_full(handle)) return errno = ENOSPC, -1;
    return REAL(ftruncate)(handle, size);
}
int flock(int handle, int how) {
    if (kind == LOCKS && fails()) return errno = ENOLCK, -1;
    return REAL(flock)(handle, how);
}
static int locks(int command) {
    return kind == LOCKS && (command == F_SETLK || command == F_SETLKW) && fails();
}
int fcntl(int handle, int command, ...) {
    va_list rest;
    va_start(rest, command);
    void *argument = va_arg(rest, void *);
    va_end(rest);
    if (locks(command)) return errno = ENOLCK, -1;
    return REAL(fcntl)(handle, command, argument);
}
int fcntl64(int handle, int command, ...) {
    va_list rest;
    va_start(rest, command);
    void *argument = va_arg(rest, void *);
    va_end(rest);
    if (locks(command)) return errno = ENOLCK, -1;
    return ((int (*)(int, int, ...))dlsym(RTLD_NEXT, "fcntl64"))(handle, command, argument);
}
int clock_gettime(clockid_t which, struct timespec *now) {
    int code = REAL(clock_gettime)(which, now);
    if (kind == CLOCK && !code && which == CLOCK_REALTIME) now->tv_sec -= DAY_S;
    return code;
}
time_t time(time_t *now) {
    time_t found = REAL(time)(NULL) - (kind == CLOCK ? DAY_S : 0);
    if (now) *now = found;
    return found;
}
