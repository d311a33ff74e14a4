/* fault.h: faults made on purpose, so that every error path of a backend can be walked.
 *
 * MERE_FAULT=NAME:N[:CODE] makes the N-th call of that backend fail with CODE. Calls are counted
 * over the process, and from the start again whenever fault_read finds another value of the
 * variable. Any thread may count; one reads at a time. */
#ifndef MERE_DEVICE_FAULT_H
#define MERE_DEVICE_FAULT_H

#include "base/err.h"

#include <stdatomic.h>

typedef struct Fault {
    const char *name;   /* of the backend */
    int code, min, max; /* without CODE, and what it may be; all the same: there is no CODE */
    char seen[64];
    atomic_uint_fast64_t calls, fail_at; /* fail_at 0: none */
    atomic_int fail_code;
} Fault;

/* ERR_USAGE: the value is not as above. Values for other backends are left to them. */
MUST_CHECK bool fault_read(Fault *f, Error *err);
/* Counts a call: the code with which it must fail, or 0. */
int fault_next(Fault *f);
/* The n-th call from now (1: the next) fails with `code`; n 0: none. */
void fault_at(Fault *f, uint64_t n, int code);

#endif
