/* Stop strings: however the text is cut into pieces, the same text comes out and the same stop ends
 * it, and what was given out is never more than is certain. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "engine/stop.h"

#include <stdlib.h>
#include <string.h>

typedef struct Run {
    char out[256];
    size_t n;
    bool stopped;
} Run;

/* Feeds `text` in pieces that end where `cuts` has a bit. */
static Run feed(const Str *stops, int n, const char *text, uint64_t cuts)
{
    Run r = {.n = 0};
    char held[256];
    size_t n_held = 0;
    size_t old = 0;
    const size_t len = strlen(text);
    for (size_t i = 0; i < len && !r.stopped; i++) {
        held[n_held++] = text[i];
        if (i + 1 < len && !(cuts >> (i % 64) & 1))
            continue;
        const StopFind f = stop_find(stops, n, (Str){held, n_held}, old);
        memcpy(r.out + r.n, held, f.give);
        r.n += f.give;
        r.stopped = f.stopped;
        n_held -= f.give;
        memmove(held, held + f.give, n_held);
        old = n_held;
    }
    if (!r.stopped) {
        memcpy(r.out + r.n, held, n_held);
        r.n += n_held;
    }
    r.out[r.n] = '\0';
    return r;
}

static void known_cases(void **state)
{
    (void)state;
    const struct {
        const char *text, *stops[4], *out;
        bool stopped;
    } cases[] = {
        {"hello END there", {"END"}, "hello ", true},
        {"hello EN there", {"END"}, "hello EN there", false},
        {"EEND", {"END"}, "E", true},
        {"aab", {"ab"}, "a", true},
        {"ababac", {"abac"}, "ab", true},
        {"xyz", {"xyz", "y"}, "x", true}, /* "y" is complete first */
        {"xyz", {"yz", "xyz"}, "", true}, /* together: the one that began first */
        {"text E", {"END"}, "text E", false},
        {"\n\n", {"\n\n"}, "", true},
        {"a", {"a"}, "", true},
        {"caf\xc3\xa9 au lait", {"\xc3\xa9 au"}, "caf", true},
    };
    for (size_t c = 0; c < COUNT_OF(cases); c++) {
        Str stops[4];
        int n = 0;
        while (n < 4 && cases[c].stops[n]) {
            stops[n] = str_from(cases[c].stops[n]);
            n++;
        }
        for (uint64_t cuts = 0; cuts < 1U << 14; cuts++) {
            const Run r = feed(stops, n, cases[c].text, cuts);
            if (strcmp(r.out, cases[c].out) != 0 || r.stopped != cases[c].stopped)
                fail_msg("case %zu cuts %llx: \"%s\" (%d), wanted \"%s\" (%d)", c,
                         (unsigned long long)cuts, r.out, r.stopped, cases[c].out,
                         cases[c].stopped);
        }
    }
}

static void random_cuts_agree(void **state)
{
    (void)state;
    srand(7);
    for (int round = 0; round < 20000; round++) {
        char text[41];
        char words[3][5];
        Str stops[3];
        for (int i = 0; i < 40; i++)
            text[i] = (char)('a' + rand() % 2);
        text[40] = '\0';
        const int n = 1 + rand() % 3;
        for (int s = 0; s < n; s++) {
            const int len = 2 + rand() % 3;
            for (int i = 0; i < len; i++)
                words[s][i] = (char)('a' + rand() % 3);
            stops[s] = (Str){words[s], (size_t)len};
        }
        const Run whole = feed(stops, n, text, 0);
        const Run cut = feed(stops, n, text, ((uint64_t)rand() << 31) ^ (uint64_t)rand());
        if (strcmp(whole.out, cut.out) != 0 || whole.stopped != cut.stopped)
            fail_msg("round %d: \"%s\" and \"%s\" of %s", round, whole.out, cut.out, text);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(known_cases),
        cmocka_unit_test(random_cuts_agree),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
