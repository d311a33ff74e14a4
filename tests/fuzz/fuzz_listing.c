/* A hub's list of files and what is chosen from it. The input is up to three texts with a byte 255
 * (in no valid JSON) between them: a page, another page, model.safetensors.index.json. */
#include "base/json.h"
#include "weights/listing.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static Str next_text(const uint8_t **at, const uint8_t *end)
{
    const uint8_t *from = *at;
    const uint8_t *to = from;
    while (to < end && *to != 255)
        to++;
    *at = to < end ? to + 1 : end;
    return (Str){(const char *)from, (size_t)(to - from)};
}

/* Whether a piece of the path is "..". */
static bool climbs(const char *path)
{
    for (const char *at = path; (at = strstr(at, "..")) != NULL; at++)
        if ((at == path || at[-1] == '/') && (at[2] == '/' || at[2] == '\0'))
            return true;
    return false;
}

/* Names that would be written to the store. */
static void check(const ListingChoice *c)
{
    for (int i = 0; i < c->n; i++)
        if (!part_name_ok(str_from(c->files[i]->want.name)) || climbs(c->files[i]->path) ||
            c->files[i]->path[0] == '/')
            abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char *const quants[] = {"", "Q4_K_M", "Q8_0"};
    Arena a;
    Error err = {0};
    if (!data)
        return 0;
    const uint8_t *at = data;
    const uint8_t *end = data + size;
    Listing all = {0};
    json_setup();
    arena_init(&a, "fuzz");
    bool ok = listing_add(&a, "page", next_text(&at, end), &all, &err);
    if (ok && at < end)
        ok = listing_add(&a, "page", next_text(&at, end), &all, &err);
    const Str index = next_text(&at, end);
    for (size_t i = 0; ok && i < COUNT_OF(quants); i++) {
        ListingChoice c;
        if (!listing_choose(&a, "fuzz", &all, str_from(quants[i]), &c, &err))
            continue;
        check(&c);
        if (c.index && listing_choose_shards(&a, &all, index, &c, &err))
            check(&c);
    }
    arena_free(&a);
    return 0;
}
