/* stop.h: stop strings in text that arrives in pieces. Text that may be the start of a stop is held
 * until it is decided, so a stop is found wherever the borders of tokens fall, and what is given
 * out never has to be taken back. The stop that is complete first wins; of several that end
 * together, the one that began first. No memory of its own: the buffer is the caller's StrBuf. */
#ifndef MERE_ENGINE_STOP_H
#define MERE_ENGINE_STOP_H

#include "base/str.h"

enum { STOP_MAX = 16, STOP_BYTES_MAX = 256 };

typedef struct StopFind {
    size_t give;  /* bytes at the start of the text that are certain */
    bool stopped; /* a stop begins at `give`; the rest of the text is it and what follows */
} StopFind;

/* `text` is what was held before with the new piece appended; `old` bytes of it were held. Stops
 * are not empty. */
StopFind stop_find(const Str *stops, int n_stops, Str text, size_t old);

#endif
