/* Attention over a store and a request's own rows: scores never kept, no masks.
 *
 * A line is one query head of one row; the lines that read one KV head share its keys and values. Keys go by in tiles
 * of 64 positions, tiles in chunks of 1,024. Both begin at multiples of absolute positions, and a tile that a line does
 * not see leaves it bit by bit as it was: so a line's result depends neither on its block nor on the shares. */

#define TILE 64
#define CHUNK 1024
#define BLOCK 64   /* lines that share a tile of keys; a multiple of the next */
#define ABREAST 16 /* lines of a matrix tile */

struct attention {
    const void *q, *k, *v;
    void *keys, *values, *out, *workspace;
    const int32_t *spans; /* [requests, 4]: lane, start, count, first row */
    int64_t rows, requests, query_heads, kv_heads, dim, slots, lane_stride, head_stride;
    int64_t q_stride, k_stride, v_stride, window;
    int causal, keep, act, given, held; /* `given` is v's type, `held` that of stored values */
    int64_t threads;
};

/* Lines [first, first + lines) of a request's KV head, and the positions [low, high) that any of them sees. */
struct item {
    int64_t request, head, first, lines, low, high, chunk;
};

struct attention_job {
    struct attention a;
    float *rooms, *joined, *wave; /* the threads' own; a state; those of chunks `first` and after it */
    int64_t tasks, first, lines, padded; /* lines of a state, at most BLOCK; channels rounded up to lanes */
    int64_t state, room;          /* floats of a state, and of what a thread has */
    int split, pairs, tiled; /* whether chunks are tasks of their own; whether products take pairs of BF16; in tiles */
    int laced;               /* whether FP32 totals have even channels beside odd ones, vector by vector */
};

/* A state: the greatest score and the sum of weights of each line, then the weighted sums [lines, padded]. */
INLINE float *peak_of(float *state) { return state; }
INLINE float *sum_of(float *state) { return state + BLOCK; }
INLINE float *total_of(float *state) { return state + 2 * BLOCK; }

/* The state of `lines` lines that have seen nothing; a line is never looked at but with up to 15 neighbours. */
static void clear(float *state, int64_t lines, int64_t padded) {
    lines = above(lines, 16);
    memset(sum_of(state), 0, lines * sizeof *state);
    memset(total_of(state), 0, lines * padded * sizeof *state);
    for (int64_t i = 0; i < lines; i++) peak_of(state)[i] = -INFINITY;
}

/* The positions [low, high) that a row sees, of those that are live. */
INLINE void sight(const struct attention *a, int64_t request, int64_t row, int64_t *low, int64_t *high) {
    const int32_t *span = a->spans + 4 * request;
    int64_t position = span[1] + row;
    *low = most(0, span[1] - a->slots);
    *high = a->causal ? position + 1 : span[1] + span[2];
    if (a->window) {
        *low = most(*low, position - a->window + 1);
        *high = least(*high, position + a->window);
    }
}

/* What the lines of an item see: [low, high) line by line, and of each 16 what any of them and what all of them see. */
struct sights {
    int32_t low[BLOCK], high[BLOCK];
    int64_t any_low[BLOCK / ABREAST], any_high[BLOCK / ABREAST], all_low[BLOCK / ABREAST], all_high[BLOCK / ABREAST];
};

static void see(const struct attention_job *j, const struct item *item, struct sights *s) {
    int64_t heads = j->a.query_heads / j->a.kv_heads;
    for (int64_t line = 0; line < above(item->lines, ABREAST); line++) {
        int64_t low = 0, high = INT32_MAX, group = line / ABREAST;
        if (line < item->lines) sight(&j->a, item->request, (item->first + line) / heads, &low, &high);
        s->low[line] = low, s->high[line] = high;
        if (line >= item->lines) continue;
        int first = line % ABREAST == 0;
        s->any_low[group] = first ? low : least(low, s->any_low[group]);
        s->any_high[group] = first ? high : most(high, s->any_high[group]);
        s->all_low[group] = first ? low : most(low, s->all_low[group]);
        s->all_high[group] = first ? high : least(high, s->all_high[group]);
    }
}

/* Asks for a later key and value: `ahead` bytes on, `bytes` of each. It is only a hint. */
INLINE void fetch_ahead(const void *key, const void *value, int64_t ahead, int64_t bytes) {
    for (int64_t i = 0; i < bytes; i += 64) {
        __builtin_prefetch((const char *)key + ahead + i);
        __builtin_prefetch((const char *)value + ahead + i);
    }
}

/* Where a key and its value lie; NULL for none. */
struct place {
    const char *key, *value;
};

/* Of a stored position. */
static struct place stored_at(const struct attention *a, const struct item *item, int64_t p) {
    int64_t head = a->spans[4 * item->request] * a->lane_stride + item->head * a->head_stride;
    int64_t stored = head + p % a->slots * a->dim;
    return (struct place){at(a->keys, stored, a->act), at(a->values, stored, a->held)};
}

/* Of a position among the request's own rows. */
static struct place given_at(const struct attention *a, const struct item *item, int64_t p) {
    const int32_t *span = a->spans + 4 * item->request;
    int64_t row = span[3] + p - span[1], head = item->head * a->dim;
    return (struct place){at(a->k, row * a->k_stride + head, a->act), at(a->v, row * a->v_stride + head, a->given)};
}

#include "pairs.h"
#include "tiled.h"
#include "fp32.h"

/* Positions [low, high) of one chunk into a cleared state; `then` is read after it. */
static void chunk_of(const struct attention_job *j, const struct item *item, int64_t low, int64_t high, const float *q,
                     const struct sights *sights, float *columns, float *state, struct place then) {
    int64_t stored = least(high, j->a.spans[4 * item->request + 1]);
    clear(state, item->lines, j->padded);
    if (j->tiled) tiled_chunk(j, item, sights, low, high, (const uint32_t *)q, columns, state);
    for (int64_t tile = low / TILE * TILE; tile < high && !j->tiled; tile += TILE) {
        int64_t from = most(low, tile), to = least(high, tile + TILE);
        struct place later = tile + TILE < stored ? stored_at(&j->a, item, tile + TILE) : then;
        if (tile + TILE >= stored) then = (struct place){0};
        if (j->pairs) paired_tile(j, item, sights, from, to, (const uint32_t *)q, columns, state, later);
        else plain_tile(j, item, sights, from, to, q, columns, state, later);
    }
}

/* Adds a later chunk's state to `all`: what saw nothing is no part of the sum, not even as 0 times a NaN. */
static void join(const struct attention_job *j, int64_t lines, float *all, const float *more) {
    float unit = 0x1.62e43p-1f; /* of peaks, which are powers of 2 */
    for (int64_t line = 0; line < lines; line++) {
        float *total = total_of(all) + line * j->padded, sum = sum_of((float *)more)[line];
        const float *added = total_of((float *)more) + line * j->padded;
        float before = peak_of(all)[line], then = peak_of((float *)more)[line], higher = then > before ? then : before;
        if (sum == 0 && then == -INFINITY) continue; /* it saw nothing of that chunk */
        if (sum_of(all)[line] == 0 && before == -INFINITY) { /* ... of those before it */
            peak_of(all)[line] = then, sum_of(all)[line] = sum;
            memcpy(total, added, j->padded * sizeof *total);
            continue;
        }
        float old = before == higher ? 1.0f : exponential(every((before - higher) * unit))[0];
        float new = then == higher ? 1.0f : exponential(every((then - higher) * unit))[0];
        peak_of(all)[line] = higher;
        sum_of(all)[line] = sum_of(all)[line] * old + sum * new;
        for (int64_t i = 0; i < j->padded; i += LANES)
            store(total, i, F32, load(total, i, F32) * old + load(added, i, F32) * new);
    }
}

/* Sums over weights. A sum that fell to -0 counts as 0, as it does once it is joined to others. */
static void finish_lines(const struct attention_job *j, const struct item *item, float *state) {
    const struct attention *a = &j->a;
    int64_t heads = a->query_heads / a->kv_heads, first = a->spans[4 * item->request + 3];
    for (int64_t line = 0; line < item->lines; line++) {
        int64_t row = first + (item->first + line) / heads, head = item->head * heads + (item->first + line) % heads;
        float *total = total_of(state) + line * j->padded, sum = sum_of(state)[line];
        int laced = !PAIRS_AT_HAND && j->laced; /* what pairs cannot take is no whole slices either */
        for (int64_t i = 0; laced && i < a->dim; i += 2 * LANES) {
            vec even = (load(total, i, F32) + 0.0f) / sum, odd = (load(total, i + LANES, F32) + 0.0f) / sum;
            words x = bf16_bits(even) >> 16 | (bf16_bits(odd) & 0xffff0000);
            memcpy((void *)at(a->out, (row * a->query_heads + head) * a->dim + i, BF16), &x, sizeof x);
        }
        for (int64_t i = 0; !laced && i < a->dim; i += LANES) {
            vec x = load(total, i, F32);
#if PAIRS_AT_HAND
            if (j->pairs) x = unlaced(load(total, i / 32 * 32, F32), load(total, i / 32 * 32 + 16, F32), i % 32);
#endif
            store_some(a->out, (row * a->query_heads + head) * a->dim + i, a->act, (x + 0.0f) / sum, a->dim - i);
        }
    }
}
