#include "base/file.h"
#include "cli/fetch.h"

int cmd_pull(Cli *c)
{
    const Options *o = &c->o;
    Error err;
    if (o->has_from_bundle && (o->has_model || o->has_bundle)) {
        err_set(&err, ERR_USAGE, "--from-bundle stands alone: the bundle says what it holds");
        return cli_fail(c, &err);
    }
    if (o->has_from_bundle)
        return fetch_bundle(c, o->from_bundle);
    if (str_ends(str_from(o->model), ".tar") && file_exists(o->model) && !o->has_bundle)
        return fetch_bundle(c, o->model);
    return fetch_model(c, o->model, o->has_bundle ? o->bundle : NULL);
}
