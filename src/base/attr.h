/* attr.h: compiler attributes and the few tiny helpers that every file needs. */
#ifndef MERE_BASE_ATTR_H
#define MERE_BASE_ATTR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#if defined(__GNUC__)
#define MUST_CHECK __attribute__((warn_unused_result))
#define PRINTF(fmt, args) __attribute__((format(printf, fmt, args)))
#define ALWAYS_INLINE inline __attribute__((always_inline))
#else
#define MUST_CHECK
#define PRINTF(fmt, args)
#define ALWAYS_INLINE inline
#endif
#define ALIGNED(n) _Alignas(n)
#define COUNT_OF(array) (sizeof(array) / sizeof((array)[0]))

static inline int64_t i64_min(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static inline int64_t i64_max(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

/* Smallest multiple of `unit` that is >= n. n >= 0, unit > 0. */
static inline int64_t i64_round_up(int64_t n, int64_t unit)
{
    return (n + unit - 1) / unit * unit;
}

#endif
