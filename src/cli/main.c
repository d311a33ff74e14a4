/* mere: one program, one file per command. Options: options.def; commands: commands.def. */
#include "base/json.h"
#include "base/log.h"
#include "cli/cli.h"
#include "cli/term.h"

#include <stdlib.h>
#include <unistd.h>

/* Messages quote what clients and files sent: control characters are made visible. One write per
 * line, since any thread may log. */
static void log_to_stderr(void *ctx, LogLevel level, const char *msg)
{
    (void)ctx;
    (void)level;
    flockfile(stderr);
    fputs("mere: ", stderr);
    term_write(stderr, str_from(msg), true);
    fputc('\n', stderr);
    funlockfile(stderr);
}

static bool want_colour(const Options *o)
{
    const char *no = getenv("NO_COLOR");
    if (o->has_color && strcmp(o->color, "always") == 0)
        return true;
    return !(o->has_color && strcmp(o->color, "never") == 0) && !(no && *no) &&
           isatty(STDERR_FILENO);
}

int main(int argc, char **argv)
{
    static int (*const commands[CMD_COUNT])(Cli *) = {
#define COMMAND(id, name, arguments, what) [CMD_##id] = cmd_##name,
#include "cli/commands.def"
#undef COMMAND
    };
    json_setup();
    Cli c = {.interrupt_fd = -1};
    Error err;
    if (!options_parse(argc, argv, &c.o, &err)) {
        c.has_colour = want_colour(&(Options){0});
        return cli_fail(&c, &err);
    }
    c.has_colour = want_colour(&c.o);
    log_set_sink(log_to_stderr, NULL, c.o.quiet ? LOG_ERROR : c.o.verbose ? LOG_INFO : LOG_WARN);
    if (c.o.help) {
        options_print_help(stdout, c.o.command);
        return cli_flush(&c);
    }
    const int rc = commands[c.o.command](&c);
    if (rc == err_exit_code(ERR_LOST)) {
        /* The driver of a lost device may never answer: it is left to the system. */
        (void)fflush(NULL);
        _exit(rc);
    }
    cli_close(&c);
    return rc;
}
