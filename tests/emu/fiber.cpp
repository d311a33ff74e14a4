#include "emu/fiber.h"

#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#define UNPOISON(p, n) __asan_unpoison_memory_region(p, n)
#else
#define UNPOISON(p, n) ((void)0)
#endif

/* Below the stack lies a page without access, so that an overflow ends the process at once. */
static uint8_t *stack_new(size_t bytes)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    void *p = mmap(NULL, bytes + page, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED || mprotect(p, page, PROT_NONE) != 0)
        abort();
    return (uint8_t *)p + page;
}

#if defined(__x86_64__)

struct Fiber {
    void *sp;
    uint8_t *stack;
    size_t bytes;
};

extern "C" void emu_fiber_switch(void **save, void *to);
/* Callee-saved registers on the stack, the stack pointer in *save: what swapcontext does without
 * its two system calls. */
asm(".text\n"
    ".p2align 4\n"
    ".type emu_fiber_switch,@function\n"
    "emu_fiber_switch:\n"
    "  pushq %rbp\n  pushq %rbx\n  pushq %r12\n  pushq %r13\n  pushq %r14\n  pushq %r15\n"
    "  movq %rsp, (%rdi)\n"
    "  movq %rsi, %rsp\n"
    "  popq %r15\n  popq %r14\n  popq %r13\n  popq %r12\n  popq %rbx\n  popq %rbp\n"
    "  ret\n"
    ".size emu_fiber_switch,.-emu_fiber_switch\n");

Fiber *fiber_new(size_t stack_bytes)
{
    Fiber *f = (Fiber *)calloc(1, sizeof *f);
    if (!f)
        abort();
    if (stack_bytes)
        f->stack = stack_new(stack_bytes);
    f->bytes = stack_bytes;
    return f;
}

void fiber_start(Fiber *f, void (*entry)())
{
    UNPOISON(f->stack, f->bytes); /* frames that were never left */
    void **top =
        (void **)(f->stack + f->bytes) - 2; /* 16-aligned: `entry` sees the stack as after a call */
    top[1] = NULL;
    top[0] = (void *)entry;
    for (int i = 1; i <= 6; i++)
        top[-i] = NULL;
    f->sp = top - 6;
}

void fiber_switch(Fiber *from, Fiber *to)
{
    emu_fiber_switch(&from->sp, to->sp);
}

#else

#include <ucontext.h>

struct Fiber {
    ucontext_t context;
    uint8_t *stack;
    size_t bytes;
};

Fiber *fiber_new(size_t stack_bytes)
{
    Fiber *f = (Fiber *)calloc(1, sizeof *f);
    if (!f)
        abort();
    if (stack_bytes)
        f->stack = stack_new(stack_bytes);
    f->bytes = stack_bytes;
    return f;
}

void fiber_start(Fiber *f, void (*entry)())
{
    UNPOISON(f->stack, f->bytes);
    if (getcontext(&f->context) != 0)
        abort();
    f->context.uc_stack.ss_sp = f->stack;
    f->context.uc_stack.ss_size = f->bytes;
    f->context.uc_link = NULL;
    makecontext(&f->context, entry, 0);
}

void fiber_switch(Fiber *from, Fiber *to)
{
    if (swapcontext(&from->context, &to->context) != 0)
        abort();
}

#endif
