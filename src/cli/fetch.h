/* fetch.h: pulls as the command line shows them: one line on a terminal with bytes, speed and time
 * left, remarks on stderr, Ctrl-C. Main thread. */
#ifndef MERE_CLI_FETCH_H
#define MERE_CLI_FETCH_H

#include "cli/cli.h"
#include "weights/pull.h"

/* Brings owner/repo[:quant] into the store; with `bundle` (may be NULL) also writes it there.
 * Returns the exit code. */
int fetch_model(Cli *c, const char *name, const char *bundle);
/* Puts a bundle's model into the store. */
int fetch_bundle(Cli *c, const char *bundle);

/* For `mere run` and `mere chat`: true when the model is here, or was asked for and pulled, or its
 * name is none of a hub (opening it then says what is wrong). Without a terminal nothing is asked.
 */
bool fetch_missing(Cli *c, int *exit_code);

/* One line from the terminal; yes only for "y" and "yes". */
bool fetch_confirm(const char *question);

#endif
