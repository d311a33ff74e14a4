/* part.h: one file on its way into the store. It is written as NAME.<tag>.part beside its place and
 * gets its name when size and hash are right, so that under a name there is never a damaged file.
 * The tag comes from the hash: a part of another revision is another file. One thread. */
#ifndef MERE_WEIGHTS_PART_H
#define MERE_WEIGHTS_PART_H

#include "base/str.h"

enum { PART_NAME_MAX = 180, PART_TEMP_MAX = PART_NAME_MAX + 32 };

/* What the file must be. A hash of no letters is not checked; with neither, size alone counts. */
typedef struct PartWant {
    const char *name; /* a plain name, part_name_ok; outlives the part */
    uint64_t bytes;
    char sha256[65]; /* lower-case hex */
    char git[41];    /* SHA-1 of git's blob, lower-case hex */
} PartWant;

/* Called while long files are read; false stops with ERR_CANCELLED. */
typedef bool (*PartTick)(void *ctx, uint64_t read_bytes);

typedef struct Part {
    PartWant want;
    int dir_fd;     /* borrowed */
    int fd;         /* -1: closed */
    uint64_t bytes; /* written so far; the hash covers them */
    void *hash;     /* of OpenSSL; NULL: none is checked, or closed */
    bool is_whole;  /* checked: only the name is missing */
    char temp[PART_TEMP_MAX];
} Part;

/* Letters that may be in a file's name here: one piece of 1 to PART_NAME_MAX bytes, valid UTF-8, no
 * control characters, no '/', no '\\', no '.' first. */
bool part_name_ok(Str name);
/* 64 or 40 letters of lower-case hex. */
bool part_hex_ok(Str hex, size_t len);

void part_init(Part *p, int dir_fd, const PartWant *want);
/* Hashes what an earlier run has left (nothing is opened when there is none). A part that is longer
 * than wanted starts again. */
MUST_CHECK bool part_resume(Part *p, PartTick tick, void *ctx, Error *err);
/* Appends. ERR_FIT: the disk is full. ERR_FORMAT: more than wanted. */
MUST_CHECK bool part_write(Part *p, const void *data, size_t n, Error *err);
MUST_CHECK bool part_restart(Part *p, Error *err); /* from byte 0 */
/* Checks size and hash, and that the bytes are on the disk. ERR_FORMAT: the hash is wrong; the part
 * is gone. */
MUST_CHECK bool part_finish(Part *p, Error *err);
/* Gives a whole part its name, in place of any file that had it, and removes its older parts. */
MUST_CHECK bool part_publish(Part *p, Error *err);
void part_close(Part *p); /* what is written stays, for the next run */

/* Whether dir_fd has a file that is what is wanted. False in *same without an error when it has
 * not.
 */
MUST_CHECK bool part_is_there(int dir_fd, const PartWant *want, bool *same, PartTick tick,
                              void *ctx, Error *err);
/* SHA-256 and size of a regular file (no link). */
MUST_CHECK bool part_hash_file(int dir_fd, const char *name, char sha256[65], uint64_t *bytes,
                               PartTick tick, void *ctx, Error *err);

#endif
