/* kv.h: which page of the device's pool holds what.
 *
 * A page holds `page_tokens` positions of every layer of its group (device.h: KvPoolDesc). A live
 * sequence (KvSeq) has a table of pages per group. Pages of finished prompts and answers stay in a
 * prefix tree until their place is needed: a node is one page-sized block of token ids (a leaf may
 * be shorter), under a root per salt, so two sequences share pages exactly as far as salt and ids
 * are equal. A block that is shared in part is copied (copy on write). Groups with a window give
 * pages back as the window passes. Recurrent state has one slot per live sequence and a few
 * snapshots, each at a number of tokens of a node: a sequence of such a model can resume only
 * there.
 *
 * Invariant: a sequence is admitted only when the most pages it can ever hold, added to that of all
 * live ones, are in the pool, so kv_reserve cannot fail later and no sequence is ever put out for
 * another. Pages that only the tree holds are free pages in waiting, evicted oldest first.
 *
 * Engine thread only. All memory comes from the arena of kv_open; nothing is allocated later. */
#ifndef MERE_ENGINE_KV_H
#define MERE_ENGINE_KV_H

#include "base/arena.h"
#include "base/str.h"
#include "device/device.h"

typedef struct Kv Kv;

enum { KV_SALT_MAX = 64 };

typedef struct KvDesc {
    const DeviceOps *ops;
    Device *device;
    KvPool *pool;
    KvPoolDesc desc; /* equal page_tokens in all groups; n_states = slots + snapshots */
    int ctx, slots;
    int max_rows; /* of one sequence that are reserved and not committed */
    int page_tokens;
    bool share; /* keep prefixes */
} KvDesc;

typedef struct KvSeq {
    int32_t *pages[KV_GROUPS_MAX]; /* [ceil(ctx / page_tokens)] */
    int first[KV_GROUPS_MAX];      /* blocks before it have been given back */
    int need[KV_GROUPS_MAX];       /* pages claimed at admission */
    int n_tokens;        /* positions that hold data, or will when what was submitted ran */
    int n_ahead;         /* positions behind them whose rows were submitted before their
                            tokens were known */
    int n_blocks;        /* blocks with pages */
    int n_shared;        /* full blocks that are in the tree */
    int node;            /* of the last of them; -1: this sequence stays out of the tree */
    int state_in, state; /* slots; state_in -1: fresh. -1: the model has no such state */
    int snapshot;        /* pinned until the first step; -1: none */
    bool live;
} KvSeq;

/* Most pages of group g that a sequence of n_tokens can hold at once. */
int kv_seq_pages(const KvGroup *g, int page_tokens, int n_tokens, int max_rows);
/* Pages of the pool: `slots` sequences of ctx tokens, and for windows as much again for prefixes.
 */
int kv_pool_pages(const KvGroup *g, int page_tokens, int ctx, int slots, int max_rows);
int64_t kv_bytes(const KvDesc *d); /* host memory that kv_open and the sequences take */

MUST_CHECK bool kv_open(Arena *a, const KvDesc *d, Kv **out, Error *err);
/* Tables for one sequence; it is admitted and released many times. */
MUST_CHECK bool kv_seq_init(Kv *kv, Arena *a, KvSeq *seq, Error *err);

/* Starts a sequence that will hold at most n_total tokens and begins with ids[n_prompt]. Takes what
 * the tree already has: seq->n_tokens < n_prompt positions are ready. `share` false: neither uses
 * nor feeds the tree. False: no room now; try again when another was released. `salt` is at most
 * KV_SALT_MAX bytes. n_prompt >= 1. */
bool kv_admit(Kv *kv, KvSeq *seq, const int32_t *ids, int n_prompt, int n_total, Str salt,
              bool share);
/* Pages for n_rows more positions behind n_tokens + n_ahead. ERR_FULL: more than was claimed (a
 * mistake of the caller). */
MUST_CHECK bool kv_reserve(Kv *kv, KvSeq *seq, int n_rows, Error *err);
/* The segment for a step that appends n_rows, which kv_reserve made room for. row0 is the caller's.
 */
void kv_segment(const Kv *kv, const KvSeq *seq, int n_rows, Segment *out);
/* The step was submitted before the tokens of its n_rows are known: kv_commit will tell them. */
void kv_ahead(KvSeq *seq, int n_rows);
/* The step was submitted (it need not have run: devices run steps, copies and later steps in
 * order): n_rows more positions hold `tokens` (all of the sequence, from 0), those ahead first.
 * Full blocks join the tree. If the step fails after all, kv_clear has to follow. */
void kv_commit(Kv *kv, KvSeq *seq, const int32_t *tokens, int n_rows);
/* Keeps a copy of the state as it is after n_tokens (n_ahead is 0). Does nothing where there is no
 * such state or no budget. */
void kv_snapshot(Kv *kv, KvSeq *seq, const int32_t *tokens);
/* Ends the sequence. keep: its last, short block and its state join the tree too (a state with rows
 * ahead does not: nobody knows what it stands for). */
void kv_release(Kv *kv, KvSeq *seq, const int32_t *tokens, bool keep);
/* Gives back everything that only the tree holds. */
void kv_clear(Kv *kv);

typedef struct KvCounts {
    int live, idle, free,
        total; /* pages of all groups: held by sequences, by the tree alone, by none */
    int states_live, states_kept, states_free;
    int nodes;
} KvCounts;
KvCounts kv_counts(const Kv *kv);
/* Every reference, list and sum recounted: for tests. False and `err` name the first that differs.
 */
MUST_CHECK bool kv_verify(const Kv *kv, const KvSeq *const *seqs, int n_seqs, Error *err);

#endif
