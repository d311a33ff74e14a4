#include "base/mem.h"

#include <malloc.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

static atomic_size_t in_use;
static atomic_size_t peak;
static atomic_uint_fast64_t calls;
static atomic_uint_fast64_t fail_at;
static atomic_bool fail_sticky;

static bool injected(void)
{
    const uint64_t n = atomic_fetch_add_explicit(&calls, 1, memory_order_relaxed) + 1;
    const uint64_t at = atomic_load_explicit(&fail_at, memory_order_relaxed);
    return at != 0 &&
           (n == at || (n > at && atomic_load_explicit(&fail_sticky, memory_order_relaxed)));
}

static void account_add(size_t bytes)
{
    const size_t now = atomic_fetch_add_explicit(&in_use, bytes, memory_order_relaxed) + bytes;
    size_t old = atomic_load_explicit(&peak, memory_order_relaxed);
    while (now > old && !atomic_compare_exchange_weak_explicit(
                            &peak, &old, now, memory_order_relaxed, memory_order_relaxed))
        ;
}

static void account_sub(size_t bytes)
{
    atomic_fetch_sub_explicit(&in_use, bytes, memory_order_relaxed);
}

void *mem_alloc(size_t bytes)
{
    if (injected())
        return NULL;
    void *p = malloc(bytes ? bytes : 1);
    if (p)
        account_add(malloc_usable_size(p));
    return p;
}

void *mem_zalloc(size_t bytes)
{
    if (injected())
        return NULL;
    void *p = calloc(1, bytes ? bytes : 1);
    if (p)
        account_add(malloc_usable_size(p));
    return p;
}

void *mem_realloc(void *p, size_t bytes)
{
    if (injected())
        return NULL;
    const size_t old = p ? malloc_usable_size(p) : 0;
    void *q = realloc(p, bytes ? bytes : 1);
    if (!q)
        return NULL;
    account_sub(old);
    account_add(malloc_usable_size(q));
    return q;
}

void mem_free(void *p)
{
    if (!p)
        return;
    account_sub(malloc_usable_size(p));
    free(p);
}

static const size_t huge_page = (size_t)2 << 20;

void *mem_map(size_t bytes)
{
    if (injected() || bytes == 0 || bytes > SIZE_MAX - huge_page)
        return NULL;
    /* Map one huge page more, then give the unaligned ends back: the rest is aligned, so the kernel
     * can use huge pages. */
    const size_t slack = bytes >= huge_page ? huge_page : 0;
    unsigned char *p = mmap(NULL, bytes + slack, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED)
        return NULL;
    if (slack) {
        const size_t page = 4096;
        const size_t head = (huge_page - ((uintptr_t)p & (huge_page - 1))) & (huge_page - 1);
        const size_t body = (bytes + page - 1) & ~(page - 1);
        if (head)
            munmap(p, head);
        if (slack + bytes > head + body)
            munmap(p + head + body, slack + bytes - head - body);
        p += head;
        madvise(p, body, MADV_HUGEPAGE);
    }
    account_add(bytes);
    return p;
}

void mem_unmap(void *p, size_t bytes)
{
    if (!p)
        return;
    munmap(p, (bytes + 4095) & ~(size_t)4095);
    account_sub(bytes);
}

size_t mem_in_use(void)
{
    return atomic_load_explicit(&in_use, memory_order_relaxed);
}

size_t mem_peak(void)
{
    return atomic_load_explicit(&peak, memory_order_relaxed);
}

void mem_fail_at(uint64_t n, bool sticky)
{
    atomic_store(&calls, 0);
    atomic_store(&fail_sticky, sticky);
    atomic_store(&fail_at, n);
}

uint64_t mem_count_get(void)
{
    return atomic_load(&calls);
}
