/* Delay each flush by FLUSH_DELAY_MS milliseconds: cc -shared -fPIC -o FILE delayed_flush.c; LD_PRELOAD=FILE COMMAND */
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
    nanosleep(&delay, NULL);
    return result;
}

int fsync(int descriptor) { return flush_and_wait("fsync", descriptor); }
int fdatasync(int descriptor) { return flush_and_wait("fdatasync", descriptor); }
