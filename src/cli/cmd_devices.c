#include "base/jsonout.h"
#include "cli/cli.h"
#include "cli/term.h"

#include <inttypes.h>

static void add_str(StrBuf *b, const char *key, const char *s)
{
    strbuf_printf(b, "\"%s\":", key);
    jsonout_str(b, str_from(s));
}

/* null for an empty text */
static void add_or_null(StrBuf *b, const char *key, const char *s)
{
    if (*s)
        add_str(b, key, s);
    else
        strbuf_printf(b, "\"%s\":null", key);
    strbuf_add_cstr(b, ",");
}

static int print_json(const Cli *c, const MereDevices *d)
{
    StrBuf b;
    strbuf_init(&b, 1 << 20);
    strbuf_add_cstr(&b, "{\"schema_version\":1,\"devices\":[");
    for (int i = 0; i < d->n_devices; i++) {
        const MereDevice *dev = &d->devices[i];
        strbuf_add_cstr(&b, i ? ",{" : "{");
        add_or_null(&b, "id", dev->id);
        add_or_null(&b, "name", dev->name);
        add_or_null(&b, "driver", dev->driver);
        add_or_null(&b, "arch", dev->arch);
        add_or_null(&b, "pci", dev->pci);
        add_or_null(&b, "same_as", dev->same_as);
        add_or_null(&b, "features", dev->features);
        add_or_null(&b, "advice", dev->advice);
        strbuf_printf(&b,
                      "\"shared_memory\":%s,\"software\":%s,\"auto\":%s,\"total_bytes\":%" PRIu64
                      ",\"free_bytes\":%" PRIu64 "}",
                      dev->shared_memory ? "true" : "false", dev->software ? "true" : "false",
                      dev->is_auto ? "true" : "false", dev->total_bytes, dev->free_bytes);
    }
    strbuf_add_cstr(&b, "],\"backends\":[");
    for (int i = 0; i < d->n_backends; i++) {
        strbuf_add_cstr(&b, i ? ",{" : "{");
        add_or_null(&b, "name", d->backends[i].name);
        add_or_null(&b, "note", d->backends[i].note);
        strbuf_printf(&b, "\"devices\":%d}", d->backends[i].n);
    }
    strbuf_add_cstr(&b, "]}\n");
    return cli_put(c, &b);
}

/* Drivers' texts: control characters are made visible. */
static void line(const char *key, const char *value)
{
    if (!*value)
        return;
    printf("  %-9s ", key);
    term_write(stdout, str_from(value), true);
    putchar('\n');
}

static void print_device(const MereDevice *d)
{
    char total[24];
    char free_bytes[24];
    printf("%-10s ", d->id);
    term_write(stdout, str_from(d->name), true);
    printf("%s%s\n", d->software ? " (software: used when named)" : "",
           d->is_auto ? " (auto)" : "");
    if (*d->same_as)
        printf("  %-9s %s, seen through another interface: its memory is counted there\n",
               "same chip", d->same_as);
    line("driver", d->driver);
    line("arch", d->arch);
    line("pci", d->pci);
    if (d->total_bytes > 0) {
        printf("  %-9s %s, ", "memory", cli_bytes(d->total_bytes, total));
        if (d->free_bytes > 0)
            printf("%s free, ", cli_bytes(d->free_bytes, free_bytes));
        puts(d->shared_memory ? "the host's" : "its own");
    }
    line("features", d->features);
    line("advice", d->advice);
}

int cmd_devices(Cli *c)
{
    MereDevices *d;
    MereError merr = {0};
    if (!mere_devices(&d, &merr))
        return cli_fail_mere(c, &merr);
    int rc;
    if (c->o.json) {
        rc = print_json(c, d);
    } else {
        for (int i = 0; i < d->n_devices; i++)
            print_device(&d->devices[i]);
        for (int i = 0; i < d->n_backends; i++)
            if (*d->backends[i].note) {
                printf("%-10s ", d->backends[i].name);
                term_write(stdout, str_from(d->backends[i].note), true);
                putchar('\n');
            }
        rc = cli_flush(c);
    }
    mere_devices_free(d);
    return rc;
}
