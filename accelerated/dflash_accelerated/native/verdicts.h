/* Acceptance of proposals drawn from a law, and the token that ends each round. */

/* Rows of FP32 weights: of the ids beside them, or of every id in order where there are none. */
struct weight_rows {
    const int64_t *ids;
    const float *weights;
    int64_t places, id_stride, stride;
};

struct verdict_job {
    const int64_t *proposals, *counts, *first; /* [requests, width], [requests]: request b's law begins at row first[b] */
    struct weight_rows law, drawn; /* of `drawn`, each request has one row less */
    const uint8_t *refused;
    const float *accept, *ends; /* [requests, width], [requests, width + 1] */
    double *rest;               /* [requests, law.places] */
    int64_t *licensed, *accepted;
    int64_t width;
    int covered, top_token;
};

INLINE const int64_t *ids_of(const struct weight_rows *w, int64_t row) {
    return w->ids ? w->ids + row * w->id_stride : NULL;
}

/* What a row gives to a token: 0 where its ids do not hold it, NaN where it has no ids and no such place. */
INLINE float given_to(const struct weight_rows *w, int64_t row, int64_t token) {
    const float *weights = w->weights + row * w->stride;
    const int64_t *ids = ids_of(w, row);
    if (!ids) return token < 0 || token >= w->places ? __builtin_nanf("") : weights[token];
    float sum = 0;
    for (int64_t i = 0; i < w->places; i++) sum += ids[i] == token ? weights[i] : 0;
    return sum;
}

/* Whether proposal `column` of a request stands: an FP32 product is compared, and NaN passes nothing. */
INLINE int passes(const struct verdict_job *j, int64_t request, int64_t column) {
    int64_t row = j->first[request] + column, token = j->proposals[request * j->width + column];
    if (j->refused && j->refused[row]) return 0;
    float p = given_to(&j->law, row, token), q = given_to(&j->drawn, row - request, token);
    float product = j->accept[request * j->width + column] * q;
    return product < p || (j->covered && p >= q);
}

/* rest [n] of a support (or of every id, where that is null), less q of an id, wherever it stands. */
INLINE void less_q(double *rest, const int64_t *support, int64_t n, int64_t id, float q) {
    if (!support) {
        if (id >= 0 && id < n) rest[id] -= q;
        return;
    }
    for (int64_t i = 0; i < n; i++)
        if (support[i] == id) rest[i] -= q;
}

/* Turns p into max(p - q, 0), q looked up by id, and gives its sum: NaN where either holds a NaN, at whichever id. */
static double residual(const struct verdict_job *j, double *rest, int64_t row, int64_t drawn_row) {
    const int64_t *support = ids_of(&j->law, row), *ids = ids_of(&j->drawn, drawn_row);
    const float *q = j->drawn.weights + drawn_row * j->drawn.stride;
    int64_t n = j->law.places, all = j->drawn.places;
    double sum = 0;
    int unknown = 0;
    for (int64_t i = 0; i < all; i++) unknown |= q[i] != q[i];
    if (unknown) return __builtin_nan("");
    if (ids)
        for (int64_t i = 0; i < all; i++) less_q(rest, support, n, ids[i], q[i]);
    else if (support)
        for (int64_t i = 0; i < n; i++) rest[i] -= support[i] < 0 || support[i] >= all ? 0 : q[support[i]];
    else
        for (int64_t i = 0; i < least(n, all); i++) rest[i] -= q[i];
    for (int64_t i = 0; i < n; i++) {
        rest[i] = rest[i] <= 0 ? 0 : rest[i];
        sum += rest[i];
    }
    return sum;
}

INLINE void copy_row(const struct verdict_job *j, double *rest, int64_t row) {
    for (int64_t i = 0; i < j->law.places; i++) rest[i] = j->law.weights[row * j->law.stride + i];
}

/* The correction after `accepted` proposals, or the bonus after all of them; -1 where a NaN decides. */
static int64_t last_token(const struct verdict_job *j, int64_t request, int64_t accepted) {
    int64_t row = j->first[request] + accepted;
    const int64_t *support = ids_of(&j->law, row);
    double *rest = j->rest + request * j->law.places, goal = j->ends[request * (j->width + 1) + accepted];
    if (j->refused && j->refused[row]) return -1;
    copy_row(j, rest, row);
    if (accepted < j->counts[request]) {
        double mass = residual(j, rest, row, row - request);
        if (mass != mass) return -1;
        if (mass > 0) goal *= mass;
        else if (!j->top_token) copy_row(j, rest, row);
        else if (support) return support[0];
    }
    int64_t place = drawn_place(rest, j->law.places, goal, 1);
    return place < 0 || !support ? place : support[place];
}

static void decide_round(void *held, int64_t request, int64_t thread) {
    const struct verdict_job *j = held;
    int64_t *out = j->licensed + request * (j->width + 1), accepted = 0;
    (void)thread;
    while (accepted < j->counts[request] && passes(j, request, accepted)) accepted++;
    for (int64_t i = 0; i <= j->width; i++) out[i] = i < accepted ? j->proposals[request * j->width + i] : 0;
    out[accepted] = last_token(j, request, accepted);
    j->accepted[request] = accepted;
}

/* Rounds of `requests`, as verdict_job has them. Ids may be null, and `refused` too; laws' rows are `stride` apart. */
void verdict(const int64_t *proposals, const int64_t *counts, const int64_t *first, const int64_t *support,
             const float *p, const int64_t *ids, const float *q, const uint8_t *refused, const float *accept,
             const float *ends, double *rest, int64_t *licensed, int64_t *accepted, int64_t requests, int64_t width,
             int64_t places, int64_t support_stride, int64_t stride, int64_t drawn_places, int64_t id_stride,
             int64_t drawn_stride, int covered, int top_token, int64_t threads) {
    struct weight_rows law = {support, p, places, support_stride, stride};
    struct weight_rows drawn = {ids, q, drawn_places, id_stride, drawn_stride};
    struct verdict_job job = {proposals, counts, first, law, drawn, refused, accept, ends,
                              rest, licensed, accepted, width, covered, top_token};
    share(decide_round, &job, requests, requests * places < 1 << 14 ? 1 : threads);
}
