/* Where a model lies and what its files are; mere info tells more of what they hold. */
#include "base/jsonout.h"
#include "cli/cli.h"
#include "cli/term.h"
#include "weights/store.h"

#include <inttypes.h>

typedef struct Shown {
    const char *name, *path, *origin;
    StoreFile *files;
    int n;
    uint64_t bytes;
    MereInfo *info; /* NULL: mere cannot read it, and why: */
    MereError why;
} Shown;

static const char *origin_of(const HubRoots *r, const char *path)
{
    const struct {
        const char *root;
        StoreOrigin origin;
    } roots[] = {{r->store, STORE_OWN},
                 {r->cache, STORE_HF_CACHE},
                 {r->lmstudio[0], STORE_LMSTUDIO},
                 {r->lmstudio[1], STORE_LMSTUDIO},
                 {r->ollama, STORE_OLLAMA}};
    for (size_t i = 0; i < COUNT_OF(roots); i++)
        if (roots[i].root && str_starts(str_from(path), roots[i].root) &&
            path[strlen(roots[i].root)] == '/')
            return store_origin_name(roots[i].origin);
    return "path";
}

static void add_str(StrBuf *b, const char *key, Str s)
{
    strbuf_printf(b, "\"%s\":", key);
    jsonout_str(b, s);
}

static int print_json(const Cli *c, const Shown *s)
{
    StrBuf b;
    strbuf_init(&b, 64 << 20);
    strbuf_add_cstr(&b, "{\"schema_version\":1,");
    add_str(&b, "name", str_from(s->name));
    strbuf_add_cstr(&b, ",");
    add_str(&b, "path", str_from(s->path));
    strbuf_add_cstr(&b, ",");
    add_str(&b, "origin", str_from(s->origin));
    strbuf_printf(&b, ",\"size_bytes\":%" PRIu64 ",\"family\":", s->bytes);
    if (s->info)
        jsonout_str(&b, (Str){s->info->family.ptr, s->info->family.len});
    else
        strbuf_add_cstr(&b, "null");
    strbuf_add_cstr(&b, ",\"formats\":[");
    for (int i = 0; s->info && i < s->info->n_groups; i++) {
        const MereGroup *g = &s->info->groups[i];
        strbuf_add_cstr(&b, i ? ",{" : "{");
        add_str(&b, "role", (Str){g->role.ptr, g->role.len});
        strbuf_add_cstr(&b, ",");
        add_str(&b, "format", (Str){g->format.ptr, g->format.len});
        strbuf_printf(&b, ",\"size_bytes\":%" PRIu64 "}", g->bytes);
    }
    strbuf_add_cstr(&b, "],\"files\":[");
    for (int i = 0; i < s->n; i++) {
        strbuf_add_cstr(&b, i ? ",{" : "{");
        add_str(&b, "path", str_from(s->files[i].path));
        strbuf_printf(&b, ",\"size_bytes\":%" PRIu64 "}", s->files[i].bytes);
    }
    strbuf_add_cstr(&b, "]}\n");
    return cli_put(c, &b);
}

static void line(const char *key, Str value)
{
    printf("%-8s ", key);
    term_write(stdout, value, true);
    putchar('\n');
}

static int print_table(const Cli *c, const Shown *s)
{
    char size[24];
    line("path", str_from(s->path));
    line("where", str_from(s->origin));
    printf("%-8s %s\n", "size", cli_bytes(s->bytes, size));
    if (s->info) {
        line("family", (Str){s->info->family.ptr, s->info->family.len});
        for (int i = 0; i < s->info->n_groups; i++) {
            const MereGroup *g = &s->info->groups[i];
            printf("%-8s %-10.*s %-20.*s %10s\n", i ? "" : "formats", (int)g->role.len, g->role.ptr,
                   (int)g->format.len, g->format.ptr, cli_bytes(g->bytes, size));
        }
    } else {
        line("family", str_from(s->why.msg));
    }
    printf("files\n");
    for (int i = 0; i < s->n; i++) {
        const char *slash = strrchr(s->files[i].path, '/');
        printf("  %10s  ", cli_bytes(s->files[i].bytes, size));
        term_write(stdout, str_from(slash ? slash + 1 : s->files[i].path), true);
        putchar('\n');
    }
    return cli_flush(c);
}

int cmd_show(Cli *c)
{
    Arena a;
    Error err;
    HubRoots roots;
    Shown s = {.name = c->o.model};
    int rc;
    arena_init(&a, "show");
    if (!hub_roots(&a, &roots, &err) || !hub_resolve(&a, &roots, c->o.model, &s.path, &err) ||
        !store_files(&a, s.path, &s.files, &s.n, &err)) {
        rc = cli_fail(c, &err);
    } else {
        for (int i = 0; i < s.n; i++)
            s.bytes += s.files[i].bytes;
        s.origin = origin_of(&roots, s.path);
        if (!mere_info_read(cli_str(s.path), &s.info, &s.why))
            s.info = NULL;
        rc = c->o.json ? print_json(c, &s) : print_table(c, &s);
        if (s.info)
            mere_info_free(s.info);
    }
    arena_free(&a);
    return rc;
}
