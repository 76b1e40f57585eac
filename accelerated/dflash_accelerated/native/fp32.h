/* Attention's two products in FP32.
 *
 * A score is one chain over the channels, in lanes of keys; a channel's sum is one chain over the keys, in lanes of
 * channels. So keys are turned, and values are read where they lie. Scores of all lines come first, then their weights,
 * then sums: what each loop reads stays in the nearest cache. BF16 is widened where it is multiplied, two channels to a
 * word, the even ones beside the odd. A value is multiplied for those lines alone that see its key. */

/* Vectors of keys, or of channels, whose sums 4 lines keep in registers at once. */
#if defined(__AVX512F__) || defined(__aarch64__)
enum { BESIDE = 4 };
#else
enum { BESIDE = 2 };
#endif
enum { SLICE = BESIDE * LANES };

/* In a register: GCC would read what 4 lines take from memory for each of them, and wait for that. */
INLINE vec taken(vec x) {
#if defined(__x86_64__)
    __asm__("" : "+v"(x));
#elif defined(__aarch64__)
    __asm__("" : "+w"(x));
#endif
    return x;
}

/* Asks for what is read later. */
INLINE void fetch(const char *from, int64_t bytes) {
    for (int64_t i = 0; i < bytes; i += 64) __builtin_prefetch(from + i);
}

/* Where the keys and values of a tile lie; its values are of one type. */
struct rows {
    const char *keys[TILE], *values[TILE];
    int type;
};

/* Of positions [low, high) of a tile: nothing else is read, so the other keys are copies, which no line looks at.
 * Values of two types, or of channels that are no whole slices, are copied into FP32 rows [TILE, padded]. */
static void find_rows(const struct attention_job *j, const struct item *item, int64_t low, int64_t high, float *copies,
                      struct rows *rows) {
    const struct attention *a = &j->a;
    int64_t tile = low / TILE * TILE, start = a->spans[4 * item->request + 1];
    rows->type = low < start ? a->held : a->given;
    int two = low < start && start < high && a->given != a->held;
    int copied = two || a->dim % SLICE || (rows->type == BF16 && !j->laced);
    for (int64_t p = low, end; p < high; p = end) {
        int own = p >= start, type = own ? a->given : a->held;
        struct place here = own ? given_at(a, item, p) : stored_at(a, item, p);
        int64_t key = (own ? a->k_stride : a->dim) * width(a->act), value = (own ? a->v_stride : a->dim) * width(type);
        end = own ? high : least(least(start, high), p + a->slots - p % a->slots);
        for (int64_t i = 0; i < end - p; i++) {
            rows->keys[p - tile + i] = here.key + i * key;
            rows->values[p - tile + i] = here.value + i * value;
        }
        for (int64_t k = p - tile; copied && k < end - tile; k++) {
            float *to = copies + k * j->padded;
            for (int64_t i = 0; i < a->dim; i += LANES)
                store(to, i, F32, load_some(rows->values[k], i, type, a->dim - i));
            rows->values[k] = (const char *)to;
        }
    }
    if (copied) rows->type = F32;
    for (int64_t i = tile; i < low; i++) rows->keys[i - tile] = rows->keys[low - tile];
    for (int64_t i = high; i < tile + TILE; i++) rows->keys[i - tile] = rows->keys[low - tile];
}

/* LANES keys of `count` words into columns `to` [count, SLICE]. */
INLINE void turn_keys(const char *const *keys, int64_t count, uint32_t *to) {
    int64_t word = 0;
    for (; word + LANES <= count; word += LANES) {
        words x[LANES];
#if LANES == 8
        _Pragma("GCC unroll 8")
        for (int i = 0; i < 8; i++) { /* halves are joined as they are loaded, which is one exchange less */
            const char *low = keys[i % 4] + word * 4 + i / 4 * 16, *high = keys[i % 4 + 4] + word * 4 + i / 4 * 16;
            __m256i half = _mm256_castsi128_si256(_mm_loadu_si128((const void *)low));
            x[i] = (words)_mm256_inserti128_si256(half, _mm_loadu_si128((const void *)high), 1);
        }
        transpose_halves(x);
#else
        _Pragma("GCC unroll 16")
        for (int i = 0; i < LANES; i++) x[i] = words_at((const uint32_t *)keys[i] + word);
        transpose(x);
#endif
        _Pragma("GCC unroll 16")
        for (int i = 0; i < LANES; i++) memcpy(to + (word + i) * SLICE, &x[i], sizeof x[i]);
    }
    for (; word < count; word++)
        for (int i = 0; i < LANES; i++) memcpy(to + word * SLICE + i, keys[i] + word * 4, 4);
}

/* Scores [4, SLICE] of 4 lines: q [4, dim] times columns [words, SLICE], `paired` where a word holds two channels. */
INLINE void score(int paired, const float *q, const uint32_t *columns, int64_t dim, float *scores, const char *later) {
    vec sums[4][BESIDE] = {{{0}}};
    for (int64_t channel = 0; channel < dim; columns += SLICE) {
        if (later) fetch(later, 4 * SLICE), later += 4 * SLICE;
        for (int odd = 0; odd <= paired; odd++, channel++) {
            vec key[BESIDE];
            for (int i = 0; i < BESIDE; i++) {
                words x = words_at(columns + i * LANES);
                key[i] = taken((vec)(!paired ? x : odd ? x & 0xffff0000 : x << 16));
            }
            for (int line = 0; line < 4; line++)
                for (int i = 0; i < BESIDE; i++)
                    sums[line][i] = fused(every(q[line * dim + channel]), key[i], sums[line][i]);
        }
    }
    for (int line = 0; line < 4; line++)
        for (int i = 0; i < BESIDE; i++) store(scores, line * TILE + i * LANES, F32, sums[line][i]);
}

/* 2 to the x, which is at most about 0: within 2 ulp, and 0 where that is no normal number. NaN stays NaN. */
INLINE void powers_of_each(vec *x, int count) {
#define EACH for (int i = 0; i < count; i++)
    static const float terms[] = {0x1.5f3e54p-10f, 0x1.3b2d4cp-7f, 0x1.c6aee8p-5f, 0x1.ebfbdcp-3f, 0x1.62e43p-1f, 1.0f};
    const float whole = 0x1.8p23f + 127; /* adding it leaves the exponent of the power in the low bits */
    vec shifted[TILE / SUMS], p[TILE / SUMS];
    EACH x[i] = larger(every(-127.0f), x[i]);
    EACH shifted[i] = x[i] + whole;
    EACH x[i] -= shifted[i] - whole;
    EACH p[i] = every(0x1.41fbbcp-13f);
    for (int term = 0; term < 6; term++)
        EACH p[i] = fused(p[i], x[i], every(terms[term]));
    EACH x[i] = p[i] * (vec)((words)shifted[i] << 23);
#undef EACH
}

/* Scores [4, TILE] of 4 lines into weights under the lines' new peaks, which are powers of 2; sums and totals so far
 * shrink with them. */
INLINE void weigh(float *scores, float scale, float *peak, float *sum, float *total, int64_t padded) {
    float now[4], base[4];
    vec added[4][PARTS];
    int risen = 0;
    for (int line = 0; line < 4; line++) {
        vec tops[4];
        for (int i = 0; i < 4; i++) tops[i] = every(-INFINITY);
        for (int i = 0; i < TILE / LANES; i++)
            tops[i & 3] = larger(load(scores, line * TILE + i * LANES, F32), tops[i & 3]);
        float top = lanes_most(larger(larger(tops[0], tops[1]), larger(tops[2], tops[3]))) * scale;
        now[line] = top > peak[line] ? top : peak[line];
        base[line] = now[line] == -INFINITY ? 0 : now[line];
        risen |= now[line] != peak[line];
    }
    for (int line = 0; line < 4; line++) {
        for (int i = 0; i < PARTS; i++) {
            vec x[TILE / SUMS];
            float *from = scores + line * TILE + i * LANES;
            for (int k = 0; k < TILE / SUMS; k++)
                x[k] = fused(load(from, k * SUMS, F32), every(scale), every(-base[line]));
            powers_of_each(x, TILE / SUMS);
            for (int k = 0; k < TILE / SUMS; k++) store(from, k * SUMS, F32, x[k]);
            added[line][i] = (x[0] + x[1]) + (x[2] + x[3]);
        }
    }
    for (int line = 0; risen && line < 4; line++) {
        vec shrink = every(peak[line] - base[line]);
        powers_of_each(&shrink, 1);
        sum[line] *= shrink[0], peak[line] = now[line];
        for (int64_t i = line * padded; i < (line + 1) * padded; i += LANES)
            store(total, i, F32, load(total, i, F32) * shrink);
    }
    for (int line = 0; line < 4; line++) sum[line] += lanes_sum(added[line]);
}

/* total += weights · values over keys [low, high), for `lines` lines and `parts` vectors of channels from `channel`. */
INLINE void mix(int lines, int parts, int type, const float *weights, const char *const *values, int64_t channel,
                int64_t low, int64_t high, float *total, int64_t padded, const char *later) {
    vec sums[4][BESIDE];
    if (low >= high) return;
    for (int line = 0; line < lines; line++)
        for (int i = 0; i < parts; i++) sums[line][i] = load(total, line * padded + channel + i * LANES, F32);
    for (int64_t key = low; key < high; key++) {
        vec value[BESIDE];
        if (later) fetch(later + key * SLICE * width(type), SLICE * width(type));
        if (parts == 1) value[0] = load(values[key], channel, type);
        for (int i = 0; i + 2 <= parts; i += 2) load_two(values[key], channel + i * LANES, type, value + i);
        for (int i = 0; i < parts; i++) value[i] = taken(value[i]);
        for (int line = 0; line < lines; line++)
            for (int i = 0; i < parts; i++)
                sums[line][i] = fused(every(weights[line * TILE + key]), value[i], sums[line][i]);
    }
    for (int line = 0; line < lines; line++)
        for (int i = 0; i < parts; i++) store(total, line * padded + channel + i * LANES, F32, sums[line][i]);
}

/* What four lines see of a tile: [low, high) of each, of any and of all; nothing where low >= high. */
struct view {
    int64_t low[4], high[4], any_low, any_high, all_low, all_high;
};

static struct view view_of(const struct item *item, const struct sights *s, int64_t tile, int64_t line) {
    struct view v = {.any_low = TILE, .all_high = TILE};
    for (int64_t i = 0; i < least(4, item->lines - line); i++) {
        int64_t low = most(0, s->low[line + i] - tile), high = least(TILE, s->high[line + i] - tile);
        v.all_low = most(v.all_low, low), v.all_high = least(v.all_high, high);
        if (low >= high) continue;
        v.low[i] = low, v.high[i] = high;
        v.any_low = least(v.any_low, low), v.any_high = most(v.any_high, high);
    }
    return v;
}

/* `parts` vectors of channels for 4 lines: keys that all of them see together, those before and after line by line. */
INLINE void mix_four(int parts, int type, const struct view *v, const float *weights, const char *const *values,
                     int64_t channel, float *total, int64_t padded, const char *later) {
    int64_t low = v->all_low, high = most(v->all_low, v->all_high);
    for (int i = 0; i < 4; i++)
        mix(1, parts, type, weights + i * TILE, values, channel, v->low[i], least(low, v->high[i]), total + i * padded,
            padded, NULL);
    mix(4, parts, type, weights, values, channel, low, high, total, padded, later);
    for (int i = 0; i < 4; i++)
        mix(1, parts, type, weights + i * TILE, values, channel, high, v->high[i], total + i * padded,
            padded, NULL);
}

/* Weights [lines, TILE] times the tile's values, onto all totals; `later` is asked for beside the first lines. */
INLINE void mix_tile(int type, const struct view *views, int64_t groups, const float *weights,
                     const char *const *values, float *total, int64_t padded, const char *later) {
    int64_t channel = 0;
    for (; channel + SLICE <= padded; channel += SLICE)
        for (int64_t group = 0; group < groups; group++)
            mix_four(BESIDE, type, views + group, weights + group * 4 * TILE, values, channel,
                     total + group * 4 * padded, padded,
                     group || !later ? NULL : later + channel * TILE * width(type));
    for (; channel < padded; channel += LANES) /* of copies, which are FP32 */
        for (int64_t group = 0; group < groups; group++)
            mix_four(1, F32, views + group, weights + group * 4 * TILE, values, channel, total + group * 4 * padded,
                     padded, NULL);
}

/* Positions [low, high), all of one tile; `later` is asked for meanwhile. */
static void plain_tile(const struct attention_job *j, const struct item *item, const struct sights *s, int64_t low,
                       int64_t high, const float *q, float *workspace, float *state, struct place later) {
    int64_t tile = low / TILE * TILE, dim = j->a.dim, groups = above(item->lines, 4) / 4, paired = j->a.act == BF16;
    uint32_t *columns = (uint32_t *)workspace;
    float *copies = workspace + TILE * j->padded, *scores = copies + TILE * j->padded, *total = total_of(state);
    float scale = 0x1.715476p+0f / sqrtf((float)dim);
    struct rows rows;
    struct view views[BLOCK / 4];
    find_rows(j, item, low, high, copies, &rows);
    for (int64_t group = 0; group < groups; group++) views[group] = view_of(item, s, tile, 4 * group);
    for (int64_t first = (low - tile) / SLICE * SLICE; first < high - tile; first += SLICE) {
        uint32_t *slice = columns + first * dim;
        for (int64_t i = 0; i < SLICE; i += LANES) turn_keys(rows.keys + first + i, dim >> paired, slice + i);
        for (int64_t group = 0; group < groups; group++) {
            if (first >= views[group].any_high || first + SLICE <= views[group].any_low) continue;
            const char *ahead = group || !later.key ? NULL : later.key + first * dim * width(j->a.act);
            float *to = scores + group * 4 * TILE + first;
            if (paired) score(1, q + group * 4 * dim, slice, dim, to, ahead);
            else score(0, q + group * 4 * dim, slice, dim, to, ahead);
        }
    }
    for (int64_t group = 0; group < groups; group++) {
        float *from = scores + group * 4 * TILE;
        if (views[group].any_low >= views[group].any_high) continue;
        for (int line = 0; line < 4; line++) {
            for (int64_t i = 0; i < views[group].low[line]; i++) from[line * TILE + i] = -INFINITY;
            for (int64_t i = views[group].high[line]; i < TILE; i++) from[line * TILE + i] = -INFINITY;
        }
        weigh(from, scale, peak_of(state) + 4 * group, sum_of(state) + 4 * group, total + 4 * group * j->padded,
              j->padded);
    }
    if (rows.type == BF16) mix_tile(BF16, views, groups, scores, rows.values, total, j->padded, later.value);
    else if (rows.type == F16) mix_tile(F16, views, groups, scores, rows.values, total, j->padded, later.value);
    else mix_tile(F32, views, groups, scores, rows.values, total, j->padded, later.value);
}
