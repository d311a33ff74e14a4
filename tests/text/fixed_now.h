/* fixed_now.h: the time that templates are rendered at in tests. */
#ifndef MERE_TESTS_TEXT_FIXED_NOW_H
#define MERE_TESTS_TEXT_FIXED_NOW_H

#include <time.h>

/* 2026-03-14 15:09:26, a Saturday. */
static const struct tm fixed_now = {.tm_year = 126,
                                    .tm_mon = 2,
                                    .tm_mday = 14,
                                    .tm_hour = 15,
                                    .tm_min = 9,
                                    .tm_sec = 26,
                                    .tm_wday = 6,
                                    .tm_yday = 72};

#endif
