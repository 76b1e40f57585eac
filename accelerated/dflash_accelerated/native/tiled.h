/* Attention's two products on the machine's matrix tiles.
 *
 * Scores are keys times queries: keys go into a tile as they lie in the store, queries as pairs of channels, 16 lines
 * beside one another. So lines lie in lanes, and nothing is folded. Sums are weights times values: weights are turned
 * back, line by line, and values stand in pairs of keys, the first 16 keys of 32 beside the others. A line that does
 * not see a key gives it weight 0, which leaves its sums bit by bit as they were: tiles make subnormals 0 anyway. */

#define SWEEP 64   /* keys between two looks at the peaks; CHUNK is a multiple of it, and it is one of 32 */

#if TILES_BUILT
/* Values of 32 keys into tiles [channels / 16, 16, 16] of words: key r beside key r + 16. */
static void interleave(struct run even, struct run odd, int64_t channels, uint32_t *to) {
    for (int64_t r = 0; r < 16; r++)
        for (int64_t channel = 0; channel < channels; channel += 32)
            lace(even.first + r * even.stride + channel * 2, odd.first + r * odd.stride + channel * 2,
                 to + channel * 16 + r * 16, to + channel * 16 + 256 + r * 16);
}

/* Queries of up to 16 lines into tiles [channels / 32, 16, 16] of pairs of channels; a row not there is NULL. */
static void turn_queries(const void *const *rows, int64_t channels, uint32_t *to) {
    for (int64_t pair = 0; pair < channels / 2; pair += 16) {
        words x[16];
        for (int i = 0; i < 16; i++) x[i] = rows[i] ? words_at((const uint32_t *)rows[i] + pair) : (words){0};
        transpose(x);
        memcpy(to + pair * 16, x, sizeof x);
    }
}

/* Scores [16 · runs, 16] of 2 or 4 runs of keys and 16 lines. As many sums as can be go on at once: each waits long for
 * the one before it. */
INLINE void score_tiles(int runs, const struct run *keys, const uint32_t *q, int64_t channels, float *scores) {
    _tile_zero(0);
    _tile_zero(1);
    if (runs > 2) _tile_zero(2);
    if (runs > 2) _tile_zero(3);
    for (int64_t channel = 0; channel < channels; channel += 32) {
        _tile_loadd(4, q + channel * 8, 64);
        _tile_loadd(5, keys[0].first + channel * 2, keys[0].stride);
        _tile_dpbf16ps(0, 5, 4);
        _tile_loadd(6, keys[1].first + channel * 2, keys[1].stride);
        _tile_dpbf16ps(1, 6, 4);
        if (runs == 2) continue;
        _tile_loadd(7, keys[2].first + channel * 2, keys[2].stride);
        _tile_dpbf16ps(2, 7, 4);
        _tile_loadd(5, keys[3].first + channel * 2, keys[3].stride);
        _tile_dpbf16ps(3, 5, 4);
    }
    _tile_stored(0, scores, 64);
    _tile_stored(1, scores + 256, 64);
    if (runs > 2) _tile_stored(2, scores + 512, 64);
    if (runs > 2) _tile_stored(3, scores + 768, 64);
}

/* total [16, padded] += weights [units, 16, 16] · values [units, channels / 16, 16, 16], both words. */
INLINE void mix_tiles(const uint32_t *weights, const uint32_t *values, int64_t units, int64_t channels, float *total) {
    int64_t channel = 0, stride = channels * sizeof *total;
    for (; channel + 64 <= channels; channel += 64) {
        _tile_loadd(0, total + channel, stride);
        _tile_loadd(1, total + channel + 16, stride);
        _tile_loadd(2, total + channel + 32, stride);
        _tile_loadd(3, total + channel + 48, stride);
        for (int64_t unit = 0; unit < units; unit++) {
            const uint32_t *value = values + (unit * channels + channel) * 16;
            _tile_loadd(4, weights + unit * 256, 64);
            _tile_loadd(5, value, 64);
            _tile_dpbf16ps(0, 4, 5);
            _tile_loadd(6, value + 256, 64);
            _tile_dpbf16ps(1, 4, 6);
            _tile_loadd(7, value + 512, 64);
            _tile_dpbf16ps(2, 4, 7);
            _tile_loadd(5, value + 768, 64);
            _tile_dpbf16ps(3, 4, 5);
        }
        _tile_stored(0, total + channel, stride);
        _tile_stored(1, total + channel + 16, stride);
        _tile_stored(2, total + channel + 32, stride);
        _tile_stored(3, total + channel + 48, stride);
    }
    for (; channel < channels; channel += 16) {
        _tile_loadd(0, total + channel, stride);
        for (int64_t unit = 0; unit < units; unit++) {
            _tile_loadd(4, weights + unit * 256, 64);
            _tile_loadd(5, values + (unit * channels + channel) * 16, 64);
            _tile_dpbf16ps(0, 4, 5);
        }
        _tile_stored(0, total + channel, stride);
    }
}

/* Scores of keys [from, to) that a line does not see become -inf. */
static void hide(float *scores, int64_t from, int64_t to, int64_t step, ints low, ints high) {
    for (int64_t key = from; key < to; key++) {
        ints p = (ints){} + (int32_t)(step + key);
        vec x = load(scores, key * 16, F32);
        store(scores, key * 16, F32, chosen((low <= p) & (p < high), x, every(-INFINITY)));
    }
}

/* Scores [32 · units, 16] into weights [units, 16, 16]; peaks are in powers of 2, as the scores times `scale` are.
 * Meanwhile `each` bytes of later keys and values are asked for beside every pair of vectors: all at once they would
 * wait for one another. */
static void weigh_tiles(const float *scores, int64_t units, float scale, float *peak, float *sum, float *total,
                        int64_t channels, uint32_t *weights, const char *key, const char *value, int64_t each) {
    vec tops[4] = {every(-INFINITY), every(-INFINITY), every(-INFINITY), every(-INFINITY)}, sums[4] = {{0}};
    for (int64_t first = 0; first < 32 * units; first += 4)
        for (int i = 0; i < 4; i++) tops[i] = larger(load(scores, (first + i) * 16, F32), tops[i]);
    vec before = load(peak, 0, F32), top = larger(larger(tops[0], tops[1]), larger(tops[2], tops[3])) * scale;
    vec now = larger(top, before), base = chosen(now == every(-INFINITY), (vec){0}, now);
    for (int64_t unit = 0; unit < units; unit++, scores += 512) {
        words x[16];
        for (int r = 0; r < 16; r++) {
            fetch_ahead(key, value, (unit * 16 + r) * each, each);
            x[r] = paired_weights(load(scores, r * 16, F32), load(scores, 256 + r * 16, F32), every(scale), base);
            sums[r & 3] = add_pairs(sums[r & 3], x[r], (words){} + 0x3f803f80);
        }
        transpose(x);
        memcpy(weights + unit * 256, x, sizeof x);
    }
    vec added = (sums[0] + sums[1]) + (sums[2] + sums[3]);
    if (_mm512_cmp_ps_mask((__m512)now, (__m512)before, _CMP_NEQ_UQ)) {
        vec shrink = exponential((before - base) * 0x1.62e43p-1f);
        store(sum, 0, F32, load(sum, 0, F32) * shrink + added);
        store(peak, 0, F32, now);
        for (int line = 0; line < 16; line++)
            for (int64_t i = 0; i < channels; i += LANES)
                store(total, line * channels + i, F32, load(total, line * channels + i, F32) * shrink[line]);
    } else store(sum, 0, F32, load(sum, 0, F32) + added);
}

/* Positions [low, high), all of one step. */
static void tiled_step(const struct attention_job *j, const struct item *item, const struct sights *s, int64_t low,
                       int64_t high, const uint32_t *q, float *workspace, float *state) {
    int64_t dim = j->a.dim, step = low / SWEEP * SWEEP, first = (low - step) / 32;
    uint32_t *values = (uint32_t *)workspace;
    char *copies = (char *)(values + SWEEP / 2 * dim);
    struct run keys[SWEEP / 16], runs[SWEEP / 16];
    float scores[SWEEP * ABREAST] __attribute__((aligned(64)));
    uint32_t weights[SWEEP / 2 * ABREAST] __attribute__((aligned(64)));
    for (int64_t i = 2 * first; step + i / 2 * 32 < high; i++)
        find_runs(j, item, step + 16 * i, low, high, copies + i * 64 * dim, keys + i, runs + i);
    for (int64_t unit = first; step + 32 * unit < high; unit++)
        interleave(runs[2 * unit], runs[2 * unit + 1], dim, values + unit * 16 * dim);
    settle(values);
    int64_t groups = above(item->lines, ABREAST) / ABREAST;
    /* Each group asks for its share of the step after this one. One group alone is too short to: it waits anyway. */
    int64_t each = groups == 1 || first ? 0 : most(64, 4 * dim / groups / 64 * 64);
    for (int64_t group = 0; group < groups; group++) {
        int64_t line = group * ABREAST, ahead = SWEEP * 2 * dim + group * SWEEP / 2 * each;
        int64_t from = most(low, s->any_low[group]) - step, to = least(high, s->any_high[group]) - step;
        if (from >= to) continue;
        from /= 32, to = above(to, 32) / 32;
        for (int64_t unit = from; unit < to; unit += 2) {
            const uint32_t *lines = q + group * 8 * dim;
            if (unit + 1 < to) score_tiles(4, keys + 2 * unit, lines, dim, scores + unit * 512);
            else score_tiles(2, keys + 2 * unit, lines, dim, scores + unit * 512);
        }
        ints lows, highs;
        memcpy(&lows, s->low + line, sizeof lows), memcpy(&highs, s->high + line, sizeof highs);
        for (int64_t i = 2 * from; i < 2 * to; i++)
            if (step + 16 * i < s->all_low[group] || step + 16 * i + 16 > s->all_high[group])
                hide(scores, 16 * i, 16 * i + 16, step, lows, highs);
        float *total = total_of(state) + line * dim, scale = 0x1.715476p+0f / sqrtf((float)dim);
        weigh_tiles(scores + from * 512, to - from, scale, peak_of(state) + line, sum_of(state) + line, total, dim,
                    weights, keys[first * 2].first + ahead, runs[first * 2].first + ahead, each);
        settle(weights);
        mix_tiles(weights, values + from * 16 * dim, to - from, dim, total);
    }
}

static void tiled_chunk(const struct attention_job *j, const struct item *item, const struct sights *s, int64_t low,
                        int64_t high, const uint32_t *q, float *workspace, float *state) {
    for (int64_t p = low; p < high; p = p / SWEEP * SWEEP + SWEEP)
        tiled_step(j, item, s, p, least(high, p / SWEEP * SWEEP + SWEEP), q, workspace, state);
}

/* The queries of an item into tiles. */
static void tiled_queries(const struct attention_job *j, const struct item *item, uint32_t *q) {
    const struct attention *a = &j->a;
    int64_t heads = a->query_heads / a->kv_heads, first = a->spans[4 * item->request + 3];
    for (int64_t line = 0; line < item->lines; line += ABREAST) {
        const void *rows[ABREAST] = {0};
        for (int64_t i = line; i < least(item->lines, line + ABREAST); i++) {
            int64_t row = first + (item->first + i) / heads, head = item->head * heads + (item->first + i) % heads;
            rows[i - line] = at(a->q, row * a->q_stride + head * a->dim, BF16);
        }
        turn_queries(rows, a->dim, q + line * a->dim / 2);
    }
}
#else
INLINE void tiled_chunk(const struct attention_job *j, const struct item *item, const struct sights *s, int64_t low,
                        int64_t high, const uint32_t *q, float *workspace, float *state) {
    (void)j, (void)item, (void)s, (void)low, (void)high, (void)q, (void)workspace, (void)state;
}
INLINE void tiled_queries(const struct attention_job *j, const struct item *item, uint32_t *q) {
    (void)j, (void)item, (void)q;
}
#endif
