/* fake_hub.h: a model hub on this machine that can be told to misbehave. It speaks the part of the
 * Hugging Face API that mere uses: /api/models/<repo>/tree/main and /<repo>/resolve/main/<path>.
 * Two ports: the hub's, and another host's for redirects. A thread for each connection. */
#ifndef MERE_TESTS_SUPPORT_FAKE_HUB_H
#define MERE_TESTS_SUPPORT_FAKE_HUB_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>

enum { FAKE_FILES_MAX = 64, FAKE_TRIES = 8 };

typedef struct FakeFile {
    const char *path;
    const char *data;
    size_t n;
    const char *listed_sha256; /* instead of the right one */
    bool no_hash;              /* listed without lfs, with git's hash left out */
    bool elsewhere;            /* a redirect to the other host */
    bool ignores_range;        /* sends all of it, 200 */
    bool lies_range;           /* 206 from another byte than was asked */
    int status[FAKE_TRIES];    /* of the i-th request; 0: served */
    long cut_at[FAKE_TRIES];   /* bytes of the body before the i-th connection breaks; 0: whole */
    long stall_at[FAKE_TRIES]; /* bytes before it stops without closing; 0: never */
    long bytes_s;              /* slower than memory; 0: at once */
    /* what was seen */
    atomic_int n_requests;
    atomic_long served_bytes, first_range; /* of the last request; -1: none */
} FakeFile;

typedef struct FakeHub {
    const char *repo;
    const char *token;       /* wanted for everything at the hub; NULL: none */
    int list_status;         /* 0: the list is served */
    const char *error_code;  /* X-Error-Code beside list_status */
    const char *listing;     /* this text instead of the list of files */
    const char *next;        /* Link header of the list */
    int page;                /* files a page; 0: all */
    const char *redirect_to; /* where files that are elsewhere lead; NULL: the other port */
    int retry_after_s;
    FakeFile files[FAKE_FILES_MAX];
    int n_files;
    /* what was seen */
    atomic_bool token_at_hub, token_elsewhere;
    atomic_int n_requests, n_now, n_most; /* connections at a time */
    /* of its own */
    int port, other_port, fds[2];
    atomic_bool stop;
    atomic_int n_threads;
    pthread_t thread;
} FakeHub;

/* Set files and repo, then start; false: no port to be had. */
bool fake_hub_start(FakeHub *h);
void fake_hub_stop(FakeHub *h);
FakeFile *fake_hub_add(FakeHub *h, const char *path, const char *data, size_t n);
void fake_hub_sha256(const char *data, size_t n, char out[65]);

#endif
