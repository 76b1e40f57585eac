/* Processed distributions, and draws from them. */

/* FP64 sums in SUMS lanes, in vectors of the machine's own width. */
typedef double doubles __attribute__((vector_size(4 * LANES)));

struct sums {
    doubles half[2 * PARTS]; /* of each vector of FP32 */
};

INLINE void add_doubles(struct sums *sums, int part, vec x) {
    typedef float floats __attribute__((vector_size(2 * LANES)));
    union { vec all; floats half[2]; } given = {x};
    for (int i = 0; i < 2; i++) {
#if LANES == 16
        sums->half[2 * part + i] += (doubles)_mm512_cvtps_pd((__m256)given.half[i]); /* GCC would take four steps */
#else
        sums->half[2 * part + i] += __builtin_convertvector(given.half[i], doubles);
#endif
    }
}

INLINE double doubles_sum(const struct sums *sums) {
    double sum = 0;
    for (int i = 0; i < SUMS; i++) sum += sums->half[i / (LANES / 2)][i % (LANES / 2)];
    return sum;
}

/* add(..., part, i, some) for all n numbers: to which of the sums' parts, from which place on, and how many. */
#define ADD_ALL(n, add, ...)                                                                            \
    do {                                                                                                \
        int64_t i = 0;                                                                                  \
        for (; i + SUMS <= (n); i += SUMS)                                                              \
            for (int part = 0; part < PARTS; part++) add(__VA_ARGS__, part, i + part * LANES, LANES);   \
        for (int part = 0; part < PARTS && i < (n); part++, i += LANES) add(__VA_ARGS__, part, i, (n) - i); \
    } while (0)

struct law_job {
    struct score_rows rows; /* FP32, not multiplied, by column */
    const uint8_t *greedy;
    const float *temperature, *top_p, *min_p;
    const int64_t *top_k;
    int64_t *support; /* null where that is every column */
    float *p;
    int64_t count, cap;
    int filtered;
};

INLINE float score_of(const void *x, int64_t column) { return load_one(x, column, F32); }

/* A row of scores, its best few in order, and their peak; without a cap every score's weight, and the sum of these. */
struct row_law {
    const void *x;
    int64_t n, few;
    struct ranked best[MOST_RANKED];
    float peak, temperature, *weights;
    double mass;
};

/* e to the (score - peak) / temperature: the argument is 0 at the peak, so that no temperature overflows it. */
INLINE vec weights_of(const struct row_law *r, vec score) { return exponential((score - r->peak) / r->temperature); }

/* The first `places` columns of one order, and all that rank above them. */
struct cut {
    int32_t order;
    int64_t places;
};

INLINE float weight_in(const struct row_law *r, int32_t order) {
    return weights_of(r, every(score_in(order)))[0];
}

INLINE void add_weights(const struct row_law *r, struct sums *sums, int part, int64_t i, int64_t some) {
    store_some(r->weights, i, F32, weights_of(r, load_some(r->x, i, F32, some)), some);
    add_doubles(sums, part, load_some(r->weights, i, F32, some));
}

static void weigh_all(struct row_law *r) {
    struct sums sums = {{{0}}};
    ADD_ALL(r->n, add_weights, r, &sums);
    r->mass = doubles_sum(&sums);
}

INLINE void add_above(const struct row_law *r, int32_t order, int by_mass, struct sums *sums, int part, int64_t i,
                      int64_t some) {
    ints column = COLUMNS, met = orders(load_some(r->x, i, F32, some)) > order;
    if (some < LANES) met &= column < (int32_t)some;
    add_doubles(sums, part, chosen(met, by_mass ? load_some(r->weights, i, F32, some) : every(1), every(0)));
}

/* How many columns rank above `order`, or (by mass) the sum of their weights. */
static double above_order(const struct row_law *r, int32_t order, int by_mass) {
    struct sums sums = {{{0}}};
    if (by_mass) ADD_ALL(r->n, add_above, r, order, 1, &sums);
    else ADD_ALL(r->n, add_above, r, order, 0, &sums);
    return doubles_sum(&sums);
}

/* The fewest best columns whose number, or mass, is at least `wanted`, by bisection: no row is ever ordered. `total` is
 * that of what ranks above the cut's order. */
static struct cut cut_at(const struct row_law *r, double wanted, int by_mass, double *total) {
    int64_t low = INT32_MIN, high = INT32_MAX; /* above `low` lies enough, above `high` not */
    while (high - low > 1) {
        int64_t middle = low + (high - low) / 2;
        if (above_order(r, (int32_t)middle, by_mass) >= wanted) low = middle;
        else high = middle;
    }
    struct cut cut = {(int32_t)high, 0};
    double each = by_mass ? weight_in(r, cut.order) : 1, sum = *total = above_order(r, cut.order, by_mass);
    for (; cut.places < r->n && sum < wanted; cut.places++) sum += each;
    return cut;
}

/* How much mass of what top-k leaves a row's top-p asks for. */
static double share_of(const struct row_law *r, int64_t limit, float top_p) {
    double total = 0;
    if (top_p >= 1) return INFINITY;
    if (limit <= r->few) {
        for (int64_t i = 0; i < limit; i++) total += weight_in(r, r->best[i].order);
    } else if (limit == r->n) {
        total = r->mass;
    } else {
        double count;
        struct cut cut = cut_at(r, (double)limit, 0, &count);
        total = above_order(r, cut.order, 1) + (double)cut.places * weight_in(r, cut.order);
    }
    return top_p * total;
}

/* How many of the best few the filters leave: the first, where that is a number, and more until one is stopped. */
static int64_t kept_of(const struct row_law *r, int64_t limit, double share, float min_p) {
    int64_t kept = 0;
    double sum = 0;
    for (; kept < least(limit, r->few); kept++) {
        int32_t order = r->best[kept].order;
        float weight = weight_in(r, order);
        if (!(score_of(r->x, r->best[kept].column) > -INFINITY)) break;
        if (kept && !(weight >= min_p && sum < share)) break;
        sum += weight;
    }
    return kept;
}

static void law_of_best(const struct law_job *j, int64_t row, struct row_law *r) {
    int64_t k = j->top_k[row], limit = k >= 1 && k < j->count ? k : j->count, *support = j->support + row * j->count;
    float scores[MOST_RANKED];
    r->few = j->count;
    best_of_row(&j->rows, r->x, r->few, r->best);
    r->peak = score_of(r->x, r->best[0].column);
    int64_t kept = kept_of(r, limit, share_of(r, limit, j->top_p[row]), j->min_p[row]);
    for (int64_t i = 0; i < j->count; i++) {
        scores[i] = i < kept ? score_of(r->x, r->best[i].column) : -INFINITY;
        support[i] = i < kept ? r->best[i].column : -1;
    }
    soften(scores, j->p + row * j->count, j->count, scores[0], r->temperature);
}

/* Where top-k and top-p cut a row, once every column has its weight: among the best few, or by search. */
static struct cut cut_of(const struct law_job *j, int64_t row, struct row_law *r) {
    int64_t k = j->top_k[row], limit = k >= 1 && k < r->n ? k : r->n;
    r->few = least(limit, MOST_RANKED);
    best_of_row(&j->rows, r->x, r->few, r->best);
    double share = share_of(r, limit, j->top_p[row]), unused;
    int64_t kept = kept_of(r, limit, share, j->min_p[row]);
    if (kept < r->few || kept == limit) {
        struct cut cut = {r->best[most(1, kept) - 1].order, 1};
        for (int64_t i = most(1, kept) - 1; i && r->best[i - 1].order == cut.order; i--) cut.places++;
        return cut;
    }
    struct cut first = {INT32_MIN, r->n}, second = first;
    if (limit < r->n) first = cut_at(r, (double)limit, 0, &unused);
    if (share < INFINITY) second = cut_at(r, share, 1, &unused);
    if (first.order == second.order) return first.places < second.places ? first : second;
    return first.order > second.order ? first : second;
}

/* Without the weights past a cut, whose last column is `last`, and those below a floor. */
INLINE void add_kept(const struct row_law *r, int32_t order, int64_t last, float floor, struct sums *sums, int part,
                     int64_t i, int64_t some) {
    ints column = COLUMNS, own = orders(load_some(r->x, i, F32, some));
    ints kept = (own > order) | ((own == order) & (column <= (int32_t)(last - i)));
    vec weight = load_some(r->weights, i, F32, some);
    weight = chosen(kept & (weight >= floor), weight, every(0));
    store_some(r->weights, i, F32, weight, some);
    add_doubles(sums, part, load_some(r->weights, i, F32, some));
}

static void take_off(struct row_law *r, struct cut cut, float floor) {
    int64_t last = -1;
    for (int64_t i = 0; i < r->n && cut.places; i += LANES) {
        uint32_t met = bits_of(orders(load_some(r->x, i, F32, r->n - i)) == cut.order);
        for (; met && cut.places; met &= met - 1, cut.places--) last = i + __builtin_ctz(met);
    }
    struct sums sums = {{{0}}};
    ADD_ALL(r->n, add_kept, r, cut.order, last, floor, &sums);
    r->mass = doubles_sum(&sums);
}

static void law_of_all(const struct law_job *j, int64_t row, struct row_law *r) {
    r->peak = score_of(r->x, greatest_of(r->x, r->n, F32));
    r->weights = j->p + row * r->n;
    weigh_all(r);
    if (j->filtered && !j->greedy[row] && (j->top_k[row] || j->top_p[row] < 1))
        take_off(r, cut_of(j, row, r), j->min_p[row]);
    float *p = r->weights, total = (float)r->mass;
    for (int64_t i = 0; i < r->n; i += LANES) store_some(p, i, F32, load_some(p, i, F32, r->n - i) / total, r->n - i);
}

static void law_of_row(void *held, int64_t row, int64_t thread) {
    const struct law_job *j = held;
    struct row_law r;
    (void)thread;
    r.x = at(j->rows.x, row * j->rows.stride, F32);
    r.n = j->rows.n;
    r.temperature = j->temperature[row];
    (j->cap ? law_of_best : law_of_all)(j, row, &r);
}

/* scores [rows, n], rows `stride` apart, n at least 1, and settings [rows]. With a cap, support and p [rows, count],
 * where count is at most 64 and n; without one p [rows, n], and support is null. */
void distribution(const void *scores, const uint8_t *greedy, const float *temperature, const int64_t *top_k,
                  const float *top_p, const float *min_p, int64_t *support, float *p, int64_t rows, int64_t n,
                  int64_t stride, int64_t count, int64_t cap, int filtered, int64_t threads) {
    struct score_rows given = {scores, NULL, n, stride, F32, 1};
    struct law_job job = {given, greedy, temperature, top_p, min_p, top_k, support, p, count, cap, filtered};
    share(law_of_row, &job, rows, rows * n < 1 << 13 ? 1 : threads);
}

struct draw_job {
    const void *p;
    const int64_t *support;
    const double *goals;
    int64_t *tokens;
    int64_t n, stride, support_stride;
    int wide;
};

INLINE double weight_at(const void *p, int64_t place, int wide) {
    return wide ? ((const double *)p)[place] : ((const float *)p)[place];
}

/* The first place whose inclusive cumulative weight is above `goal`, else the last of weight above 0; -1 where there is
 * none, or where a weight is NaN. */
INLINE int64_t drawn_place(const void *p, int64_t n, double goal, int wide) {
    double sum = 0;
    int64_t i = 0, last = -1;
    int missing = 0, some = 0;
    for (; i < n; i++) {
        double weight = weight_at(p, i, wide);
        sum += weight;
        missing |= weight != weight;
        if (weight > 0) last = i;
        if (sum > goal) break;
    }
    int64_t found = i < n ? i : last;
    for (; i < n; i++) {
        double weight = weight_at(p, i, wide);
        missing |= weight != weight;
        some |= weight > 0;
    }
    return missing || (last < 0 && !some) ? -1 : found;
}

static void draw_row(void *held, int64_t row, int64_t thread) {
    const struct draw_job *j = held;
    const void *p = (const char *)j->p + row * j->stride * (j->wide ? 8 : 4);
    int64_t found = j->wide ? drawn_place(p, j->n, j->goals[row], 1) : drawn_place(p, j->n, j->goals[row], 0);
    (void)thread;
    j->tokens[row] = found < 0 || !j->support ? found : j->support[row * j->support_stride + found];
}

/* p [rows, n], float64 where `wide`, else FP32, rows `stride` apart; ids [rows, n], or null for the places themselves;
 * goals and tokens [rows]. */
void draw(const void *p, const int64_t *support, const double *goals, int64_t *tokens, int64_t rows, int64_t n,
          int64_t stride, int64_t support_stride, int wide, int64_t threads) {
    struct draw_job job = {p, support, goals, tokens, n, stride, support_stride, wide};
    share(draw_row, &job, rows, rows * n < 1 << 14 ? 1 : threads);
}
