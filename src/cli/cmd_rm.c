/* Of the store only: what other programs keep is theirs. */
#include "cli/fetch.h"
#include "weights/store.h"

#include <unistd.h>

enum { SHOWN = 20 };

static bool ask(const Cli *c, const StoreFile *files, int n, Error *err)
{
    uint64_t bytes = 0;
    char size[24];
    char question[400];
    if (c->o.yes)
        return true;
    if (!isatty(STDIN_FILENO) || !isatty(STDERR_FILENO))
        return err_set(err, ERR_USAGE, "%.100s: %d files to delete; without a terminal say --yes",
                       c->o.model, n);
    for (int i = 0; i < n; i++) {
        bytes += files[i].bytes;
        if (i < SHOWN)
            fprintf(stderr, "  %s\n", files[i].path);
    }
    if (n > SHOWN)
        fprintf(stderr, "  ... and %d more\n", n - SHOWN);
    snprintf(question, sizeof question, "Delete these %d files (%s)?", n, cli_bytes(bytes, size));
    return fetch_confirm(question) || err_set(err, ERR_FAILED, "nothing was deleted");
}

int cmd_rm(Cli *c)
{
    Arena a;
    Error err;
    HubRoots roots;
    StoreFile *files;
    int n;
    int rc = 0;
    arena_init(&a, "rm");
    if (hub_roots(&a, &roots, &err) && store_find(&a, &roots, c->o.model, &files, &n, &err) &&
        ask(c, files, n, &err) && store_remove(&a, &roots, c->o.model, &err))
        cli_note(c, "%s: deleted, %d files", c->o.model, n);
    else
        rc = cli_fail(c, &err);
    arena_free(&a);
    return rc;
}
