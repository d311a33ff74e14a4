/* file.h: files read whole or mapped read-only.
 *
 * A mapped file that another process cuts short faults on access. file_guard_install puts in a
 * SIGBUS handler that maps a zero page over the lost one and sets the map's `broken` flag, so that
 * a step fails instead of the process. Maps are registered in a fixed table (FILE_MAPS_MAX) that
 * the handler can read safely. */
#ifndef MERE_BASE_FILE_H
#define MERE_BASE_FILE_H

#include "base/arena.h"
#include "base/str.h"

enum { FILE_MAPS_MAX = 1024 };

typedef struct FileMap {
    const uint8_t *data; /* page-aligned; NULL for an empty file */
    uint64_t bytes;
    int slot; /* in the guard table */
} FileMap;

/* ERR_NOT_FOUND: no such file. ERR_IO: not a regular file, or the system's reason. */
MUST_CHECK bool file_map(const char *path, FileMap *map, Error *err);
void file_unmap(FileMap *map);
/* A page of this map was lost (the file was cut). */
bool file_map_broken(const FileMap *map);
MUST_CHECK bool file_guard_install(Error *err);

/* The whole file, NUL-terminated, in `a`. ERR_TOO_LONG: larger than max bytes. */
MUST_CHECK bool file_read(Arena *a, const char *path, uint64_t max, Str *out, Error *err);
bool file_exists(const char *path); /* any kind */
bool file_is_dir(const char *path);
uint64_t file_size(const char *path); /* 0 when there is none */

#endif
