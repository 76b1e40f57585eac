/* Norms, RoPE, SwiGLU and the grouped convolution: one row after another, each in FP32 with the roundings of the torch
 * functions of the same names. */

/* 1 / sqrt(mean(x²) + eps) of one row; with `through` its elements are rounded to that type first. Of each 4 · SUMS
 * numbers every one has a sum of its own. */
INLINE float inverse_rms(const void *x, int type, int through, int64_t n, float eps) {
    vec sums[4 * PARTS] = {{0}};
    int64_t i = 0;
    for (; i + 4 * SUMS <= n; i += 4 * SUMS)
        for (int part = 0; part < 4 * PARTS; part++) {
            vec wide = narrowed(load(x, i + part * LANES, type), type, through);
            sums[part] += wide * wide;
        }
    for (int part = 0; i < n; part++, i += LANES) {
        vec wide = narrowed(load_some(x, i, type, n - i), type, through);
        sums[part] += wide * wide;
    }
    for (int part = 0; part < PARTS; part++)
        sums[part] = (sums[part] + sums[part + PARTS]) + (sums[part + 2 * PARTS] + sums[part + 3 * PARTS]);
    float mean = lanes_sum(sums) / (float)n;
    return 1.0f / sqrtf(mean + eps);
}

struct norm_job {
    const void *x, *weight;
    void *out;
    int64_t rows, n, weights, each;
    int type, held, act;
    float eps;
};

INLINE void norm_part(const void *x, const void *weight, void *out, vec scale, int64_t i, int64_t some, int type,
                      int held, int act) {
    vec quotient = rounded(load_some(x, i, type, some) * scale, held);
    store_through(out, i, held, act, quotient * load_some(weight, i, held, some), some);
}

INLINE void norm_each(const struct norm_job *j, int64_t first, int64_t end, int type, int held, int act) {
    for (int64_t row = first; row < end; row++) {
        const void *x = at(j->x, row * j->n, type);
        const void *weight = j->weights == 1 ? j->weight : at(j->weight, row % j->weights * j->n, held);
        void *out = (void *)at(j->out, row * j->n, act);
        vec scale = every(inverse_rms(x, type, F32, j->n, j->eps));
        int64_t i = 0;
        for (; i + LANES <= j->n; i += LANES) norm_part(x, weight, out, scale, i, LANES, type, held, act);
        if (i < j->n) norm_part(x, weight, out, scale, i, j->n - i, type, held, act);
    }
}

static void norm_rows(void *held, int64_t index, int64_t thread) {
    const struct norm_job *j = held;
    int64_t first = index * j->each, end = least(j->rows, first + j->each);
    (void)thread;
    if (j->type == BF16 && j->held == BF16 && j->act == BF16) norm_each(j, first, end, BF16, BF16, BF16);
    else if (j->type == F32 && j->held == F32 && j->act == F32) norm_each(j, first, end, F32, F32, F32);
    else if (j->type == BF16 && j->held == F32 && j->act == BF16) norm_each(j, first, end, BF16, F32, BF16);
    else if (j->type == BF16 && j->held == F32 && j->act == F32) norm_each(j, first, end, BF16, F32, F32);
    else norm_each(j, first, end, j->type, j->held, j->act);
}

/* x [rows, n] of `type`, weight [weights, n] of `held` (row r takes r mod weights), out [rows, n] of `act`. */
void rms_norm(const void *x, const void *weight, void *out, int64_t rows, int64_t n, int64_t weights, int type,
              int held, int act, float eps, int64_t threads) {
    struct norm_job job = {x, weight, out, rows, n, weights, rows_each(rows, n, threads), type, held, act, eps};
    share(norm_rows, &job, (rows + job.each - 1) / job.each, threads);
}

/* What one head's norm and turn need beside its channels; `compute` is the type of weights and tables. */
struct turning {
    int64_t dim;
    float eps;
    int type, compute, act, staged, raw_rounded;
};

/* Channels of one head, the norm's weights, the cosines and sines of half of them, and where they go. */
struct head_row {
    const void *x, *weight, *cosine, *sine;
    void *out;
};

/* Channel i + side * half, normed: the product with the weight is rounded to `compute`. */
INLINE vec normed_part(const struct turning *t, const struct head_row *h, vec scale, int64_t place, int64_t some,
                       int type, int compute, int act) {
    vec x = load_some(h->x, place, type, some);
    if (t->raw_rounded) x = narrowed(x, type, act);
    vec quotient = rounded(x * scale, compute);
    vec product = rounded(quotient * load_some(h->weight, place, compute, some), compute);
    return t->staged && act != compute ? rounded(rounded(product, act), compute) : product;
}

INLINE void turn_part(const struct turning *t, const struct head_row *h, vec scale, int64_t half, int64_t i,
                      int64_t some, int type, int compute, int act) {
    vec a = normed_part(t, h, scale, i, some, type, compute, act);
    vec b = normed_part(t, h, scale, i + half, some, type, compute, act);
    vec c = load_some(h->cosine, i, compute, some), s = load_some(h->sine, i, compute, some);
    store_through(h->out, i, compute, act, rounded(a * c, compute) - rounded(b * s, compute), some);
    store_through(h->out, i + half, compute, act, rounded(b * c, compute) + rounded(a * s, compute), some);
}

#define HEADS 8

/* Up to 8 heads: norm, then channel j turned with channel j + dim / 2. The product with the weight and each step of the
 * turn are rounded to `compute`; to `act` the raw value where raw_rounded, the normed one where staged, and the end.
 * All roots come first, because a head alone would wait for its own. */
INLINE void turn_channels(const struct turning *t, const struct head_row *h, int64_t heads, int64_t dim, int type,
                          int compute, int act) {
    int64_t half = dim / 2;
    float scales[HEADS];
    for (int64_t head = 0; head < heads; head++)
        scales[head] = inverse_rms(h[head].x, type, t->raw_rounded ? act : F32, dim, t->eps);
    for (int64_t head = 0; head < heads; head++) {
        vec scale = every(scales[head]);
        int64_t i = 0;
        for (; i + LANES <= half; i += LANES) turn_part(t, h + head, scale, half, i, LANES, type, compute, act);
        if (i < half) turn_part(t, h + head, scale, half, i, half - i, type, compute, act);
    }
}

INLINE void turn_heads(const struct turning *t, const struct head_row *h, int64_t heads, int type, int compute,
                       int act) {
    if (t->dim == 64) turn_channels(t, h, heads, 64, type, compute, act);
    else if (t->dim == 128) turn_channels(t, h, heads, 128, type, compute, act);
    else turn_channels(t, h, heads, t->dim, type, compute, act);
}

typedef void turner(const struct turning *t, const struct head_row *h, int64_t heads);

static void turn_bf16(const struct turning *t, const struct head_row *h, int64_t heads) {
    turn_heads(t, h, heads, BF16, BF16, BF16);
}

static void turn_f32(const struct turning *t, const struct head_row *h, int64_t heads) {
    turn_heads(t, h, heads, F32, F32, F32);
}

static void turn_in_f32(const struct turning *t, const struct head_row *h, int64_t heads) {
    turn_heads(t, h, heads, BF16, F32, BF16);
}

static void turn_to_bf16(const struct turning *t, const struct head_row *h, int64_t heads) {
    turn_heads(t, h, heads, F32, F32, BF16);
}

static void turn_any(const struct turning *t, const struct head_row *h, int64_t heads) {
    turn_channels(t, h, heads, t->dim, t->type, t->compute, t->act);
}

static turner *turner_of(const struct turning *t) {
    if (t->act == BF16 && t->compute == BF16) return t->type == BF16 ? turn_bf16 : turn_any;
    if (t->act == BF16 && t->compute == F32)
        return t->type == BF16 ? turn_in_f32 : t->type == F32 ? turn_to_bf16 : turn_any;
    return t->act == F32 && t->compute == F32 && t->type == F32 ? turn_f32 : turn_any;
}

struct rope_job {
    struct turning turning;
    const void *raw, *weight, *cosine, *sine;
    void *out;
    int64_t rows, heads, stride, weights, each;
};

/* Heads first .. first + n - 1 of some rows. */
static void turn_some(const struct rope_job *j, int64_t row, int64_t rows, int64_t first, int64_t n) {
    const struct turning *t = &j->turning;
    turner *turn = turner_of(t);
    for (int64_t item = 0; item < rows * n; item += HEADS) {
        struct head_row h[HEADS];
        int64_t some = least(HEADS, rows * n - item);
        for (int64_t i = 0; i < some; i++) {
            int64_t own = row + (item + i) / n, head = first + (item + i) % n, place = own * (t->dim / 2);
            h[i] = (struct head_row){at(j->raw, own * j->stride + head * t->dim, t->type),
                                     at(j->weight, (j->weights == 1 ? 0 : head) * t->dim, t->compute),
                                     at(j->cosine, place, t->compute), at(j->sine, place, t->compute),
                                     (void *)at(j->out, (own * j->heads + head) * t->dim, t->act)};
        }
        turn(t, h, some);
    }
}

static void rope_rows(void *held, int64_t index, int64_t thread) {
    const struct rope_job *j = held;
    int64_t row = index * j->each;
    (void)thread;
    turn_some(j, row, least(j->each, j->rows - row), 0, j->heads);
}

/* raw [rows, heads, dim] of `type`, its rows `stride` elements apart; weight [1 or heads, dim] and tables
 * [rows, dim / 2] of `compute`; out [rows, heads, dim] of `act`. */
void norm_rope(const void *raw, const void *weight, const void *cosine, const void *sine, void *out, int64_t rows,
               int64_t heads, int64_t dim, int64_t stride, int64_t weights, int type, int compute, int act, int staged,
               float eps, int64_t threads) {
    struct rope_job job = {{dim, eps, type, compute, act, staged, 0},
                           raw, weight, cosine, sine, out, rows, heads, stride, weights,
                           rows_each(rows, heads * dim, threads)};
    share(rope_rows, &job, (rows + job.each - 1) / job.each, threads);
}

struct gate_job {
    const void *gate_up;
    void *out;
    int64_t rows, n, each;
    int compute, act;
};

/* `count` vectors side by side, up to four. */
INLINE void gate_part(const void *gates, const void *ups, void *out, int64_t i, int count, int64_t some, int compute,
                      int act) {
    vec gate[4], silu[4];
    for (int part = 0; part < count; part++) gate[part] = load_some(gates, i + part * LANES, compute, some);
    for (int part = 0; part < count; part++) silu[part] = -gate[part];
    exponential_of_each(silu, count);
    for (int part = 0; part < count; part++) silu[part] = rounded(gate[part] / (1.0f + silu[part]), compute);
    for (int part = 0; part < count; part++) {
        vec up = load_some(ups, i + part * LANES, compute, some);
        store_through(out, i + part * LANES, compute, act, silu[part] * up, some);
    }
}

INLINE void gate_each(const struct gate_job *j, int64_t first, int64_t end, int compute, int act) {
    for (int64_t row = first; row < end; row++) {
        const void *gates = at(j->gate_up, row * 2 * j->n, compute), *ups = at(gates, j->n, compute);
        void *out = (void *)at(j->out, row * j->n, act);
        int64_t i = 0;
        for (; i + 4 * LANES <= j->n; i += 4 * LANES) gate_part(gates, ups, out, i, 4, LANES, compute, act);
        for (; i < j->n; i += LANES) gate_part(gates, ups, out, i, 1, j->n - i, compute, act);
    }
}

static void gate_rows(void *held, int64_t index, int64_t thread) {
    const struct gate_job *j = held;
    int64_t first = index * j->each, end = least(j->rows, first + j->each);
    (void)thread;
    BY_TYPES(gate_each, j->compute, j->act, j, first, end);
}

/* gate_up [rows, 2n] of `compute`: SiLU(first half) · second half, out [rows, n] of `act`. */
void gated(const void *gate_up, void *out, int64_t rows, int64_t n, int compute, int act, int64_t threads) {
    struct gate_job job = {gate_up, out, rows, n, rows_each(rows, 2 * n, threads), compute, act};
    share(gate_rows, &job, (rows + job.each - 1) / job.each, threads);
}

struct conv_job {
    const void *z, *base, *delta, *residual;
    const int64_t *slot;
    void *out;
    int64_t rows, n, taps, groups, delta_stride, each;
    int compute, act, through; /* increments are rounded to `through` */
};

#define CHANNELS 512

/* Increments of channels first .. first + n - 1: each serves `size` neighbours. What follows the last may be written. */
INLINE void spread(const void *delta, int64_t size, int64_t first, int64_t n, float *to, int type, int through) {
    int64_t group = first / size, end = (group + 1) * size - first, each = LANES / size, left = n / size;
    if (size < LANES && LANES % size == 0) {
        ints places = (ints)COLUMNS >> __builtin_ctz((unsigned)size);
        for (int64_t i = 0; i < n; i += LANES, group += each, left -= each) {
            vec some = narrowed(load_some(delta, group, type, least(each, left)), type, through);
            store(to, i, F32, picked(some, places));
        }
    } else {
        for (int64_t i = 0; i < n; i = end, end += size, group++) {
            vec one = narrowed(every(load_one(delta, group, type)), type, through);
            for (; i < least(end, n); i += LANES) store(to, i, F32, one);
        }
    }
}

/* One tap of a vector of channels, or of `some`; `before` is NULL where no row of the block stands there. */
INLINE void tap_part(vec *totals, const float *increments, const void *base, const void *before, int64_t i,
                     int64_t some, int first, int type) {
    vec weight = rounded(load_some(base, i, type, some) + load(increments, i, F32), type);
    vec term = rounded(weight * (before ? load_some(before, i, type, some) : every(0)), type);
    totals[i / LANES] = first ? term : rounded(totals[i / LANES] + term, type);
}

INLINE void add_tap(vec *totals, const float *increments, const void *base, const void *before, int64_t n, int first,
                    int type) {
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES) tap_part(totals, increments, base, before, i, LANES, first, type);
    if (i < n) tap_part(totals, increments, base, before, i, n - i, first, type);
}

INLINE void conv_part(const vec *totals, const void *residual, void *out, int64_t i, int64_t some, int compute,
                      int act) {
    vec total = totals[i / LANES];
    if (residual) total = load_some(residual, i, act, some) + total;
    store_through(out, i, compute, act, total, some);
}

/* Channels start .. start + n - 1 of one row. */
INLINE void conv_channels(const struct conv_job *j, int64_t row, int64_t start, int64_t n, int compute, int act) {
    float increments[CHANNELS + LANES] __attribute__((aligned(64)));
    vec totals[CHANNELS / LANES];
    for (int64_t tap = 0; tap < j->taps; tap++) {
        const void *delta = at(j->delta, row * j->delta_stride + tap * j->groups, compute);
        const void *base = at(j->base, tap * j->n + start, compute);
        const void *before = j->slot[row] < tap ? NULL : at(j->z, (row - tap) * j->n + start, compute);
        spread(delta, j->n / j->groups, start, n, increments, compute, j->through);
        if (tap) add_tap(totals, increments, base, before, n, 0, compute);
        else add_tap(totals, increments, base, before, n, 1, compute);
    }
    const void *residual = j->residual ? at(j->residual, row * j->n + start, act) : NULL;
    void *out = (void *)at(j->out, row * j->n + start, act);
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES) conv_part(totals, residual, out, i, LANES, compute, act);
    if (i < n) conv_part(totals, residual, out, i, n - i, compute, act);
}

INLINE void conv_each(const struct conv_job *j, int64_t row, int64_t rows, int64_t first, int64_t n, int compute,
                      int act) {
    for (int64_t end = row + rows; row < end; row++)
        for (int64_t i = 0; i < n; i += CHANNELS)
            conv_channels(j, row, first + i, least(CHANNELS, n - i), compute, act);
}

/* Channels first .. first + n - 1 of some rows. */
static void convolve_some(const void *held, int64_t row, int64_t rows, int64_t first, int64_t n) {
    const struct conv_job *j = held;
    BY_TYPES(conv_each, j->compute, j->act, j, row, rows, first, n);
}

static void conv_rows(void *held, int64_t index, int64_t thread) {
    const struct conv_job *j = held;
    int64_t row = index * j->each;
    (void)thread;
    convolve_some(j, row, least(j->each, j->rows - row), 0, j->n);
}

/* z [rows, n] and base [taps, n] of `compute`, delta [rows, taps, groups] with rows `delta_stride` apart, slot [rows];
 * residual [rows, n] of `act`, or null; out [rows, n] of `act`. */
void convolve(const void *z, const void *base, const void *delta, const int64_t *slot, const void *residual, void *out,
              int64_t rows, int64_t n, int64_t taps, int64_t groups, int64_t delta_stride, int compute, int act,
              int64_t threads) {
    struct conv_job job = {z, base, delta, residual, slot, out, rows, n, taps, groups, delta_stride,
                           rows_each(rows, n * taps, threads), compute, act, compute};
    share(conv_rows, &job, (rows + job.each - 1) / job.each, threads);
}
