/* arena.h: memory of one lifetime (process, model, request, step). A function that returns memory
 * takes the Arena it comes from as its first argument; freeing the lifetime is one call. Not
 * thread-safe: one arena, one thread at a time.
 *
 * Blocks grow on demand (each at least twice the last, 4 KiB to 1 MiB; larger requests get their
 * own), are chained, and come from mem.h. Under ASan, space that was rewound or not yet given out
 * is poisoned. */
#ifndef MERE_BASE_ARENA_H
#define MERE_BASE_ARENA_H

#include "base/err.h"

typedef struct ArenaBlock ArenaBlock;
typedef struct Arena {
    ArenaBlock *head; /* newest block */
    const char *name; /* for error messages; not owned */
} Arena;
typedef struct ArenaMark {
    ArenaBlock *block;
    size_t used;
} ArenaMark;

void arena_init(Arena *a, const char *name);
void arena_free(Arena *a); /* everything; the arena may be used again */

/* Zeroed, aligned to 64 bytes when size >= 64, else to 16. NULL and `err` set when out of memory or
 * n * size overflows. */
void *arena_take(Arena *a, size_t n, size_t size, Error *err);
#define ARENA_NEW(arena, type, err) ((type *)arena_take((arena), 1, sizeof(type), (err)))
#define ARENA_ARRAY(arena, n, type, err)                                                           \
    ((type *)arena_take((arena), (size_t)(n), sizeof(type), (err)))

/* NUL-terminated copy of len bytes. */
char *arena_strdup(Arena *a, const char *s, size_t len, Error *err);
char *arena_printf(Arena *a, Error *err, const char *fmt, ...) PRINTF(3, 4);

/* Scratch: what was taken after the mark is given back. */
ArenaMark arena_mark(const Arena *a);
void arena_rewind(Arena *a, ArenaMark mark);
size_t arena_bytes(const Arena *a); /* bytes held from mem.h */

#endif
