/* pull.h: a model from a hub into the store. The one part of mere that uses the network, and only
 * when called; docs/hub.md says what is fetched and what is kept.
 *
 * Files arrive as parts (part.h), are checked, and get their names together when all are whole,
 * config.json last. Whatever ends a pull, the parts stay, and the next one goes on. Main thread. */
#ifndef MERE_WEIGHTS_PULL_H
#define MERE_WEIGHTS_PULL_H

#include "base/arena.h"

enum { PULL_FILES_MAX = 2000 /* of one model */ };

typedef enum PullPhase { PULL_LISTING, PULL_WAITING, PULL_CHECKING, PULL_FETCHING } PullPhase;

typedef struct PullProgress {
    PullPhase phase; /* WAITING: another process pulls the same model */
    uint64_t done_bytes, total_bytes;
    uint64_t fetched_bytes; /* by this call */
    int done_files, n_files;
} PullProgress;

typedef struct PullOptions {
    const char *endpoint, *token, *store; /* token NULL: none */
    const char *revision;                 /* "main" */
    const char *offline;                  /* the variable that forbids the network; NULL: none */
    int jobs;                             /* files at once */
    int n_tries, backoff_ms, low_speed_s; /* pull_http.h */
    bool (*progress)(void *ctx, const PullProgress *p); /* false: stop; ten times a second */
    void (*note)(void *ctx, const char *text);          /* what was chosen, what is tried again */
    void *ctx;
} PullOptions;

typedef struct PullResult {
    const char *name; /* for mere run: "owner/repo", with ":quant" when that was asked for */
    const char *dir;
    const char **files; /* names in dir */
    int n_files;
    uint64_t bytes, fetched_bytes;
} PullResult;

/* From the environment: HF_ENDPOINT (https://huggingface.co), the token (HF_TOKEN, else the file
 * $HF_TOKEN_PATH, $HF_HOME/token or ~/.cache/huggingface/token), MERE_OFFLINE and HF_HUB_OFFLINE.
 * progress, note and store are the caller's to set. */
MUST_CHECK bool pull_options(Arena *a, PullOptions *out, Error *err);

/* `name`: owner/repo[:quant]. ERR_USAGE: no such name. ERR_FAILED: offline. ERR_NOT_FOUND: not at
 * the hub. ERR_IO: the network, or refused (the licence's page is named). ERR_FIT: no room.
 * ERR_FORMAT: what came is not what the hub listed. ERR_CANCELLED: progress said so. */
MUST_CHECK bool pull_model(Arena *a, const PullOptions *o, const char *name, PullResult *out,
                           Error *err);

#endif
