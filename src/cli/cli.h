/* cli.h: what commands share: options into mere.h's structs, errors onto stderr, and opening. Each
 * command is one function, cmd_<name>, that returns the exit code. Main thread. */
#ifndef MERE_CLI_CLI_H
#define MERE_CLI_CLI_H

#include "base/arena.h"
#include "cli/options.h"
#include "mere.h"

typedef struct Cli {
    Options o;
    bool has_colour; /* on stderr */
    MereOptions mere;
    MereEngine *engine;
    MereModel *model;
    double load_ms;   /* engine and model */
    bool is_auto;     /* the engine chose the device */
    bool is_worker;   /* of mere serve: started by a supervisor */
    int interrupt_fd; /* -1: interrupts are not caught, or have been heard */
} Cli;

#define COMMAND(id, name, arguments, what) int cmd_##name(Cli *c);
#include "cli/commands.def"
#undef COMMAND

/* Prints "mere: message" on stderr and returns the exit code of the error. */
int cli_fail(const Cli *c, const Error *err);
int cli_fail_mere(const Cli *c, const MereError *err);
/* A remark on stderr, unless --quiet. */
void cli_note(const Cli *c, const char *fmt, ...) PRINTF(2, 3);
/* After writing stdout: 0, or 1 with a message when it could not be written. */
int cli_flush(const Cli *c);
/* Writes what b holds to stdout and frees it; then as cli_flush. */
int cli_put(const Cli *c, StrBuf *b);

/* c->mere from the options. ERR_USAGE: no device has such a name. ERR_DEVICE: a KV format that is
 * not there, with what is. */
MUST_CHECK bool cli_options(Cli *c, Error *err);
/* The opening functions print what fails and set *exit_code. cli_close undoes both. */
MUST_CHECK bool cli_open_engine(Cli *c, int *exit_code);
MUST_CHECK bool cli_open_model(Cli *c, int *exit_code);
void cli_close(Cli *c);

/* From here on the first Ctrl-C is kept for cli_next (interrupt.h), or ends a load. Before loading,
 * so that no half of the work is lost to a signal that comes early. */
void cli_catch_interrupts(Cli *c);
/* Waits for the next event of a request. An interrupt cancels the request: its END still comes.
 * What the event points to lives until the next call. */
MUST_CHECK bool cli_next(Cli *c, uint64_t request, MereEvent *ev, Error *err);

MereStr cli_str(const char *s);
const char *cli_kv_name(MereKv kv);
const char *cli_numerics(const Cli *c);
/* "92.1 MB" (10^6) in `out`; returns out. */
const char *cli_bytes(uint64_t bytes, char out[24]);
/* n of something in ms milliseconds, a second; 0: there is none to say. */
double cli_rate(int n, double ms);
enum { CLI_MEMORY = 192 };
/* "peak 1.1 GB of 1.2 GB planned, 0 B mapped", and the same of a device with its own memory. */
const char *cli_memory(const Cli *c, char out[CLI_MEMORY]);
/* The member "memory" of an object, with the comma before it. */
void cli_add_memory(const Cli *c, StrBuf *b);

#endif
