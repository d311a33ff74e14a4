#include "cli/cli.h"

int cmd_help(Cli *c)
{
    CommandId id = CMD_HELP;
    Error err;
    if (c->o.topic && !options_find_command(c->o.topic, &id, &err))
        return cli_fail(c, &err);
    options_print_help(stdout, id);
    return cli_flush(c);
}
