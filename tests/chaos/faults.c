/* Preloaded into a process: its file operations fail as `set_fault` says. See storage.py. */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

enum { OPEN = 1, READ = 2, STAT = 4, LIST = 8, CREATE = 16, WRITE = 32, SYNC = 64, RENAME = 128, LOCK = 256, HIDE = 512 };

static char folder[512], part[512];
static int operations, number;
static atomic_int skipped, left;
static atomic_int *happened;

/* Calls of these operations on paths that contain `in` and `where` fail with `error`: after `skip` of them, `times` of
   them. An error of 0 pretends success. `counter` counts. */
void set_fault(const char *in, const char *where, int which, int error, int skip, int times, atomic_int *counter) {
  snprintf(folder, sizeof folder, "%s", in);
  snprintf(part, sizeof part, "%s", where);
  number = error;
  skipped = skip;
  left = times;
  happened = counter;
  operations = which;
}

static int fails(int operation, const char *path) {
  if (!(operations & operation) || !path || !strstr(path, folder) || !strstr(path, part)) return 0;
  if (atomic_fetch_sub(&skipped, 1) > 0 || atomic_fetch_sub(&left, 1) <= 0) return 0;
  atomic_fetch_add(happened, 1);
  errno = number;
  return 1;
}

static int fails_open(int operation, int file) {
  char link[64], path[4096];
  if (!(operations & operation)) return 0;
  snprintf(link, sizeof link, "/proc/self/fd/%d", file);
  ssize_t length = readlink(link, path, sizeof path - 1);
  path[length < 0 ? 0 : length] = 0;
  return fails(operation, path);
}

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))
#define WRAP(kind, name, parameters, arguments, failing) \
  kind name parameters { return failing ? (kind)(number ? -1 : 0) : REAL(name) arguments; }
#define OPENS(name) \
  int name(const char *path, int flags, ...) { \
    va_list more; va_start(more, flags); mode_t mode = va_arg(more, int); va_end(more); \
    return fails(flags & O_ACCMODE ? CREATE : OPEN, path) ? -1 : REAL(name)(path, flags, mode); }
#define OPENS_AT(name) \
  int name(int at, const char *path, int flags, ...) { \
    va_list more; va_start(more, flags); mode_t mode = va_arg(more, int); va_end(more); \
    return fails(flags & O_ACCMODE ? CREATE : OPEN, path) ? -1 : REAL(name)(at, path, flags, mode); }
#define LISTS(kind, name) \
  struct kind *name(DIR *listed) { \
    struct kind *entry = REAL(name)(listed); \
    while (entry && fails(HIDE, entry->d_name)) entry = REAL(name)(listed); \
    return entry; }

OPENS(open)
OPENS(open64)
OPENS_AT(openat)
OPENS_AT(openat64)
WRAP(ssize_t, read, (int file, void *to, size_t size), (file, to, size), fails_open(READ, file))
WRAP(ssize_t, pread, (int file, void *to, size_t size, off_t at), (file, to, size, at), fails_open(READ, file))
WRAP(ssize_t, pread64, (int file, void *to, size_t size, off64_t at), (file, to, size, at), fails_open(READ, file))
WRAP(ssize_t, write, (int file, const void *from, size_t size), (file, from, size), fails_open(WRITE, file))
WRAP(ssize_t, pwrite, (int file, const void *from, size_t size, off_t at), (file, from, size, at), fails_open(WRITE, file))
WRAP(ssize_t, pwrite64, (int file, const void *from, size_t size, off64_t at), (file, from, size, at), fails_open(WRITE, file))
WRAP(ssize_t, writev, (int file, const struct iovec *from, int count), (file, from, count), fails_open(WRITE, file))
WRAP(int, fsync, (int file), (file), fails_open(SYNC, file))
WRAP(int, fdatasync, (int file), (file), fails_open(SYNC, file))
WRAP(int, flock, (int file, int how), (file, how), fails_open(LOCK, file))
WRAP(int, rename, (const char *from, const char *to), (from, to), fails(RENAME, to))
WRAP(int, renameat, (int at, const char *from, int there, const char *to), (at, from, there, to), fails(RENAME, to))
WRAP(int, mkdir, (const char *path, mode_t mode), (path, mode), fails(CREATE, path))
WRAP(int, stat, (const char *path, struct stat *to), (path, to), fails(STAT, path))
WRAP(int, stat64, (const char *path, struct stat64 *to), (path, to), fails(STAT, path))
int __xstat(int, const char *, struct stat *); /* of programs for older systems */
WRAP(int, __xstat, (int version, const char *path, struct stat *to), (version, path, to), fails(STAT, path))
WRAP(int, lstat, (const char *path, struct stat *to), (path, to), fails(STAT, path))
WRAP(int, lstat64, (const char *path, struct stat64 *to), (path, to), fails(STAT, path))
LISTS(dirent, readdir)
LISTS(dirent64, readdir64)

DIR *opendir(const char *path) { return fails(LIST, path) ? NULL : REAL(opendir)(path); }
