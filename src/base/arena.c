#include "base/arena.h"

#include "base/mem.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#if defined(__SANITIZE_ADDRESS__)
#define ARENA_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define ARENA_ASAN 1
#endif
#endif
#ifdef ARENA_ASAN
#include <sanitizer/asan_interface.h>
#define POISON(p, n) __asan_poison_memory_region((p), (n))
#define UNPOISON(p, n) __asan_unpoison_memory_region((p), (n))
#else
#define POISON(p, n) ((void)(p), (void)(n))
#define UNPOISON(p, n) ((void)(p), (void)(n))
#endif

enum { BLOCK_MIN = 4096, BLOCK_MAX = 1 << 20 };

struct ArenaBlock {
    ArenaBlock *prev;
    size_t size; /* bytes in data */
    size_t used;
    unsigned char *data; /* 64-byte aligned, inside this allocation */
};

void arena_init(Arena *a, const char *name)
{
    *a = (Arena){.name = name};
}

static void pop_block(Arena *a)
{
    ArenaBlock *b = a->head;
    a->head = b->prev;
    UNPOISON(b->data, b->size);
    mem_free(b);
}

void arena_free(Arena *a)
{
    while (a->head)
        pop_block(a);
}

static ArenaBlock *push_block(Arena *a, size_t need)
{
    size_t size = a->head ? a->head->size * 2 : BLOCK_MIN;
    if (size > BLOCK_MAX)
        size = BLOCK_MAX;
    if (size < need)
        size = need;
    ArenaBlock *b = mem_alloc(sizeof *b + 64 + size);
    if (!b)
        return NULL;
    *b = (ArenaBlock){.prev = a->head, .size = size};
    b->data = (unsigned char *)(((uintptr_t)(b + 1) + 63) & ~(uintptr_t)63);
    POISON(b->data, b->size);
    a->head = b;
    return b;
}

void *arena_take(Arena *a, size_t n, size_t size, Error *err)
{
    if (size != 0 && n > (SIZE_MAX - 4096) / size) {
        err_set(err, ERR_NOMEM, "%s: %zu items of %zu bytes overflow", a->name, n, size);
        return NULL;
    }
    const size_t bytes = (n * size) != 0 ? n * size : 1;
    const size_t align = bytes >= 64 ? 64 : 16;
    ArenaBlock *b = a->head;
    size_t at = b ? (b->used + align - 1) & ~(align - 1) : 0;
    if (!b || at > b->size || bytes > b->size - at) {
        b = push_block(a, bytes);
        if (!b) {
            err_nomem(err, a->name, bytes);
            return NULL;
        }
        at = 0;
    }
    unsigned char *p = b->data + at;
    b->used = at + bytes;
    UNPOISON(p, bytes);
    memset(p, 0, bytes);
    return p;
}

char *arena_strdup(Arena *a, const char *s, size_t len, Error *err)
{
    if (len == SIZE_MAX)
        return NULL;
    char *p = arena_take(a, len + 1, 1, err);
    if (p && len)
        memcpy(p, s, len);
    return p;
}

char *arena_printf(Arena *a, Error *err, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    va_list again;
    va_copy(again, ap);
    const int n = vsnprintf(NULL, 0, fmt, ap);
    va_end(ap);
    char *p = n < 0 ? NULL : arena_take(a, (size_t)n + 1, 1, err);
    if (p)
        vsnprintf(p, (size_t)n + 1, fmt, again);
    va_end(again);
    return p;
}

ArenaMark arena_mark(const Arena *a)
{
    return (ArenaMark){a->head, a->head ? a->head->used : 0};
}

void arena_rewind(Arena *a, ArenaMark mark)
{
    while (a->head && a->head != mark.block)
        pop_block(a);
    if (a->head) {
        POISON(a->head->data + mark.used, a->head->size - mark.used);
        a->head->used = mark.used;
    }
}

size_t arena_bytes(const Arena *a)
{
    size_t sum = 0;
    for (const ArenaBlock *b = a->head; b; b = b->prev)
        sum += b->size + sizeof *b + 64;
    return sum;
}
