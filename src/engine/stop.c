#include "engine/stop.h"

/* Bytes of the longest end of `text` that is a start of `stop`, shorter than all of it. */
static size_t overlap(Str text, Str stop)
{
    size_t n = stop.len - 1 < text.len ? stop.len - 1 : text.len;
    while (n > 0 && memcmp(text.ptr + text.len - n, stop.ptr, n) != 0)
        n--;
    return n;
}

StopFind stop_find(const Str *stops, int n_stops, Str text, size_t old)
{
    /* No stop ended inside the held bytes, so only ends beyond them are new. */
    for (size_t end = old + 1; end <= text.len; end++) {
        size_t longest = 0;
        for (int i = 0; i < n_stops; i++) {
            const Str s = stops[i];
            if (s.len > longest && s.len <= end &&
                memcmp(text.ptr + end - s.len, s.ptr, s.len) == 0)
                longest = s.len;
        }
        if (longest > 0)
            return (StopFind){end - longest, true};
    }
    size_t hold = 0;
    for (int i = 0; i < n_stops; i++) {
        const size_t n = overlap(text, stops[i]);
        hold = n > hold ? n : hold;
    }
    return (StopFind){text.len - hold, false};
}
