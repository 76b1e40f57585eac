/* Attention's two products where the machine multiplies BF16 itself, by `add_pairs`: twice as many products an
 * instruction as FP32 has.
 *
 * Scores take pairs of channels, four lines at a time. Sums of values take pairs of keys, the first 16 of 32 beside the
 * others, so weights are rounded to BF16, as the fused attention of PyTorch rounds them; the sum that divides them is
 * of the rounded weights. Peaks are powers of 2. A line that does not see a key gives it weight 0, which leaves its
 * sums bit by bit as they were: these products make subnormals 0 anyway. */

#if PAIRS_AT_HAND
/* 32 channels of two keys, channel by channel, into words [2, 16] at `low` and `high`, in the order of `unlaced`:
 * unpacking stays within 128 bits. */
INLINE void lace(const void *even, const void *odd, uint32_t *low, uint32_t *high) {
    typedef uint16_t shorts __attribute__((vector_size(64)));
    shorts a, b, pairs;
    memcpy(&a, even, sizeof a);
    memcpy(&b, odd, sizeof b);
    pairs = __builtin_shufflevector(a, b, 0, 32, 1, 33, 2, 34, 3, 35, 8, 40, 9, 41, 10, 42, 11, 43, 16, 48, 17, 49, 18,
                                    50, 19, 51, 24, 56, 25, 57, 26, 58, 27, 59);
    memcpy(low, &pairs, sizeof pairs);
    pairs = __builtin_shufflevector(a, b, 4, 36, 5, 37, 6, 38, 7, 39, 12, 44, 13, 45, 14, 46, 15, 47, 20, 52, 21, 53,
                                    22, 54, 23, 55, 28, 60, 29, 61, 30, 62, 31, 63);
    memcpy(high, &pairs, sizeof pairs);
}

/* Laced sums of 32 channels in their own order: the first or the last 16. */
INLINE vec unlaced(vec low, vec high, int last) {
    if (last) return __builtin_shufflevector(low, high, 8, 9, 10, 11, 24, 25, 26, 27, 12, 13, 14, 15, 28, 29, 30, 31);
    return __builtin_shufflevector(low, high, 0, 1, 2, 3, 16, 17, 18, 19, 4, 5, 6, 7, 20, 21, 22, 23);
}

/* 2 to the x · scale - peak, plus half of a BF16 step, so that cutting the low bits off rounds: within 2⁻¹³, 0 for
 * -inf. */
INLINE vec weight_of(vec x, vec scale, vec peak) {
    __m512 t = _mm512_fmsub_ps((__m512)x, (__m512)scale, (__m512)peak);
    vec f = (vec)_mm512_reduce_ps(t, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);
    vec p = fused(f, every(0x1.3f96a4p-4f), every(0x1.cefc4cp-3f));
    p = fused(p, f, every(0x1.64444cp-1f));
    p = fused(p, f, every(0x1.fff632p-1f + 0x1p-8f));
    return (vec)_mm512_scalef_ps((__m512)p, t);
}

/* Weights of two vectors of keys as one of pairs. */
INLINE words paired_weights(vec even, vec odd, vec scale, vec peak) {
    words a = (words)weight_of(even, scale, peak), b = (words)weight_of(odd, scale, peak);
    return a >> 16 | (b & 0xffff0000);
}

/* 16 rows at equal distances. */
struct run {
    const char *first;
    int64_t stride;
};

/* The keys and values of 16 positions from `p` on, those outside [low, high) as zeros: where they lie, if one after
 * another, else copied into `copy` [2, 16, dim]. */
static void find_runs(const struct attention_job *j, const struct item *item, int64_t p, int64_t low, int64_t high,
                      char *copy, struct run *keys, struct run *values) {
    const struct attention *a = &j->a;
    const int32_t *span = a->spans + 4 * item->request;
    int64_t base = span[0] * a->lane_stride + item->head * a->head_stride, bytes = a->dim * sizeof(uint16_t);
    int64_t slot = p % a->slots, stored = base + slot * a->dim, row = span[3] + p - span[1];
    int whole = p >= low && p + 16 <= high;
    if (whole && p + 16 <= span[1] && slot + 16 <= a->slots) {
        *keys = (struct run){at(a->keys, stored, BF16), bytes};
        *values = (struct run){at(a->values, stored, BF16), bytes};
        return;
    }
    if (whole && p >= span[1]) {
        *keys = (struct run){at(a->k, row * a->k_stride + item->head * a->dim, BF16), a->k_stride * 2};
        *values = (struct run){at(a->v, row * a->v_stride + item->head * a->dim, BF16), a->v_stride * 2};
        return;
    }
    *keys = (struct run){copy, bytes}, *values = (struct run){copy + 16 * bytes, bytes};
    memset(copy, 0, 32 * bytes);
    for (int64_t i = most(0, low - p); i < least(16, high - p); i++) {
        int own = p + i >= span[1];
        int64_t there = base + (p + i) % a->slots * a->dim, here = item->head * a->dim;
        const char *key = own ? at(a->k, (row + i) * a->k_stride + here, BF16) : at(a->keys, there, BF16);
        const char *value = own ? at(a->v, (row + i) * a->v_stride + here, BF16) : at(a->values, there, BF16);
        memcpy(copy + i * bytes, key, bytes);
        memcpy(copy + (16 + i) * bytes, value, bytes);
    }
}

/* What a thread reads next, one line of keys and one of values at a time: all at once they would wait for one another.
 * Four parts of the work on a tile each ask for `dim / 2` lines of the tile after it. */
INLINE void ask(struct place later, int64_t line) {
    if (!later.key) return;
    __builtin_prefetch(later.key + line * 64);
    __builtin_prefetch(later.value + line * 64);
}

/* 16 keys into columns [channels / 2, TILE] of pairs of channels. */
static void pair_keys(struct run keys, int64_t channels, uint32_t *to, struct place later, int64_t line) {
    for (int64_t pair = 0; pair < channels / 2; pair += 16) {
        words x[16];
        for (int i = 0; i < 16; i++) { /* halves are joined as they are loaded, which is one exchange less */
            const char *half = keys.first + i % 8 * keys.stride + pair * 4 + i / 8 * 32;
            __m256i low = _mm256_loadu_si256((const void *)half);
            __m256i high = _mm256_loadu_si256((const void *)(half + 8 * keys.stride));
            x[i] = (words)_mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1);
        }
        transpose_halves(x);
        for (int i = 0; i < 16; i++) memcpy(to + (pair + i) * TILE, &x[i], sizeof x[i]);
        for (int i = 0; i < 4; i++) ask(later, line + pair / 4 + i);
    }
}

/* Which pairs of the 32 keys from `first` on hold any of [low, high). */
INLINE void pairs_of(int64_t first, int64_t low, int64_t high, int64_t *from, int64_t *to) {
    low = most(0, low - first), high = least(32, high - first);
    *from = 0, *to = low < high ? 16 : 0;
    if (low < high && low / 16 == (high - 1) / 16) *from = low % 16, *to = (high - 1) % 16 + 1;
}

/* Values of 32 keys into words [16, channels]: key r beside key r + 16. */
static void pair_values(const struct run *values, int64_t channels, uint32_t *to, struct place later, int64_t line) {
    for (int64_t r = 0; r < 16; r++, to += channels) {
        const char *even = values[0].first + r * values[0].stride, *odd = values[1].first + r * values[1].stride;
        for (int64_t channel = 0; channel < channels; channel += 32) {
            lace(even + channel * 2, odd + channel * 2, to + channel, to + channel + 16);
            if (channel % 64 == 0) ask(later, line++);
        }
    }
}

/* Scores [4, 16 · groups] of 4 lines: q [4, pairs] times columns [pairs, TILE]. */
INLINE void score_groups(int groups, const uint32_t *q, const uint32_t *columns, int64_t pairs, float *scores,
                         struct place later) {
    vec sums[4][4] = {{{0}}};
    for (int64_t pair = 0; pair < pairs; pair++) {
        words key[4];
        for (int i = 0; i < groups; i++) key[i] = words_at(columns + pair * TILE + i * LANES);
        for (int line = 0; line < 4; line++)
            for (int i = 0; i < groups; i++)
                sums[line][i] = add_pairs(sums[line][i], word_at(q + line * pairs + pair), key[i]);
        ask(later, 2 * pairs + pair);
    }
    for (int line = 0; line < 4; line++)
        for (int i = 0; i < groups; i++) store(scores, line * TILE + i * LANES, F32, sums[line][i]);
}

/* Scores of keys that a line does not see become -inf. */
static void hide_pairs(float *scores, int64_t low, int64_t high) {
    for (int64_t key = 0; key < TILE; key += LANES) {
        ints place = (ints)COLUMNS + (int32_t)key, seen = (place >= (int32_t)low) & (place < (int32_t)high);
        store(scores, key, F32, chosen(seen, load(scores, key, F32), every(-INFINITY)));
    }
}

/* One vector of four: the lanes of each are folded into four lanes that are alike. */
#define FOLD_FOUR(name, combine)                                                                                   \
    INLINE vec name(const vec *x) {                                                                                \
        vec two[2], four, swapped;                                                                                 \
        for (int i = 0; i < 2; i++) {                                                                              \
            vec a = x[2 * i], b = x[2 * i + 1];                                                                    \
            two[i] = combine(                                                                                      \
                __builtin_shufflevector(a, b, 0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23),             \
                __builtin_shufflevector(a, b, 8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29, 30, 31));      \
        }                                                                                                          \
        four = combine(                                                                                            \
            __builtin_shufflevector(two[0], two[1], 0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24, 25, 26, 27),     \
            __builtin_shufflevector(two[0], two[1], 4, 5, 6, 7, 12, 13, 14, 15, 20, 21, 22, 23, 28, 29, 30, 31));  \
        swapped = __builtin_shufflevector(four, four, 2, 3, 0, 1, 6, 7, 4, 5, 10, 11, 8, 9, 14, 15, 12, 13);       \
        four = combine(four, swapped);                                                                             \
        swapped = __builtin_shufflevector(four, four, 1, 0, 3, 2, 5, 4, 7, 6, 9, 8, 11, 10, 13, 12, 15, 14);       \
        return combine(four, swapped);                                                                             \
    }
FOLD_FOUR(sums_of_four, SUM)
FOLD_FOUR(most_of_four, larger)

/* The first four numbers, each in four lanes, and back. */
INLINE vec in_fours(const float *four) {
    return picked(load(four, 0, F32), (ints){0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3});
}
INLINE void out_of_fours(vec x, float *four) {
    vec first = picked(x, (ints){0, 4, 8, 12});
    memcpy(four, &first, 4 * sizeof *four);
}

/* Scores [4, TILE] into weights [4, TILE / 2] under the lines' new peaks; earlier sums have to shrink by `shrink`. */
static void weigh_pairs(const float *scores, float scale, float *peak, float *sum, uint32_t *weights, float *shrink) {
    vec tops[4], sums[4] = {{0}};
    for (int line = 0; line < 4; line++) {
        tops[line] = every(-INFINITY);
        for (int i = 0; i < 4; i++) tops[line] = larger(load(scores, line * TILE + i * LANES, F32), tops[line]);
    }
    vec before = in_fours(peak), now = larger(most_of_four(tops) * scale, before);
    vec base = chosen(now == every(-INFINITY), (vec){0}, now);
    for (int line = 0; line < 4; line++)
        for (int unit = 0; unit < 2; unit++) {
            const float *from = scores + line * TILE + unit * 32;
            vec own = picked(base, (ints){} + 4 * line);
            words x = paired_weights(load(from, 0, F32), load(from, 16, F32), every(scale), own);
            memcpy(weights + line * TILE / 2 + unit * 16, &x, sizeof x);
            sums[line] = add_pairs(sums[line], x, (words){} + 0x3f803f80);
        }
    vec shrinking = exponential((before - base) * 0x1.62e43p-1f);
    out_of_fours(in_fours(sum) * shrinking + sums_of_four(sums), sum);
    out_of_fours(now, peak);
    out_of_fours(shrinking, shrink);
}

/* The values that 4 lines sum up, as they lie, and where many lines need them, in pairs [TILE / 2, channels] too. */
struct values {
    struct run runs[TILE / 16];
    const uint32_t *paired;
};

/* total [4, channels] · shrink += weights [4, TILE / 2] · values over the pairs that hold any of [low, high), for 2 or
 * 4 vectors of channels from `channel` on. */
INLINE void mix_some(int parts, int paired, const uint32_t *weights, const struct values *v, int64_t channel,
                     int64_t channels, int64_t low, int64_t high, const float *shrink, float *total,
                     struct place later) {
    vec sums[4][4];
    for (int line = 0; line < 4; line++)
        for (int i = 0; i < parts; i++)
            sums[line][i] = load(total, line * channels + channel + i * LANES, F32) * shrink[line];
    for (int64_t first = 0; first < TILE; first += 32) {
        struct run even = v->runs[first / 16], odd = v->runs[first / 16 + 1];
        int64_t from, to;
        pairs_of(first, low, high, &from, &to);
        for (int64_t r = from; r < to; r++) {
            int64_t pair = first / 2 + r;
            uint32_t value[4][LANES];
            for (int i = 0; i < parts; i += 2) {
                int64_t first_channel = channel + i * LANES;
                const char *a = even.first + r * even.stride + first_channel * 2;
                const char *b = odd.first + r * odd.stride + first_channel * 2;
                if (paired) memcpy(value + i, v->paired + pair * channels + first_channel, 2 * sizeof *value);
                else lace(a, b, value[i], value[i + 1]);
            }
            for (int line = 0; line < 4; line++) {
                words weight = word_at(weights + line * TILE / 2 + pair);
                for (int i = 0; i < parts; i++) sums[line][i] = add_pairs(sums[line][i], weight, words_at(value[i]));
            }
            if (parts == 4) ask(later, 3 * channels / 2 + channel / 2 + pair);
        }
    }
    for (int line = 0; line < 4; line++)
        for (int i = 0; i < parts; i++) store(total, line * channels + channel + i * LANES, F32, sums[line][i]);
}

INLINE void mix_pairs(int paired, const uint32_t *weights, const struct values *v, int64_t channels, int64_t low,
                      int64_t high, const float *shrink, float *total, struct place later) {
    int64_t channel = 0;
    for (; channel + 4 * LANES <= channels; channel += 4 * LANES)
        mix_some(4, paired, weights, v, channel, channels, low, high, shrink, total, later);
    if (channel < channels) mix_some(2, paired, weights, v, channel, channels, low, high, shrink, total, later);
}

/* A tile's part for 4 lines. */
static void four_pairs(const struct attention_job *j, const struct item *item, const struct sights *s, int64_t line,
                       int64_t tile, const uint32_t *q, const uint32_t *columns, const struct values *v, float *state,
                       struct place later) {
    float scores[4 * TILE] __attribute__((aligned(64))), shrink[4];
    uint32_t weights[4 * TILE / 2] __attribute__((aligned(64)));
    int64_t dim = j->a.dim, lows[4], highs[4], low = TILE, high = 0, lines = least(4, item->lines - line);
    for (int64_t i = 0; i < lines; i++) {
        lows[i] = most(0, s->low[line + i] - tile), highs[i] = least(TILE, s->high[line + i] - tile);
        if (lows[i] < highs[i]) low = least(low, lows[i]), high = most(high, highs[i]);
    }
    if (low >= high) return;
    q += line * dim / 2;
    if (low < 16 && high > TILE - 16) score_groups(4, q, columns, dim / 2, scores, later);
    else {
        memset(scores, 0, sizeof scores);
        for (int64_t key = low / 16 * 16; key < high; key += 16)
            score_groups(1, q, columns + key, dim / 2, scores + key, (struct place){0});
    }
    for (int64_t i = 0; i < lines; i++)
        if (lows[i] > 0 || highs[i] < TILE) hide_pairs(scores + i * TILE, lows[i], highs[i]);
    float *total = total_of(state) + line * dim, scale = 0x1.715476p+0f / sqrtf((float)dim);
    weigh_pairs(scores, scale, peak_of(state) + line, sum_of(state) + line, weights, shrink);
    if (v->paired) mix_pairs(1, weights, v, dim, low, high, shrink, total, later);
    else mix_pairs(0, weights, v, dim, low, high, shrink, total, later);
}

/* Positions [low, high), all of one tile; `later` is asked for meanwhile. */
static void paired_tile(const struct attention_job *j, const struct item *item, const struct sights *s, int64_t low,
                        int64_t high, const uint32_t *q, float *workspace, float *state, struct place later) {
    int64_t dim = j->a.dim, tile = low / TILE * TILE, first = (low - tile) / 32 * 2, end = above(high - tile, 32) / 16;
    uint32_t *columns = (uint32_t *)workspace, *paired = columns + TILE / 2 * dim;
    char *copies = (char *)(paired + TILE / 2 * dim);
    struct run keys[TILE / 16];
    struct values v = {.paired = item->lines > 4 ? paired : NULL};
    for (int64_t i = first; i < end; i++) {
        find_runs(j, item, tile + 16 * i, low, high, copies + i * 64 * dim, keys + i, v.runs + i);
        pair_keys(keys[i], dim, columns + 16 * i, later, i * dim / 8);
    }
    for (int64_t i = first; i < end && v.paired; i += 2)
        pair_values(v.runs + i, dim, paired + i * 8 * dim, later, dim / 2 + i * dim / 8);
    for (int64_t line = 0; line < item->lines; line += 4)
        four_pairs(j, item, s, line, tile, q, columns, &v, state, line ? (struct place){0} : later);
}
#else
INLINE void paired_tile(const struct attention_job *j, const struct item *item, const struct sights *s, int64_t low,
                        int64_t high, const uint32_t *q, float *workspace, float *state, struct place later) {
    (void)j, (void)item, (void)s, (void)low, (void)high, (void)q, (void)workspace, (void)state, (void)later;
}
#endif
