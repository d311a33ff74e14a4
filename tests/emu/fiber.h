/* fiber.h: what the emulator needs of a coroutine: a stack and a switch between two. */
#ifndef MERE_EMU_FIBER_H
#define MERE_EMU_FIBER_H

#include <stddef.h>

struct Fiber; /* a saved place to go on at; lives until the process ends */

Fiber *fiber_new(size_t stack_bytes);
/* The next switch to it starts `entry`, which must not return. What the fiber did before is
 * forgotten. */
void fiber_start(Fiber *f, void (*entry)());
/* Leaves the running fiber `from` and goes on with `to`. */
void fiber_switch(Fiber *from, Fiber *to);

#endif
