/* options.h: the command line, read into one struct. Commands, options, help and the checks all
 * come from commands.def and options.def. Strings point into argv or the environment. */
#ifndef MERE_CLI_OPTIONS_H
#define MERE_CLI_OPTIONS_H

#include "base/str.h"

#include <stdio.h>

typedef enum CommandId {
#define COMMAND(id, name, arguments, what) CMD_##id,
#include "cli/commands.def"
#undef COMMAND
    CMD_COUNT
} CommandId;

enum { OPTIONS_LIST_MAX = 64 };
typedef struct OptionList {
    const char *items[OPTIONS_LIST_MAX];
    int n;
} OptionList;

typedef bool OptFLAG;
typedef int64_t OptINT;
typedef double OptREAL;
typedef const char *OptTEXT;
typedef const char *OptCHOICE;
typedef OptionList OptLIST;

typedef struct Options {
    CommandId command;
    const char *topic; /* of help; NULL: none */
#define OPT(field, kind, name, letter, arg, lo, hi, commands, help)                                \
    Opt##kind field;                                                                               \
    bool has_##field;
#include "cli/options.def"
#undef OPT
} Options;

/* Reads argv[1...]. No argument: command help. ERR_USAGE: names the argument and the nearest one
 * that would do. After --help nothing else is checked. */
MUST_CHECK bool options_parse(int argc, char **argv, Options *o, Error *err);

const char *options_command_name(CommandId id);
/* Help of a command; CMD_HELP: the overview. */
void options_print_help(FILE *to, CommandId id);
/* The command of a name. ERR_USAGE with the nearest. */
MUST_CHECK bool options_find_command(const char *name, CommandId *id, Error *err);

#endif
