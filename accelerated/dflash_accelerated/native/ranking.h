/* The best of each row of scores, in the order of the torch function `ranked`. */

#define MOST_RANKED 64
#define SPAN (4 * LANES)

/* Each score as an integer of the same order: -0 as +0, NaN above all or, with its sign bit, below all. */
INLINE ints orders(vec x) {
    ints bits = (ints)(x + 0.0f);
    return bits ^ (bits >> 31 & 0x7fffffff);
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

/* The `count` best of a row of at least so many: a span at a time is held against the least of them. */
static void best_of_row(const struct score_rows *rows, const void *x, int64_t count, struct ranked *best) {
    int64_t found = 0;
    int32_t lowest = INT32_MIN;
    for (int64_t first = 0; first < rows->n; first += SPAN) {
        union { ints each[4]; int32_t one[SPAN]; } order;
        ints met = {0};
        for (int64_t i = 0, column = first; i < 4 && column < rows->n; i++, column += LANES) {
            order.each[i] = orders(load_some(x, column, rows->type, rows->n - column) * rows->multiplier);
            met |= order.each[i] >= lowest;
        }
        if (!any(met)) continue;
        for (int64_t i = 0, column = first; i < SPAN && column < rows->n; i++, column++) {
            if (order.one[i] < lowest) continue;
            int64_t key = order.one[i] * ((int64_t)1 << 32) - (rows->ids ? rows->ids[column] : column);
            found = inserted(best, found, count, (struct ranked){key, column, order.one[i]});
            if (found == count) lowest = best[count - 1].order;
        }
    }
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
