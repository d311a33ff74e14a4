/* clock.h: monotonic time. */
#ifndef MERE_BASE_CLOCK_H
#define MERE_BASE_CLOCK_H

#include <stdint.h>

uint64_t clock_ns(void);
static inline double clock_ms(void)
{
    return (double)clock_ns() * 1e-6;
}

#endif
