/* The models that are here: the store's, and those that other programs keep. */
#include "base/jsonout.h"
#include "cli/cli.h"
#include "cli/term.h"
#include "weights/store.h"

#include <inttypes.h>
#include <time.h>

static int print_json(const Cli *c, const StoreModel *models, int n)
{
    StrBuf b;
    strbuf_init(&b, 64 << 20);
    strbuf_add_cstr(&b, "{\"schema_version\":1,\"models\":[");
    for (int i = 0; i < n; i++) {
        const StoreModel *m = &models[i];
        strbuf_add_cstr(&b, i ? ",{\"name\":" : "{\"name\":");
        jsonout_str(&b, str_from(m->name));
        strbuf_add_cstr(&b, ",\"path\":");
        jsonout_str(&b, str_from(m->path));
        strbuf_add_cstr(&b, ",\"format\":");
        jsonout_str(&b, str_from(m->format));
        strbuf_printf(&b,
                      ",\"origin\":\"%s\",\"size_bytes\":%" PRIu64 ",\"modified_s\":%" PRId64 "}",
                      store_origin_name(m->origin), m->bytes, m->modified_s);
    }
    strbuf_add_cstr(&b, "]}\n");
    return cli_put(c, &b);
}

static void print_table(const StoreModel *models, int n)
{
    char size[24];
    char when[24];
    int width = 4;
    for (int i = 0; i < n; i++)
        width = (int)strlen(models[i].name) > width ? (int)strlen(models[i].name) : width;
    width = width < 60 ? width : 60;
    if (n > 0)
        printf("%-*s  %10s  %-14s  %-16s  %s\n", width, "name", "size", "format", "modified",
               "where");
    for (int i = 0; i < n; i++) {
        const StoreModel *m = &models[i];
        const time_t t = (time_t)m->modified_s;
        struct tm tm;
        if (!localtime_r(&t, &tm) || strftime(when, sizeof when, "%Y-%m-%d %H:%M", &tm) == 0)
            when[0] = '\0';
        term_write(stdout, str_from(m->name), true);
        printf("%*s  %10s  %-14s  %-16s  %s\n",
               width - (int)strlen(m->name) > 0 ? width - (int)strlen(m->name) : 0, "",
               cli_bytes(m->bytes, size), m->format, when, store_origin_name(m->origin));
    }
}

int cmd_list(Cli *c)
{
    Arena a;
    Error err;
    HubRoots roots;
    StoreModel *models;
    int n = 0;
    int rc;
    arena_init(&a, "list");
    if (!hub_roots(&a, &roots, &err) || !store_list(&a, &roots, &models, &n, &err)) {
        rc = cli_fail(c, &err);
    } else if (c->o.json) {
        rc = print_json(c, models, n);
    } else {
        print_table(models, n);
        rc = cli_flush(c);
        if (n == 0)
            cli_note(c, "no models here yet; mere pull owner/repo fetches one");
    }
    arena_free(&a);
    return rc;
}
