#include "cli/options.h"

#include <stdlib.h>

enum { NAME_MAX_LEN = 40, HELP_COLUMN = 30 };

/* Sets of commands for options.def. */
#define COMMAND(id, name, arguments, what) id = 1U << CMD_##id,
enum {
#include "cli/commands.def"
    MODEL_ALL = RUN | CHAT | SERVE | BENCH | PERPLEXITY | LOGITS,
    DEVICE_ALL = MODEL_ALL | PLAN | INFO,
    ALL = (1U << CMD_COUNT) - 1
};
#undef COMMAND

static const struct {
    const char *name, *arguments, *what;
} commands[CMD_COUNT] = {
#define COMMAND(id, name, arguments, what) [CMD_##id] = {#name, arguments, what},
#include "cli/commands.def"
#undef COMMAND
};

typedef enum OptKind { KIND_FLAG, KIND_INT, KIND_REAL, KIND_TEXT, KIND_CHOICE, KIND_LIST } OptKind;

typedef struct OptRow {
    const char *name;
    char letter;
    OptKind kind;
    const char *arg;
    double lo, hi;
    unsigned commands;
    const char *help;
    size_t at, has_at; /* offsets in Options */
} OptRow;

static const OptRow rows[] = {
#define OPT(field, kind, name, letter, arg, lo, hi, commands, help)                                \
    {name,                                                                                         \
     letter,                                                                                       \
     KIND_##kind,                                                                                  \
     arg,                                                                                          \
     (double)(lo),                                                                                 \
     (double)(hi),                                                                                 \
     commands,                                                                                     \
     help,                                                                                         \
     offsetof(Options, field),                                                                     \
     offsetof(Options, has_##field)},
#include "cli/options.def"
#undef OPT
};

/* ---- nearest names ---- */

/* Edits between two names: inserted, deleted and changed letters. */
static int distance(const char *a, const char *b)
{
    const size_t n = strlen(b);
    if (strlen(a) > NAME_MAX_LEN || n > NAME_MAX_LEN)
        return NAME_MAX_LEN;
    int row[NAME_MAX_LEN + 1];
    for (size_t j = 0; j <= n; j++)
        row[j] = (int)j;
    for (size_t i = 0; a[i]; i++) {
        int diagonal = row[0];
        row[0] = (int)i + 1;
        for (size_t j = 1; j <= n; j++) {
            const int change = diagonal + (a[i] != b[j - 1]);
            diagonal = row[j];
            const int other = (row[j] < row[j - 1] ? row[j] : row[j - 1]) + 1;
            row[j] = change < other ? change : other;
        }
    }
    return row[n];
}

typedef struct Nearest {
    const char *name;
    int edits;
} Nearest;

static void consider(Nearest *best, const char *given, const char *name)
{
    const size_t len = strlen(given);
    const bool is_prefix = len >= 2 && strncmp(given, name, len) == 0;
    const int edits = is_prefix ? 1 : distance(given, name);
    if (edits < best->edits) {
        best->name = name;
        best->edits = edits;
    }
}

/* ---- values ---- */

static bool option_applies(const OptRow *row, CommandId id)
{
    return (row->commands >> id & 1U) != 0;
}

static bool set_choice(const OptRow *row, const char *value, const char **out, Error *err)
{
    Nearest best = {NULL, 4};
    char name[NAME_MAX_LEN];
    char best_name[NAME_MAX_LEN] = "";
    for (const char *p = row->arg; *p; p += strspn(p, "|")) {
        const size_t len = strcspn(p, "|");
        snprintf(name, sizeof name, "%.*s", (int)len, p);
        if (strcmp(name, value) == 0) {
            *out = value;
            return true;
        }
        const int before = best.edits;
        consider(&best, value, name);
        if (best.edits < before)
            snprintf(best_name, sizeof best_name, "%s", name);
        p += len;
    }
    return err_set(err, ERR_USAGE, "--%s: \"%.60s\" is none of %s%s%s%s", row->name, value,
                   row->arg, *best_name ? " (did you mean " : "", best_name,
                   *best_name ? "?)" : "");
}

static bool set_value(Options *o, const OptRow *row, const char *value, Error *err)
{
    char *field = (char *)o + row->at;
    bool *has = (bool *)((char *)o + row->has_at);
    *has = true;
    switch (row->kind) {
    case KIND_FLAG:
        *(bool *)field = true;
        return true;
    case KIND_INT: {
        int64_t v;
        /* The bounds are exact as doubles except INT64_MAX, which no smaller check needs. */
        if (!str_to_int(str_from(value), INT64_MIN, INT64_MAX, &v) || (double)v < row->lo ||
            (double)v > row->hi)
            return err_set(err, ERR_USAGE, "--%s: \"%.60s\" is no integer from %.0f to %.0f",
                           row->name, value, row->lo, row->hi);
        memcpy(field, &v, sizeof v);
        return true;
    }
    case KIND_REAL: {
        double v;
        if (!str_to_double(str_from(value), &v) || v < row->lo || v > row->hi)
            return err_set(err, ERR_USAGE, "--%s: \"%.60s\" is no number from %g to %g", row->name,
                           value, row->lo, row->hi);
        memcpy(field, &v, sizeof v);
        return true;
    }
    case KIND_TEXT:
        memcpy(field, &value, sizeof value);
        return true;
    case KIND_CHOICE: {
        const char *v = NULL;
        if (!set_choice(row, value, &v, err))
            return false;
        memcpy(field, &v, sizeof v);
        return true;
    }
    case KIND_LIST: {
        OptionList *list = (OptionList *)(void *)field;
        if (list->n == OPTIONS_LIST_MAX)
            return err_set(err, ERR_USAGE, "--%s: given more than %d times", row->name,
                           OPTIONS_LIST_MAX);
        list->items[list->n++] = value;
        return true;
    }
    }
    return true;
}

/* ---- the command line ---- */

/* By name, or by letter when that is not 0. A name may mean one thing to one command and another to
 * the next: the row of `id` goes before others. */
static const OptRow *find_row(const char *name, size_t len, char letter, CommandId id)
{
    const OptRow *found = NULL;
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        const OptRow *row = &rows[i];
        if (letter ? row->letter != letter
                   : strlen(row->name) != len || strncmp(row->name, name, len) != 0)
            continue;
        if (option_applies(row, id))
            return row;
        found = found ? found : row;
    }
    return found;
}

static bool takes_model(CommandId id)
{
    return option_applies(find_row("model", 5, 0, id), id);
}

static bool unknown(const Options *o, const char *arg, Error *err)
{
    char given[NAME_MAX_LEN];
    const char *name = arg + strspn(arg, "-");
    snprintf(given, sizeof given, "%.*s", (int)strcspn(name, "="), name);
    Nearest best = {NULL, 4};
    for (size_t i = 0; i < COUNT_OF(rows); i++)
        if (option_applies(&rows[i], o->command))
            consider(&best, given, rows[i].name);
    if (best.name)
        return err_set(err, ERR_USAGE, "unknown option %.60s (did you mean --%s?)", arg, best.name);
    return err_set(err, ERR_USAGE, "unknown option %.60s; see mere %s --help", arg,
                   commands[o->command].name);
}

/* argv[*i] is an option; *i moves to its value when that is the next argument. */
static bool parse_option(Options *o, int argc, char **argv, int *i, Error *err)
{
    const char *arg = argv[*i];
    const bool is_long = arg[1] == '-';
    const char *eq = is_long ? strchr(arg, '=') : NULL;
    const size_t name_len = eq ? (size_t)(eq - arg - 2) : strlen(arg + 2);
    const OptRow *row = is_long ? find_row(arg + 2, name_len, 0, o->command)
                                : find_row(NULL, 0, arg[1], o->command);
    /* -n64 is -n 64, but letters do not cluster. */
    if (!row || (!is_long && arg[2] && row->kind == KIND_FLAG))
        return unknown(o, arg, err);
    if (!option_applies(row, o->command))
        return err_set(err, ERR_USAGE, "mere %s has no option --%s; see mere %s --help",
                       commands[o->command].name, row->name, commands[o->command].name);
    const char *value = eq ? eq + 1 : !is_long && arg[2] ? arg + 2 : NULL;
    if (row->kind == KIND_FLAG && value)
        return err_set(err, ERR_USAGE, "--%s takes no value", row->name);
    if (row->kind != KIND_FLAG && !value) {
        if (*i + 1 >= argc)
            return err_set(err, ERR_USAGE, "--%s wants %s", row->name, row->arg);
        value = argv[++*i];
    }
    return set_value(o, row, value, err);
}

static bool parse_argument(Options *o, const char *arg, Error *err)
{
    if (o->command == CMD_HELP && !o->topic) {
        o->topic = arg;
    } else if (takes_model(o->command) && !o->has_model) {
        o->model = arg;
        o->has_model = true;
    } else {
        return err_set(err, ERR_USAGE, "unexpected argument \"%.60s\"%s", arg,
                       o->command == CMD_RUN ? " (a prompt goes behind -p)" : "");
    }
    return true;
}

bool options_find_command(const char *name, CommandId *id, Error *err)
{
    Nearest best = {NULL, 4};
    for (int i = 0; i < CMD_COUNT; i++) {
        if (strcmp(commands[i].name, name) == 0) {
            *id = (CommandId)i;
            return true;
        }
        consider(&best, name, commands[i].name);
    }
    if (best.name)
        return err_set(err, ERR_USAGE, "unknown command \"%.60s\" (did you mean %s?)", name,
                       best.name);
    return err_set(err, ERR_USAGE, "unknown command \"%.60s\"; mere help lists them", name);
}

/* Help is asked for anywhere: the rest need not be right. */
static bool wants_help(int argc, char **argv)
{
    for (int i = 2; i < argc && strcmp(argv[i], "--") != 0; i++)
        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0)
            return true;
    return false;
}

bool options_parse(int argc, char **argv, Options *o, Error *err)
{
    *o = (Options){.command = CMD_HELP};
    if (argc < 2 || strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0)
        return true;
    if (strcmp(argv[1], "--version") == 0) {
        o->command = CMD_VERSION;
        return true;
    }
    if (argv[1][0] == '-')
        return err_set(err, ERR_USAGE, "\"%.60s\" comes before a command; mere help lists them",
                       argv[1]);
    if (!options_find_command(argv[1], &o->command, err))
        return false;
    if (wants_help(argc, argv)) {
        o->help = true;
        return true;
    }
    bool only_arguments = false;
    for (int i = 2; i < argc; i++) {
        if (!only_arguments && strcmp(argv[i], "--") == 0) {
            only_arguments = true;
        } else if (!only_arguments && argv[i][0] == '-' && argv[i][1]) {
            if (!parse_option(o, argc, argv, &i, err))
                return false;
        } else if (!parse_argument(o, argv[i], err)) {
            return false;
        }
    }
    if (takes_model(o->command) && !o->has_model && !o->has_from_bundle)
        return err_set(err, ERR_USAGE, "mere %s wants a MODEL: a directory, a .gguf file or a name",
                       commands[o->command].name);
    return true;
}

/* ---- help ---- */

const char *options_command_name(CommandId id)
{
    return commands[id].name;
}

static void print_overview(FILE *to)
{
    fputs("mere runs language models from safetensors and GGUF files.\n\n"
          "usage: mere COMMAND [MODEL] [options]\n\n",
          to);
    for (int i = 0; i < CMD_COUNT; i++)
        fprintf(to, "  %-10s %s\n", commands[i].name, commands[i].what);
    fputs("\nmere COMMAND --help lists a command's options. For example:\n\n"
          "  mere run SmolLM2-135M-Instruct-Q4_1.gguf -p \"Why is the sky blue?\" -n 100\n"
          "  mere serve SmolLM2-135M-Instruct-Q4_1.gguf --port 8080\n\n"
          "exit codes: 0 ok, 1 failed, 2 usage, 3 model or format, 4 does not fit, 5 device,\n"
          "            70 device lost, 130 interrupted\n",
          to);
}

void options_print_help(FILE *to, CommandId id)
{
    if (id == CMD_HELP) {
        print_overview(to);
        return;
    }
    fprintf(to, "usage: mere %s%s%s [options]\n\n%s\n\noptions:\n", commands[id].name,
            *commands[id].arguments ? " " : "", commands[id].arguments, commands[id].what);
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        const OptRow *r = &rows[i];
        if (!option_applies(r, id))
            continue;
        char left[96];
        char letter[8] = "    ";
        if (r->letter)
            snprintf(letter, sizeof letter, "-%c, ", r->letter);
        snprintf(left, sizeof left, "%s--%s%s%s", letter, r->name, r->arg ? " " : "",
                 r->arg ? r->arg : "");
        if (strlen(left) < HELP_COLUMN)
            fprintf(to, "  %-*s %s\n", HELP_COLUMN, left, r->help);
        else
            fprintf(to, "  %s\n  %-*s %s\n", left, HELP_COLUMN, "", r->help);
    }
    if (option_applies(find_row("device", 6, 0, id), id))
        fputs("\nenvironment: MERE_DEVICE, MERE_HOME (the model store)\n", to);
}
