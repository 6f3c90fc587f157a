/* Simulate a power cut: after each flush, copy the file to the folder $DISK, which never has what was not flushed.

   cc -shared -fPIC -o LIBRARY power_cut.c -ldl && DISK=FOLDER LD_PRELOAD=LIBRARY COMMAND */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static void copy(int descriptor, int disk)
{
    char link[32], path[4096] = "", data[65536];
    snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
    if (readlink(link, path, sizeof path - 1) < 0)
        abort();
    int target = openat(disk, strrchr(path, '/') + 1, O_WRONLY | O_CREAT | O_TRUNC, 0644);
    ssize_t size;
    for (off_t offset = 0; (size = pread(descriptor, data, sizeof data, offset)) > 0; offset += size)
        if (write(target, data, size) != size)
            abort();
    close(target);
}

static void remove_what_is_gone(int folder, int disk)
{
    DIR *entries = fdopendir(dup(disk));
    for (struct dirent *entry; (entry = readdir(entries));)
        if (faccessat(folder, entry->d_name, F_OK, 0))
            unlinkat(disk, entry->d_name, 0);
    closedir(entries);
}

static int flush(const char *name, int descriptor)
{
    int (*real_flush)(int) = (int (*)(int))dlsym(RTLD_NEXT, name);
    int result = real_flush(descriptor);
    int disk = open(getenv("DISK"), O_RDONLY | O_DIRECTORY);
    struct stat status;
    if (disk < 0 || fstat(descriptor, &status))
        abort();
    (S_ISDIR(status.st_mode) ? remove_what_is_gone : copy)(descriptor, disk);
    close(disk);
    return result;
}

int fsync(int descriptor) { return flush("fsync", descriptor); }
int fdatasync(int descriptor) { return flush("fdatasync", descriptor); }
