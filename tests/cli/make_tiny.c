/* make_tiny DIR NAME: writes the tiny reference model NAME below DIR and prints its folder. */
#include "base/json.h"
#include "support/tiny_fill.h"

#include <stdio.h>

int main(int argc, char **argv)
{
    if (argc != 3) {
        fputs("usage: make_tiny DIR NAME\n", stderr);
        return 2;
    }
    json_setup();
    Arena a;
    arena_init(&a, "make_tiny");
    Error err = {0};
    const char *dir = NULL;
    const bool ok = tiny_fill(&a, TEST_DATA, argv[2], argv[1], &dir, &err);
    if (ok)
        puts(dir);
    else
        fprintf(stderr, "make_tiny: %s\n", err.msg);
    arena_free(&a);
    return ok ? 0 : 1;
}
