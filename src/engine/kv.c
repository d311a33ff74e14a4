#include "engine/kv.h"

#include <inttypes.h>

/* A block of tokens in the prefix tree. Node 0 is the root; its children are salts (the salt's
 * bytes in the place of tokens, n_tokens its length); theirs are first blocks. Inner nodes are full
 * blocks. `page` is -1 where a window group gave it back. */
typedef struct Node {
    int parent, child, next, prev; /* siblings in no order; 0: none */
    int older, newer;              /* list by last use; 0: end */
    int n_tokens;
    int depth; /* blocks from the salt's node, 1 for a first block; 0: a salt */
    int users; /* live sequences whose shared part ends here */
    int32_t page[KV_GROUPS_MAX];
} Node;

typedef struct Snapshot {
    int node;   /* 0: dropped while pinned */
    int offset; /* tokens of the node; 0: unused entry */
    int state;
    int pins;
    uint64_t used;
} Snapshot;

typedef struct Group {
    KvGroup geometry;
    int n_pages, n_free;
    int claimed;    /* sum of the live sequences' `need` */
    int32_t *free;  /* [n_pages] stack */
    int32_t *seqs;  /* [n_pages] live sequences that hold the page */
    int32_t *trees; /* [n_pages] nodes that hold it: 0 or 1, 2 while a short block is replaced */
} Group;

struct Kv {
    KvDesc d;
    int page_tokens, max_blocks;
    Group groups[KV_GROUPS_MAX];
    int n_groups;
    Node *nodes;
    char *block_bytes; /* [n_nodes][block_size] token ids, or a salt */
    size_t block_size;
    int n_nodes, free_node; /* free nodes are chained by `next` */
    int newest, oldest;
    int n_used;
    int32_t *path; /* [max_blocks] nodes of a match */
    Snapshot *snaps;
    int n_snaps;
    int *free_states;
    int n_free_states, n_live_states;
    uint64_t clock;
};

/* ---- sizes ---- */

int kv_seq_pages(const KvGroup *g, int page_tokens, int n_tokens, int max_rows)
{
    const int all = (n_tokens + page_tokens - 1) / page_tokens;
    if (g->window <= 0)
        return all;
    /* A step's first row sees window - 1 positions before it; the span may begin anywhere in a
     * page. */
    const int64_t span = (int64_t)g->window - 1 + max_rows;
    const int64_t most = (span + page_tokens - 1) / page_tokens + 1;
    return (int)i64_min(all, most);
}

int kv_pool_pages(const KvGroup *g, int page_tokens, int ctx, int slots, int max_rows)
{
    int64_t each = kv_seq_pages(g, page_tokens, ctx, max_rows);
    if (g->window > 0)
        each += (g->window + page_tokens - 1) / page_tokens + 1;
    /* A plan may be asked for what no machine holds: it has to say so, not wrap around. */
    return (int)i64_min(each * slots, INT32_MAX);
}

static int count_nodes(const KvDesc *d)
{
    if (!d->share)
        return 1;
    const int blocks = (d->ctx + d->page_tokens - 1) / d->page_tokens;
    int64_t n = (int64_t)blocks * d->slots;
    for (int g = 0; g < d->desc.n_groups; g++)
        n = i64_max(n, d->desc.n_pages[g]);
    n += 2 * (int64_t)d->slots + 16; /* root, salts, short blocks */
    return (int)i64_min(n, INT32_MAX);
}

static size_t block_bytes(const KvDesc *d)
{
    const size_t tokens = (size_t)d->page_tokens * sizeof(int32_t);
    return tokens > KV_SALT_MAX ? tokens : KV_SALT_MAX;
}

int64_t kv_bytes(const KvDesc *d)
{
    const int64_t blocks = (d->ctx + d->page_tokens - 1) / d->page_tokens;
    int64_t n = count_nodes(d) * (int64_t)(sizeof(Node) + block_bytes(d)) + blocks * 4;
    for (int g = 0; g < d->desc.n_groups; g++)
        n += 12 * (int64_t)d->desc.n_pages[g] + blocks * 4 * d->slots;
    return n + d->desc.n_states * (int64_t)(sizeof(Snapshot) + sizeof(int));
}

/* ---- pages ---- */

static void page_put_if_free(Group *g, int p)
{
    if (g->seqs[p] == 0 && g->trees[p] == 0)
        g->free[g->n_free++] = p;
}

static void seq_drop(Group *g, int p)
{
    g->seqs[p]--;
    page_put_if_free(g, p);
}

static void tree_drop(Group *g, int p)
{
    g->trees[p]--;
    page_put_if_free(g, p);
}

/* ---- tree ---- */

static int32_t *node_tokens(const Kv *kv, int n)
{
    return (int32_t *)(void *)(kv->block_bytes + (size_t)n * kv->block_size);
}

static void unlist(Kv *kv, int n)
{
    Node *node = &kv->nodes[n];
    *(node->newer ? &kv->nodes[node->newer].older : &kv->newest) = node->older;
    *(node->older ? &kv->nodes[node->older].newer : &kv->oldest) = node->newer;
    node->newer = node->older = 0;
}

static void list_newest(Kv *kv, int n)
{
    Node *node = &kv->nodes[n];
    node->older = kv->newest;
    node->newer = 0;
    *(kv->newest ? &kv->nodes[kv->newest].newer : &kv->oldest) = n;
    kv->newest = n;
}

/* Used now: the node, then its ancestors, so that a parent is always newer than its children and
 * the oldest end of the list has leaves first. */
static void touch(Kv *kv, int n)
{
    for (; n > 0; n = kv->nodes[n].parent) {
        unlist(kv, n);
        list_newest(kv, n);
    }
}

static void snapshot_free(Kv *kv, Snapshot *s)
{
    if (s->pins > 0) {
        s->node = 0;
        return;
    }
    kv->free_states[kv->n_free_states++] = s->state;
    *s = (Snapshot){0};
}

static void node_free(Kv *kv, int n)
{
    Node *node = &kv->nodes[n];
    for (int i = 0; i < kv->n_snaps; i++)
        if (kv->snaps[i].offset > 0 && kv->snaps[i].node == n)
            snapshot_free(kv, &kv->snaps[i]);
    for (int g = 0; g < kv->n_groups; g++)
        if (node->page[g] >= 0)
            tree_drop(&kv->groups[g], node->page[g]);
    if (node->prev)
        kv->nodes[node->prev].next = node->next;
    else
        kv->nodes[node->parent].child = node->next;
    if (node->next)
        kv->nodes[node->next].prev = node->prev;
    unlist(kv, n);
    node->next = kv->free_node;
    kv->free_node = n;
    kv->n_used--;
}

/* Frees a page of the group that only the tree holds. A full group's block goes with its node, so
 * only leaves can go; a window group's page may leave its node anywhere. The walk passes over what
 * is in use: at most a few thousand nodes, for a page of work worth milliseconds. */
static bool evict_page(Kv *kv, int g)
{
    Group *group = &kv->groups[g];
    for (int n = kv->oldest; n > 0; n = kv->nodes[n].newer) {
        Node *node = &kv->nodes[n];
        const int p = node->page[g];
        if (p < 0 || group->seqs[p] > 0)
            continue;
        if (group->geometry.window > 0) {
            node->page[g] = -1;
            tree_drop(group, p);
        } else if (node->child == 0 && node->users == 0) {
            node_free(kv, n);
        }
        if (group->n_free > 0)
            return true;
    }
    return false;
}

static int page_take(Kv *kv, int g)
{
    Group *group = &kv->groups[g];
    if (group->n_free == 0 && !evict_page(kv, g))
        return -1;
    const int p = group->free[--group->n_free];
    group->seqs[p] = 1;
    return p;
}

/* A new child of `parent`, newest; 0: every node is in use. */
static int node_take(Kv *kv, int parent)
{
    if (!kv->free_node) {
        int n = kv->oldest;
        while (n > 0 && (n == parent || kv->nodes[n].child || kv->nodes[n].users > 0))
            n = kv->nodes[n].newer;
        if (n == 0)
            return 0;
        node_free(kv, n);
    }
    const int n = kv->free_node;
    Node *node = &kv->nodes[n];
    kv->free_node = node->next;
    *node = (Node){.parent = parent, .next = kv->nodes[parent].child};
    for (int g = 0; g < KV_GROUPS_MAX; g++)
        node->page[g] = -1;
    if (node->next)
        kv->nodes[node->next].prev = n;
    kv->nodes[parent].child = n;
    list_newest(kv, n);
    kv->n_used++;
    return n;
}

static int find_salt(const Kv *kv, Str salt)
{
    int n = kv->nodes[0].child;
    while (n > 0 && ((size_t)kv->nodes[n].n_tokens != salt.len ||
                     (salt.len > 0 && memcmp(node_tokens(kv, n), salt.ptr, salt.len) != 0)))
        n = kv->nodes[n].next;
    return n;
}

static int common(const int32_t *a, const int32_t *b, int n)
{
    int i = 0;
    while (i < n && a[i] == b[i])
        i++;
    return i;
}

/* Child of `parent` that begins with these n tokens: a longer or a full block will do. */
static int find_child(const Kv *kv, int parent, const int32_t *tokens, int n)
{
    int c = kv->nodes[parent].child;
    while (c > 0 && (kv->nodes[c].n_tokens < n || common(node_tokens(kv, c), tokens, n) < n))
        c = kv->nodes[c].next;
    return c;
}

/* Short blocks that `n` continues are of no more use; their snapshots move over. */
static void absorb(Kv *kv, int n)
{
    const Node *node = &kv->nodes[n];
    int next;
    for (int c = kv->nodes[node->parent].child; c > 0; c = next) {
        next = kv->nodes[c].next;
        const int len = kv->nodes[c].n_tokens;
        if (c == n || len >= node->n_tokens ||
            common(node_tokens(kv, c), node_tokens(kv, n), len) < len)
            continue;
        for (int i = 0; i < kv->n_snaps; i++)
            if (kv->snaps[i].offset > 0 && kv->snaps[i].node == c)
                kv->snaps[i].node = n;
        node_free(kv, c);
    }
}

/* The sequence's block after its shared ones, its first n_tokens, as a node. 0: no node to be had.
 */
static int insert_block(Kv *kv, KvSeq *seq, const int32_t *tokens, int n_tokens)
{
    const int block = seq->n_shared;
    const int n = node_take(kv, seq->node);
    if (n == 0)
        return 0;
    Node *node = &kv->nodes[n];
    node->n_tokens = n_tokens;
    node->depth = block + 1;
    memcpy(node_tokens(kv, n), tokens + (int64_t)block * kv->page_tokens,
           (size_t)n_tokens * sizeof *tokens);
    for (int g = 0; g < kv->n_groups; g++) {
        const int p = seq->pages[g][block];
        node->page[g] = p;
        if (p >= 0)
            kv->groups[g].trees[p]++;
    }
    absorb(kv, n);
    return n;
}

/* Another sequence had the same block first: both use one copy from here on. So whatever a live
 * sequence reads below its node is also held by the nodes above, which keeps eviction by leaves
 * able to free every page that no sequence holds. */
static void adopt(Kv *kv, KvSeq *seq, int n)
{
    Node *node = &kv->nodes[n];
    for (int g = 0; g < kv->n_groups; g++) {
        Group *group = &kv->groups[g];
        int32_t *mine = &seq->pages[g][seq->n_shared];
        if (*mine < 0 || *mine == node->page[g])
            continue;
        if (node->page[g] < 0) {
            node->page[g] = *mine;
            group->trees[*mine]++;
        } else {
            group->seqs[node->page[g]]++;
            seq_drop(group, *mine);
            *mine = node->page[g];
        }
    }
}

static void move_to(Kv *kv, KvSeq *seq, int n)
{
    if (seq->node >= 0)
        kv->nodes[seq->node].users--;
    if (n >= 0)
        kv->nodes[n].users++;
    seq->node = n;
}

static void share_blocks(Kv *kv, KvSeq *seq, const int32_t *tokens)
{
    const int size = kv->page_tokens;
    while (seq->node >= 0 && (int64_t)(seq->n_shared + 1) * size <= seq->n_tokens) {
        int n = find_child(kv, seq->node, tokens + (int64_t)seq->n_shared * size, size);
        if (n > 0)
            adopt(kv, seq, n);
        else
            n = insert_block(kv, seq, tokens, size);
        if (n == 0) {
            move_to(kv, seq, -1);
            return;
        }
        move_to(kv, seq, n);
        seq->n_shared++;
    }
}

/* ---- open ---- */

bool kv_open(Arena *a, const KvDesc *d, Kv **out, Error *err)
{
    Kv *kv = ARENA_NEW(a, Kv, err);
    if (!kv)
        return false;
    kv->d = *d;
    kv->page_tokens = d->page_tokens;
    kv->max_blocks = (d->ctx + d->page_tokens - 1) / d->page_tokens;
    kv->n_groups = d->desc.n_groups;
    for (int i = 0; i < kv->n_groups; i++) {
        Group *g = &kv->groups[i];
        g->geometry = d->desc.groups[i];
        g->n_pages = d->desc.n_pages[i];
        g->free = ARENA_ARRAY(a, g->n_pages, int32_t, err);
        g->seqs = ARENA_ARRAY(a, g->n_pages, int32_t, err);
        g->trees = ARENA_ARRAY(a, g->n_pages, int32_t, err);
        if (!g->free || !g->seqs || !g->trees)
            return false;
        for (int p = g->n_pages; p > 0; p--) /* low ids come out first */
            g->free[g->n_free++] = p - 1;
    }
    kv->n_nodes = count_nodes(d);
    kv->block_size = block_bytes(d);
    kv->nodes = ARENA_ARRAY(a, kv->n_nodes, Node, err);
    kv->block_bytes = arena_take(a, (size_t)kv->n_nodes, kv->block_size, err);
    kv->path = ARENA_ARRAY(a, kv->max_blocks + 1, int32_t, err);
    if (!kv->nodes || !kv->block_bytes || !kv->path)
        return false;
    for (int n = kv->n_nodes - 1; n > 0; n--) {
        kv->nodes[n].next = kv->free_node;
        kv->free_node = n;
    }
    if (d->desc.state_floats > 0) {
        kv->n_snaps = d->share ? d->desc.n_states - d->slots : 0;
        kv->snaps = ARENA_ARRAY(a, kv->n_snaps + 1, Snapshot, err);
        kv->free_states = ARENA_ARRAY(a, d->desc.n_states, int, err);
        if (!kv->snaps || !kv->free_states)
            return false;
        for (int i = d->desc.n_states; i > 0; i--)
            kv->free_states[kv->n_free_states++] = i - 1;
    }
    *out = kv;
    return true;
}

bool kv_seq_init(Kv *kv, Arena *a, KvSeq *seq, Error *err)
{
    *seq = (KvSeq){.node = -1, .state = -1, .state_in = -1, .snapshot = -1};
    for (int g = 0; g < kv->n_groups; g++) {
        seq->pages[g] = ARENA_ARRAY(a, kv->max_blocks, int32_t, err);
        if (!seq->pages[g])
            return false;
    }
    return true;
}

/* ---- state slots ---- */

static Snapshot *oldest_snapshot(Kv *kv)
{
    Snapshot *best = NULL;
    for (int i = 0; i < kv->n_snaps; i++) {
        Snapshot *s = &kv->snaps[i];
        if (s->offset > 0 && s->pins == 0 && (!best || s->used < best->used))
            best = s;
    }
    return best;
}

/* -1: every slot belongs to a live sequence or is about to be read by one. */
static int state_take(Kv *kv)
{
    if (kv->n_free_states == 0) {
        Snapshot *s = oldest_snapshot(kv);
        if (!s)
            return -1;
        snapshot_free(kv, s);
    }
    return kv->free_states[--kv->n_free_states];
}

static void unpin(Kv *kv, KvSeq *seq)
{
    if (seq->snapshot < 0)
        return;
    Snapshot *s = &kv->snaps[seq->snapshot];
    seq->snapshot = -1;
    if (--s->pins == 0 && s->node == 0)
        snapshot_free(kv, s);
}

/* An unused entry, at the cost of the oldest if need be. NULL: all are pinned, or no budget. */
static Snapshot *snapshot_entry(Kv *kv)
{
    for (int i = 0; i < kv->n_snaps; i++)
        if (kv->snaps[i].offset == 0)
            return &kv->snaps[i];
    Snapshot *s = oldest_snapshot(kv);
    if (s)
        snapshot_free(kv, s);
    return s;
}

/* ---- admission ---- */

typedef struct Match {
    int n_full;  /* nodes of kv->path */
    int partial; /* node that has more, 0: none */
    int n_partial;
    int snapshot; /* -1: none */
} Match;

/* First block that a row at position n of the group sees. */
static int first_seen(const Group *g, int n, int page_tokens)
{
    const int w = g->geometry.window;
    return w <= 0 || n < w ? 0 : (n - w + 1) / page_tokens;
}

/* The nodes still hold what a row after the match sees. */
static bool match_whole(const Kv *kv, const Match *m)
{
    const int n = m->n_full * kv->page_tokens + m->n_partial;
    for (int g = 0; g < kv->n_groups; g++) {
        for (int b = first_seen(&kv->groups[g], n, kv->page_tokens); b < m->n_full; b++)
            if (kv->nodes[kv->path[b]].page[g] < 0)
                return false;
        if (m->n_partial > 0 && kv->nodes[m->partial].page[g] < 0)
            return false;
    }
    return true;
}

/* The longest usable match of ids[0, limit) below `salt`, of a model without recurrent state. */
static Match match_tokens(const Kv *kv, int salt, const int32_t *ids, int limit)
{
    const int size = kv->page_tokens;
    Match m = {0, 0, 0, -1};
    int at = salt;
    while ((int64_t)(m.n_full + 1) * size <= limit) {
        const int c = find_child(kv, at, ids + (int64_t)m.n_full * size, size);
        if (c == 0)
            break;
        kv->path[m.n_full++] = at = c;
    }
    const int64_t done = (int64_t)m.n_full * size;
    for (int c = kv->nodes[at].child; c > 0; c = kv->nodes[c].next) {
        const int64_t most = i64_min(limit - done, kv->nodes[c].n_tokens);
        const int n = common(node_tokens(kv, c), ids + done, (int)most);
        if (n > m.n_partial) {
            m.partial = c;
            m.n_partial = n;
        }
    }
    if (m.n_partial > 0 && !match_whole(kv, &m))
        m.n_partial = m.partial = 0;
    while (m.n_full > 0 && m.n_partial == 0 && !match_whole(kv, &m))
        m.n_full--;
    return m;
}

/* The same where only snapshots can be resumed: the longest whose tokens all agree. */
static Match match_snapshots(const Kv *kv, int salt, const int32_t *ids, int limit)
{
    const int size = kv->page_tokens;
    Match best = {0, 0, 0, -1};
    int64_t best_len = 0;
    for (int i = 0; i < kv->n_snaps; i++) {
        const Snapshot *s = &kv->snaps[i];
        if (s->offset == 0 || s->node == 0)
            continue;
        const int before = kv->nodes[s->node].depth - 1;
        const int64_t len = (int64_t)before * size + s->offset;
        if (len > limit || len <= best_len)
            continue;
        int n = s->node;
        int count = s->offset;
        int block = before;
        while (n != salt && block >= 0 &&
               common(node_tokens(kv, n), ids + (int64_t)block * size, count) == count) {
            kv->path[block--] = n;
            n = kv->nodes[n].parent;
            count = size;
        }
        Match m = {before, s->node, s->offset, i};
        if (s->offset == size)
            m = (Match){before + 1, 0, 0, i};
        if (n == salt && match_whole(kv, &m)) {
            best = m;
            best_len = len;
        }
    }
    if (best.snapshot >= 0) { /* later candidates have written over the path */
        int n = kv->snaps[best.snapshot].node;
        for (int block = kv->nodes[n].depth - 1; block >= 0; block--) {
            kv->path[block] = n;
            n = kv->nodes[n].parent;
        }
    }
    return best;
}

/* Copy on write. The node's pages are held meanwhile, as taking a page may evict others. In a pool
 * that is claimed to the last page there may be none to take: then nothing but the claim of this
 * sequence itself stands on the node's pages, and it has them as they are. */
static void copy_partial(Kv *kv, KvSeq *seq, const Match *m)
{
    Node *node = &kv->nodes[m->partial];
    bool moved = false;
    node->users++;
    for (int g = 0; g < kv->n_groups; g++)
        kv->groups[g].seqs[node->page[g]]++;
    for (int g = 0; g < kv->n_groups; g++) {
        const int from = node->page[g];
        const int to = page_take(kv, g);
        if (to >= 0) {
            kv->d.ops->page_copy(kv->d.device, kv->d.pool, g, from, to, m->n_partial);
            seq_drop(&kv->groups[g], from);
        }
        moved = moved || to < 0;
        seq->pages[g][m->n_full] = to >= 0 ? to : from;
    }
    node->users--;
    if (moved)
        node_free(kv, m->partial);
}

static void take_match(Kv *kv, KvSeq *seq, const Match *m)
{
    const int n = m->n_full * kv->page_tokens + m->n_partial;
    for (int g = 0; g < kv->n_groups; g++) {
        Group *group = &kv->groups[g];
        seq->first[g] = first_seen(group, n, kv->page_tokens);
        for (int b = 0; b < m->n_full; b++) {
            const int p = b < seq->first[g] ? -1 : kv->nodes[kv->path[b]].page[g];
            seq->pages[g][b] = p;
            if (p >= 0)
                group->seqs[p]++;
        }
    }
    seq->n_tokens = n;
    seq->n_blocks = seq->n_shared = m->n_full;
    if (m->snapshot >= 0) {
        Snapshot *s = &kv->snaps[m->snapshot];
        s->pins++;
        s->used = ++kv->clock;
        seq->snapshot = m->snapshot;
        seq->state_in = s->state;
    }
    if (m->n_full > 0)
        move_to(kv, seq, kv->path[m->n_full - 1]);
    touch(kv, m->n_partial > 0 ? m->partial : seq->node);
    if (m->n_partial == 0)
        return;
    copy_partial(kv, seq, m);
    seq->n_blocks = m->n_full + 1;
}

static bool room(const Kv *kv, KvSeq *seq, int n_total)
{
    for (int g = 0; g < kv->n_groups; g++) {
        const Group *group = &kv->groups[g];
        seq->need[g] = kv_seq_pages(&group->geometry, kv->page_tokens, n_total, kv->d.max_rows);
        if (group->claimed + seq->need[g] > group->n_pages)
            return false;
    }
    return true;
}

bool kv_admit(Kv *kv, KvSeq *seq, const int32_t *ids, int n_prompt, int n_total, Str salt,
              bool share)
{
    if (!room(kv, seq, n_total))
        return false;
    const bool has_state = kv->d.desc.state_floats > 0;
    seq->state = seq->state_in = seq->snapshot = -1;
    if (has_state) {
        seq->state = state_take(kv);
        if (seq->state < 0)
            return false;
        kv->n_live_states++;
    }
    for (int g = 0; g < kv->n_groups; g++) {
        kv->groups[g].claimed += seq->need[g];
        seq->first[g] = 0;
    }
    seq->n_tokens = seq->n_ahead = seq->n_blocks = seq->n_shared = 0;
    seq->node = -1;
    seq->live = true;
    if (!share || !kv->d.share)
        return true;
    int root = find_salt(kv, salt);
    if (root == 0) {
        root = node_take(kv, 0);
        if (root == 0)
            return true; /* stays out of the tree */
        kv->nodes[root].n_tokens = (int)salt.len;
        if (salt.len > 0)
            memcpy(node_tokens(kv, root), salt.ptr, salt.len);
    }
    move_to(kv, seq, root);
    const Match m = has_state ? match_snapshots(kv, root, ids, n_prompt - 1)
                              : match_tokens(kv, root, ids, n_prompt - 1);
    take_match(kv, seq, &m);
    return true;
}

/* ---- steps ---- */

bool kv_reserve(Kv *kv, KvSeq *seq, int n_rows, Error *err)
{
    const int64_t end = (int64_t)seq->n_tokens + seq->n_ahead + n_rows;
    const int want = (int)((end + kv->page_tokens - 1) / kv->page_tokens);
    if (want > kv->max_blocks)
        return err_set(err, ERR_FULL, "%" PRId64 " positions, the context has %d", end, kv->d.ctx);
    for (; seq->n_blocks < want; seq->n_blocks++)
        for (int g = 0; g < kv->n_groups; g++) {
            const int p = page_take(kv, g);
            if (p < 0) {
                while (--g >= 0) /* the block counts whole or not at all */
                    seq_drop(&kv->groups[g], seq->pages[g][seq->n_blocks]);
                return err_set(err, ERR_FULL, "no page left for position %d of a sequence",
                               seq->n_blocks * kv->page_tokens);
            }
            seq->pages[g][seq->n_blocks] = p;
        }
    return true;
}

void kv_segment(const Kv *kv, const KvSeq *seq, int n_rows, Segment *out)
{
    out->n_rows = n_rows;
    out->kv_len = seq->n_tokens + seq->n_ahead + n_rows;
    for (int g = 0; g < kv->n_groups; g++)
        out->pages[g] = seq->pages[g];
    out->state_in = seq->state_in;
    out->state_out = seq->state;
}

void kv_ahead(KvSeq *seq, int n_rows)
{
    seq->n_ahead += n_rows;
}

void kv_commit(Kv *kv, KvSeq *seq, const int32_t *tokens, int n_rows)
{
    seq->n_tokens += n_rows;
    seq->n_ahead -= (int)i64_min(seq->n_ahead, n_rows);
    unpin(kv, seq);
    seq->state_in = seq->state;
    share_blocks(kv, seq, tokens);
    for (int g = 0; g < kv->n_groups; g++) {
        const int first = first_seen(&kv->groups[g], seq->n_tokens, kv->page_tokens);
        for (; seq->first[g] < first; seq->first[g]++) {
            int32_t *p = &seq->pages[g][seq->first[g]];
            if (*p >= 0)
                seq_drop(&kv->groups[g], *p);
            *p = -1;
        }
    }
}

/* The node and offset that stand for the sequence as it is now, made if need be. 0: none. */
static int end_node(Kv *kv, KvSeq *seq, const int32_t *tokens, int *offset)
{
    const int64_t from = (int64_t)seq->n_shared * kv->page_tokens;
    const int rest = (int)(seq->n_tokens - from);
    if (rest == 0) {
        *offset = kv->page_tokens;
        return seq->n_shared > 0 ? seq->node : 0;
    }
    *offset = rest;
    const int n = find_child(kv, seq->node, tokens + from, rest);
    return n > 0 ? n : insert_block(kv, seq, tokens, rest);
}

static Snapshot *find_snapshot(Kv *kv, int node, int offset)
{
    for (int i = 0; i < kv->n_snaps; i++)
        if (kv->snaps[i].offset == offset && kv->snaps[i].node == node)
            return &kv->snaps[i];
    return NULL;
}

/* An entry for the sequence's present end, its state yet to be given. NULL: there is one already,
 * or none can be had. */
static Snapshot *new_snapshot(Kv *kv, KvSeq *seq, const int32_t *tokens)
{
    if (kv->n_snaps == 0 || seq->node < 0 || seq->n_tokens == 0)
        return NULL;
    int offset;
    const int node = end_node(kv, seq, tokens, &offset);
    if (node == 0)
        return NULL;
    touch(kv, node);
    Snapshot *s = find_snapshot(kv, node, offset);
    if (s) {
        s->used = ++kv->clock;
        return NULL;
    }
    s = snapshot_entry(kv);
    if (s)
        *s = (Snapshot){node, offset, -1, 0, ++kv->clock};
    return s;
}

void kv_snapshot(Kv *kv, KvSeq *seq, const int32_t *tokens)
{
    Snapshot *s = new_snapshot(kv, seq, tokens);
    if (!s)
        return;
    /* An entry was free, so one of the slots is too: there are as many as entries and sequences. */
    s->state = kv->free_states[--kv->n_free_states];
    kv->d.ops->state_copy(kv->d.device, kv->d.pool, seq->state, s->state);
}

void kv_release(Kv *kv, KvSeq *seq, const int32_t *tokens, bool keep)
{
    unpin(kv, seq);
    if (keep && seq->node >= 0 && seq->n_tokens > 0) {
        if (seq->state >= 0) {
            const bool known = seq->state_in == seq->state && seq->n_ahead == 0;
            Snapshot *s = known ? new_snapshot(kv, seq, tokens) : NULL;
            if (s) { /* the slot changes hands, nothing is copied */
                s->state = seq->state;
                kv->n_live_states--;
                seq->state = -1;
            }
        } else {
            int offset;
            const int n = end_node(kv, seq, tokens, &offset);
            if (n > 0)
                touch(kv, n);
        }
    }
    if (seq->state >= 0) {
        kv->free_states[kv->n_free_states++] = seq->state;
        kv->n_live_states--;
    }
    for (int g = 0; g < kv->n_groups; g++) {
        for (int b = seq->first[g]; b < seq->n_blocks; b++)
            if (seq->pages[g][b] >= 0)
                seq_drop(&kv->groups[g], seq->pages[g][b]);
        kv->groups[g].claimed -= seq->need[g];
    }
    if (seq->node >= 0)
        move_to(kv, seq, -1);
    seq->live = false;
    seq->n_tokens = seq->n_ahead = seq->n_blocks = seq->n_shared = 0;
    seq->state = seq->state_in = -1;
}

void kv_clear(Kv *kv)
{
    /* A parent may be older than its children: again, while something went. */
    for (int before = kv->n_used + 1; before > kv->n_used;) {
        before = kv->n_used;
        int next;
        for (int n = kv->oldest; n > 0; n = next) {
            next = kv->nodes[n].newer;
            if (kv->nodes[n].child == 0 && kv->nodes[n].users == 0)
                node_free(kv, n);
        }
    }
}

/* ---- counts ---- */

KvCounts kv_counts(const Kv *kv)
{
    KvCounts c = {.nodes = kv->n_used, .states_free = kv->n_free_states};
    for (int i = 0; i < kv->n_groups; i++) {
        const Group *g = &kv->groups[i];
        c.total += g->n_pages;
        c.free += g->n_free;
        for (int p = 0; p < g->n_pages; p++)
            c.live += g->seqs[p] > 0;
    }
    c.idle = c.total - c.free - c.live;
    c.states_live = kv->n_live_states;
    c.states_kept = kv->d.desc.state_floats > 0
                        ? kv->d.desc.n_states - kv->n_free_states - kv->n_live_states
                        : 0;
    return c;
}

static bool verify_page(const Kv *kv, int g, int p, const KvSeq *const *seqs, int n_seqs,
                        Error *err)
{
    const Group *group = &kv->groups[g];
    int held = 0;
    int in_tree = 0;
    int listed = 0;
    for (int i = 0; i < n_seqs; i++)
        for (int b = seqs[i]->first[g]; seqs[i]->live && b < seqs[i]->n_blocks; b++)
            held += seqs[i]->pages[g][b] == p;
    for (int n = kv->oldest; n > 0; n = kv->nodes[n].newer)
        in_tree += kv->nodes[n].page[g] == p;
    for (int i = 0; i < group->n_free; i++)
        listed += group->free[i] == p;
    if (held == group->seqs[p] && in_tree == group->trees[p] && listed == (held + in_tree == 0))
        return true;
    return err_set(err, ERR_FAILED,
                   "group %d page %d: %d of %d sequences, %d of %d nodes, %d times free", g, p,
                   (int)group->seqs[p], held, (int)group->trees[p], in_tree, listed);
}

bool kv_verify(const Kv *kv, const KvSeq *const *seqs, int n_seqs, Error *err)
{
    for (int g = 0; g < kv->n_groups; g++) {
        int claimed = 0;
        for (int i = 0; i < n_seqs; i++) {
            if (!seqs[i]->live)
                continue;
            int holds = 0;
            for (int b = seqs[i]->first[g]; b < seqs[i]->n_blocks; b++)
                holds += seqs[i]->pages[g][b] >= 0;
            if (holds > seqs[i]->need[g])
                return err_set(err, ERR_FAILED, "group %d: a sequence holds %d pages, claimed %d",
                               g, holds, seqs[i]->need[g]);
            claimed += seqs[i]->need[g];
        }
        if (claimed != kv->groups[g].claimed)
            return err_set(err, ERR_FAILED, "group %d: %d pages claimed, counted %d", g,
                           kv->groups[g].claimed, claimed);
        for (int p = 0; p < kv->groups[g].n_pages; p++)
            if (!verify_page(kv, g, p, seqs, n_seqs, err))
                return false;
    }
    int used = 0;
    for (int n = kv->oldest; n > 0; n = kv->nodes[n].newer)
        used++;
    int unused = 0;
    for (int n = kv->free_node; n > 0; n = kv->nodes[n].next)
        unused++;
    if (used != kv->n_used || used + unused + 1 != kv->n_nodes)
        return err_set(err, ERR_FAILED, "%d nodes used, %d free, %d counted, %d in all", used,
                       unused, kv->n_used, kv->n_nodes);
    int kept = 0;
    for (int i = 0; i < kv->n_snaps; i++)
        kept += kv->snaps[i].offset > 0;
    const KvCounts c = kv_counts(kv);
    int live = 0;
    for (int i = 0; i < n_seqs; i++)
        live += seqs[i]->live && seqs[i]->state >= 0;
    if (kept != c.states_kept || live != c.states_live)
        return err_set(err, ERR_FAILED, "state slots: %d kept of %d, %d live of %d", c.states_kept,
                       kept, c.states_live, live);
    return true;
}
