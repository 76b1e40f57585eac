/* The best of each row of scores, in the order of the torch function `ranked`. */

#define MOST_RANKED 64
#define SPAN 64 /* no fewer than can be ranked */

enum { SPAN_PARTS = SPAN / LANES };

/* Each score as an integer of the same order: -0 as +0, NaN above all or, with its sign bit, below all. */
INLINE ints orders(vec x) {
    ints bits = (ints)(x + 0.0f);
    return bits ^ (bits >> 31 & 0x7fffffff);
}

/* A score of that order. */
INLINE float score_in(int32_t order) {
    union { int32_t bits; float score; } x = {order ^ (order >> 31 & 0x7fffffff)};
    return x.score;
}

/* One score of a row: `key` orders by score and then by id, the lower id above. */
struct ranked {
    int64_t key, column;
    int32_t order;
};

/* Into the `found` best so far, in order, of at most `count`; returns how many there are. Equal keys keep the columns'
 * order. */
INLINE int64_t inserted(struct ranked *best, int64_t found, int64_t count, struct ranked one) {
    int64_t place = found < count ? found : count - 1, left = place + 1;
    if (found == count && one.key <= best[place].key) return found;
    for (; place && best[place - 1].key < one.key; place--) best[place] = best[place - 1];
    best[place] = one;
    return left;
}

/* x [rows, n] of `type`, rows `stride` apart, times `multiplier`; ids [n], or null for the columns themselves. */
struct score_rows {
    const void *x;
    const int64_t *ids;
    int64_t n, stride;
    int type;
    float multiplier;
};

/* What `count` columns at least reach: the bests of every 64th column are columns, and the bound is the last of `count`
 * bests. Any order where there are not so many numbers above -inf. */
INLINE int32_t reached_by(const struct score_rows *rows, const void *x, int64_t count, int type) {
    vec tops[SPAN_PARTS], now[SPAN_PARTS];
    for (int i = 0; i < SPAN_PARTS; i++) tops[i] = every(-INFINITY);
    for (int64_t first = 0; first + SPAN <= rows->n; first += SPAN) {
        for (int i = 0; i < SPAN_PARTS; i += 2) load_two(x, first + i * LANES, type, now + i);
        for (int i = 0; i < SPAN_PARTS; i++) tops[i] = larger(now[i] * rows->multiplier, tops[i]);
    }
    int64_t none = orders(every(-INFINITY))[0], low = none, high = INT32_MAX;
    while (high - low > 1) {
        int64_t middle = low + (high - low) / 2, above = 0;
        for (int i = 0; i < SPAN_PARTS; i++) above += __builtin_popcount(bits_of(orders(tops[i]) >= (int32_t)middle));
        if (above >= count) low = middle;
        else high = middle;
    }
    return low == none ? INT32_MIN : (int32_t)low;
}

/* Columns first .. first + n - 1 into the best so far, `found` of them, from `lowest` on; returns how many there are. */
INLINE int64_t best_of_span(const struct score_rows *rows, const void *x, int64_t first, int64_t n, int64_t count,
                            int32_t lowest, struct ranked *best, int64_t found, int type) {
    for (int64_t i = 0; i < n; i += LANES) {
        union { ints each; int32_t one[LANES]; } order;
        order.each = orders(load_some(x, first + i, type, n - i) * rows->multiplier);
        uint32_t met = bits_of(order.each >= lowest);
        if (n - i < LANES) met &= (1u << (n - i)) - 1;
        for (; met; met &= met - 1) {
            int32_t own = order.one[__builtin_ctz(met)];
            int64_t column = first + i + __builtin_ctz(met);
            int64_t key = own * ((int64_t)1 << 32) - (rows->ids ? rows->ids[column] : column);
            found = inserted(best, found, count, (struct ranked){key, column, own});
        }
    }
    return found;
}

/* The `count` best of a row of at least so many: a span is looked at only where a score in it is not below a bound. */
INLINE void best_in_row(const struct score_rows *rows, const void *x, int64_t count, struct ranked *best, int type) {
    int64_t found = 0, first = 0;
    int32_t order = rows->n < 16 * SPAN ? INT32_MIN : reached_by(rows, x, count, type);
    vec lowest = every(order == INT32_MIN ? NAN : score_in(order)); /* nothing is below NaN */
    for (; first + SPAN <= rows->n; first += SPAN) {
        flags met = {0};
        for (int64_t i = 0; i < SPAN; i += 2 * LANES) {
            vec now[2];
            load_two(x, first + i, type, now);
            met |= not_below(now[0] * rows->multiplier, lowest) | not_below(now[1] * rows->multiplier, lowest);
        }
        if (!any(met)) continue;
        found = best_of_span(rows, x, first, SPAN, count, order, best, found, type);
        if (found == count && best[count - 1].order > order)
            order = best[count - 1].order, lowest = every(score_in(order));
    }
    best_of_span(rows, x, first, rows->n - first, count, order, best, found, type);
}

static void best_of_row(const struct score_rows *rows, const void *x, int64_t count, struct ranked *best) {
    if (rows->type == BF16) best_in_row(rows, x, count, best, BF16);
    else if (rows->type == F32) best_in_row(rows, x, count, best, F32);
    else best_in_row(rows, x, count, best, rows->type);
}

struct top_job {
    struct score_rows rows;
    int64_t *ids;
    float *scores;
    int64_t count;
};

static void top_of_row(void *held, int64_t row, int64_t thread) {
    const struct top_job *j = held;
    const struct score_rows *rows = &j->rows;
    const void *x = at(rows->x, row * rows->stride, rows->type);
    struct ranked best[MOST_RANKED];
    (void)thread;
    best_of_row(rows, x, j->count, best);
    for (int64_t i = 0; i < j->count; i++) {
        j->ids[row * j->count + i] = rows->ids[best[i].column];
        j->scores[row * j->count + i] = load_one(x, best[i].column, rows->type) * rows->multiplier;
    }
}

/* ids and scores [rows, count] of the best of x [rows, n], whose columns have the ids `given`; 0 < count <= 64, n. */
void top(const void *x, const int64_t *given, int64_t *ids, float *scores, int64_t rows, int64_t n, int64_t stride,
         int64_t count, int type, float multiplier, int64_t threads) {
    struct top_job job = {{x, given, n, stride, type, multiplier}, ids, scores, count};
    share(top_of_row, &job, rows, rows * n < 1 << 15 ? 1 : threads);
}
