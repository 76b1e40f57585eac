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

/* LANES rows of keys into columns `to` [dim, TILE]: FP32, channel by channel. */
static void turn_keys(const void *const *rows, int type, int64_t dim, float *to) {
    int64_t each = type == F32 ? LANES : 2 * LANES, channel = 0;
    for (; channel + each <= dim; channel += each) {
        words x[LANES];
        for (int i = 0; i < LANES; i++) memcpy(&x[i], at(rows[i], channel, type), sizeof x[i]);
        transpose(x);
        for (int i = 0; i < LANES; i++) {
            if (type == F32) memcpy(to + (channel + i) * TILE, &x[i], sizeof x[i]);
            else {
                words even = x[i] << 16, odd = x[i] & 0xffff0000; /* a word holds two BF16 channels */
                memcpy(to + (channel + 2 * i) * TILE, &even, sizeof even);
                memcpy(to + (channel + 2 * i + 1) * TILE, &odd, sizeof odd);
            }
        }
    }
    for (; channel < dim; channel++)
        for (int i = 0; i < LANES; i++) to[channel * TILE + i] = load_one(rows[i], channel, type);
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

/* Keys [low, high) of the tile that begins at `tile` into columns, values into FP32 rows [TILE, padded]. Nothing else
 * is read; the columns of other positions hold copies, which no line looks at. */
static void fill_tile(const struct attention_job *j, const struct item *item, int64_t tile, int64_t low, int64_t high,
                      float *columns, float *values) {
    const struct attention *a = &j->a;
    const int32_t *span = a->spans + 4 * item->request;
    const void *keys[TILE];
    for (int64_t p = low; p < high; p++) {
        int own = p >= span[1], type = own ? a->given : a->held;
        struct place here = own ? given_at(a, item, p) : stored_at(a, item, p);
        keys[p - tile] = here.key;
        if (!own) fetch_ahead(here.key, here.value, TILE * a->dim * width(a->act), a->dim * width(a->act));
        for (int64_t i = 0; i < a->dim; i += LANES)
            store(values, (p - tile) * j->padded + i, F32, load_some(here.value, i, type, a->dim - i));
    }
    for (int64_t i = 0; i < TILE; i++)
        if (i < low - tile || i >= high - tile) keys[i] = keys[low - tile];
    for (int64_t i = (low - tile) / LANES * LANES; i < high - tile; i += LANES)
        turn_keys(keys + i, a->act, a->dim, columns + i);
}

/* Vectors of keys or of channels whose sums 4 lines keep in registers at once. */
enum { ABREAST_PARTS = LANES == 8 ? 2 : 4, TILE_PARTS = TILE / LANES };

/* Scores [4, TILE] of 4 lines: q [4, dim] times columns [dim, TILE], each a chain over the channels. */
INLINE void score(const float *q, const float *columns, int64_t dim, float *scores) {
    for (int64_t first = 0; first < TILE; first += ABREAST_PARTS * LANES) {
        vec sums[4][ABREAST_PARTS] = {{{0}}};
        for (int64_t channel = 0; channel < dim; channel++) {
            vec key[ABREAST_PARTS];
            for (int i = 0; i < ABREAST_PARTS; i++) key[i] = load(columns, channel * TILE + first + i * LANES, F32);
            for (int line = 0; line < 4; line++)
                for (int i = 0; i < ABREAST_PARTS; i++)
                    sums[line][i] = fused(every(q[line * dim + channel]), key[i], sums[line][i]);
        }
        for (int line = 0; line < 4; line++)
            for (int i = 0; i < ABREAST_PARTS; i++) store(scores, line * TILE + first + i * LANES, F32, sums[line][i]);
    }
}

/* total += weights · values over the tile's rows [low, high), for `lines` lines and `parts` vectors of channels. */
INLINE void mix(int lines, int parts, const float *weights, const float *values, int64_t low, int64_t high,
                float *total, int64_t padded) {
    vec sums[4][ABREAST_PARTS];
    for (int line = 0; line < lines; line++)
        for (int i = 0; i < parts; i++) sums[line][i] = load(total, line * padded + i * LANES, F32);
    for (int64_t key = low; key < high; key++) {
        vec value[ABREAST_PARTS];
        for (int i = 0; i < parts; i++) value[i] = load(values, key * padded + i * LANES, F32);
        for (int line = 0; line < lines; line++)
            for (int i = 0; i < parts; i++)
                sums[line][i] = fused(every(weights[line * TILE + key]), value[i], sums[line][i]);
    }
    for (int line = 0; line < lines; line++)
        for (int i = 0; i < parts; i++) store(total, line * padded + i * LANES, F32, sums[line][i]);
}

INLINE void mix_all(int lines, const float *weights, const float *values, int64_t low, int64_t high, float *total,
                    int64_t padded) {
    int64_t i = 0, each = ABREAST_PARTS * LANES;
    for (; i + each <= padded; i += each) mix(lines, ABREAST_PARTS, weights, values + i, low, high, total + i, padded);
    for (; i < padded; i += LANES) mix(lines, 1, weights, values + i, low, high, total + i, padded);
}

/* Turns a line's scores into weights under its new peak; those outside [low, high) of the tile become 0. */
INLINE void weigh(float *scores, int64_t low, int64_t high, float scale, float *peak, float *sum, float *total,
                  int64_t padded) {
    for (int64_t i = 0; i < low; i++) scores[i] = -INFINITY;
    for (int64_t i = high; i < TILE; i++) scores[i] = -INFINITY;
    vec tops = every(-INFINITY), sums[PARTS];
    for (int i = 0; i < TILE_PARTS; i++) tops = larger(load(scores, i * LANES, F32) * scale, tops);
    float top = lanes_most(tops), higher = top > *peak ? top : *peak;
    for (int i = 0; i < PARTS; i++) {
        vec x[TILE / SUMS];
        for (int k = 0; k < TILE / SUMS; k++) x[k] = load(scores, k * SUMS + i * LANES, F32) * scale - higher;
        exponential_of_each(x, TILE / SUMS);
        for (int k = 0; k < TILE / SUMS; k++) store(scores, k * SUMS + i * LANES, F32, x[k]);
        sums[i] = (x[0] + x[1]) + (x[2] + x[3]);
    }
    float shrink = higher == *peak ? 1.0f : exponential(every(*peak - higher))[0];
    *sum = *sum * shrink + lanes_sum(sums);
    *peak = higher;
    if (shrink != 1.0f)
        for (int64_t i = 0; i < padded; i += LANES) store(total, i, F32, load(total, i, F32) * shrink);
}

/* The tile's part for 4 lines. Lines that see only some of it go one by one: a hidden value is not even multiplied. */
static void four_lines(const struct attention_job *j, const struct item *item, const struct sights *s, int64_t line,
                       int64_t tile, const float *q, const float *columns, const float *values, float *state) {
    float scores[4 * TILE], scale = 1.0f / sqrtf((float)j->a.dim);
    int64_t lows[4], highs[4], whole = 0, any = 0;
    for (int i = 0; i < 4; i++) {
        lows[i] = highs[i] = 0;
        if (line + i >= item->lines) continue;
        lows[i] = most(0, s->low[line + i] - tile), highs[i] = least(TILE, s->high[line + i] - tile);
        whole += lows[i] == 0 && highs[i] == TILE;
        any += lows[i] < highs[i];
    }
    if (!any) return;
    score(q + line * j->a.dim, columns, j->a.dim, scores);
    float *totals = total_of(state) + line * j->padded;
    for (int i = 0; i < 4; i++)
        if (lows[i] < highs[i])
            weigh(scores + i * TILE, lows[i], highs[i], scale, peak_of(state) + line + i, sum_of(state) + line + i,
                  totals + i * j->padded, j->padded);
    if (whole == 4) mix_all(4, scores, values, 0, TILE, totals, j->padded);
    else
        for (int i = 0; i < 4; i++)
            if (lows[i] < highs[i])
                mix_all(1, scores + i * TILE, values, lows[i], highs[i], totals + i * j->padded, j->padded);
}

/* Positions [low, high) of one chunk into a cleared state; `then` is read after it. */
static void chunk_of(const struct attention_job *j, const struct item *item, int64_t low, int64_t high, const float *q,
                     const struct sights *sights, float *columns, float *state, struct place then) {
    float *values = columns + TILE * j->padded;
    int64_t stored = least(high, j->a.spans[4 * item->request + 1]);
    clear(state, item->lines, j->padded);
    if (j->tiled) tiled_chunk(j, item, sights, low, high, (const uint32_t *)q, columns, state);
    for (int64_t tile = low / TILE * TILE; tile < high && !j->tiled; tile += TILE) {
        int64_t from = most(low, tile), to = least(high, tile + TILE);
        if (j->pairs) {
            struct place later = tile + TILE < stored ? stored_at(&j->a, item, tile + TILE) : then;
            if (tile + TILE >= stored) then = (struct place){0};
            paired_tile(j, item, sights, from, to, (const uint32_t *)q, columns, state, later);
            continue;
        }
        fill_tile(j, item, tile, from, to, columns, values);
        for (int64_t line = 0; line < item->lines; line += 4)
            four_lines(j, item, sights, line, tile, q, columns, values, state);
    }
}

/* Adds a later chunk's state to `all`: what saw nothing is no part of the sum, not even as 0 times a NaN. */
static void join(const struct attention_job *j, int64_t lines, float *all, const float *more) {
    float unit = j->pairs ? 0x1.62e43p-1f : 1.0f; /* of peaks, which are powers of 2 where pairs made them */
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
        for (int64_t i = 0; i < a->dim; i += LANES) {
            vec x = load(total, i, F32);
#if PAIRS_AT_HAND
            if (j->pairs) x = unlaced(load(total, i / 32 * 32, F32), load(total, i / 32 * 32 + 16, F32), i % 32);
#endif
            store_some(a->out, (row * a->query_heads + head) * a->dim + i, a->act, (x + 0.0f) / sum, a->dim - i);
        }
    }
}
