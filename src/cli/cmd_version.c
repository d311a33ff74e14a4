#include "cli/cli.h"

int cmd_version(Cli *c)
{
    if (c->o.json)
        printf("{\"schema_version\":1,\"version\":\"%s\"}\n", mere_version());
    else
        printf("mere %s\n", mere_version());
    return cli_flush(c);
}
