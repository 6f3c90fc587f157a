/* Delay each flush of a program by FLUSH_DELAY_MS milliseconds; for LD_PRELOAD. See durable.py. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <time.h>

static int flush_and_wait(const char *name, int descriptor)
{
    int (*flush)(int) = (int (*)(int))dlsym(RTLD_NEXT, name);
    double seconds = atof(getenv("FLUSH_DELAY_MS")) / 1e3;
    struct timespec delay = {(time_t)seconds, (long)((seconds - (time_t)seconds) * 1e9)};
    int result = flush(descriptor);
    if (seconds > 0)
        nanosleep(&delay, NULL); /* Even a sleep of 0 s takes some microseconds. */
    return result;
}

int fsync(int descriptor) { return flush_and_wait("fsync", descriptor); }
int fdatasync(int descriptor) { return flush_and_wait("fdatasync", descriptor); }
