/* mem.h: the only door to the heap (and to large anonymous mappings). Every allocation is counted,
 * so that the memory plan can be compared with what was taken, and can be made to fail, so that the
 * torture tests reach every error path. Any thread. */
#ifndef MERE_BASE_MEM_H
#define MERE_BASE_MEM_H

#include "base/attr.h"

/* malloc, calloc, realloc, free; NULL when out of memory or when a fault is injected. mem_realloc
 * keeps the old block on failure. */
void *mem_alloc(size_t bytes);
void *mem_zalloc(size_t bytes);
void *mem_realloc(void *p, size_t bytes);
void mem_free(void *p);

/* Zeroed anonymous mapping, aligned to 2 MiB when it is that large (MADV_HUGEPAGE), else to a page;
 * never touched here, so the kernel gives pages as they are written. NULL on failure. mem_unmap
 * takes the same size. */
void *mem_map(size_t bytes);
void mem_unmap(void *p, size_t bytes);

/* Bytes now held through this file: heap blocks (usable size) and mappings. */
size_t mem_in_use(void);
size_t mem_peak(void);

/* Fault injection: the n-th allocation from now (1 = the next) fails, and with `sticky` every later
 * one too; 0 turns it off. mem_count_get counts allocations since the last mem_fail_at. */
void mem_fail_at(uint64_t n, bool sticky);
uint64_t mem_count_get(void);

#endif
