/* All layers of a model in one call. Each stage is a kernel of the files before, with the same types and roundings: the
 * result is that of the stages one by one, bit for bit. */

struct layer {
    const void *input_norm, *head_norm, *post_norm;
    const void *outer_base, *inner_base; /* of the convolutions around the two branches; NULL where there are none */
    struct product qkv, o_proj, gate_up, down_proj, outer, inner;
    void *keys, *values;
    int64_t slots, lane_stride, head_stride, window;
    int causal, held; /* `held` is the type of stored values */
};

struct forward {
    const struct layer *layers;
    const void *norm, *x, *cosine, *sine; /* x [rows, hidden]; tables [positions, dim / 2] */
    const int32_t *spans;                 /* as attention.h has them */
    const int64_t *taps; /* layers whose outputs are the features [rows, tapped, hidden], in their order */
    void *out, *features, *workspace;
    int64_t count, rows, requests, tapped, hidden, query_heads, kv_heads, dim, conv_taps, groups, threads;
    int keep, staged, act, compute, wanted;
    float eps;
};

/* Which rows `out` has, after the final norm: PROPOSING are all of each request's but its first. */
enum { NONE, ALL, LAST, PROPOSING };

/* What the stages of a layer hand on, row by row. */
struct stages {
    void *cosine, *sine, *normed, *raw, *placed, *value, *attended, *middle, *gates, *gated, *increments, *branch, *x;
    void *attention;
    int64_t *places;
};

INLINE void *carve(char *workspace, int64_t *taken, int64_t bytes) {
    char *made = workspace + *taken;
    *taken += above(bytes, 64);
    return made;
}

/* Lays the stages out from `workspace` on; returns how many bytes that are. */
static int64_t lay_out(const struct forward *f, char *workspace, struct stages *s) {
    int64_t taken = 0, act = f->rows * width(f->act), compute = f->rows * width(f->compute), turning = 0, held = 0;
    int64_t gates = 0, increments = 0, heads = f->query_heads + f->kv_heads;
    for (int64_t layer = 0; layer < f->count; layer++) {
        const struct layer *l = f->layers + layer;
        gates = most(gates, l->gate_up.outputs);
        if (l->outer_base) increments = most(increments, most(l->outer.outputs, l->inner.outputs));
        if (f->keep && l->held != f->act) held = most(held, f->rows * width(l->held));
    }
    turning = f->dim / 2 * compute;
    s->cosine = carve(workspace, &taken, turning);
    s->sine = carve(workspace, &taken, turning);
    s->places = carve(workspace, &taken, f->rows * (int64_t)sizeof *s->places);
    s->normed = carve(workspace, &taken, f->hidden * compute);
    s->raw = carve(workspace, &taken, (heads + f->kv_heads) * f->dim * act);
    s->placed = carve(workspace, &taken, heads * f->dim * act);
    s->value = carve(workspace, &taken, f->kv_heads * f->dim * held);
    s->attended = carve(workspace, &taken, f->query_heads * f->dim * act);
    s->middle = carve(workspace, &taken, f->hidden * act);
    s->gates = carve(workspace, &taken, gates * compute);
    s->gated = carve(workspace, &taken, gates / 2 * act);
    s->increments = carve(workspace, &taken, increments * compute);
    s->branch = carve(workspace, &taken, f->hidden * compute);
    s->x = carve(workspace, &taken, f->hidden * act);
    struct attention work = {.rows = f->rows, .query_heads = f->query_heads, .kv_heads = f->kv_heads, .dim = f->dim,
                             .threads = f->threads};
    s->attention = carve(workspace, &taken, attention_bytes(&work));
    return taken;
}

int64_t forward_bytes(const struct forward *f) {
    struct stages unused;
    return lay_out(f, NULL, &unused);
}

/* Of each row the tables' row of its position: `bytes` each. */
static void find_turns(const int32_t *spans, int64_t requests, const void *table, int64_t bytes, void *rows) {
    for (int64_t request = 0; request < requests; request++) {
        const int32_t *span = spans + 4 * request;
        memcpy((char *)rows + span[3] * bytes, (const char *)table + span[1] * bytes, span[2] * bytes);
    }
}

/* Each row's place in its request. */
static void find_places(const struct forward *f, int64_t *places) {
    for (int64_t request = 0; request < f->requests; request++)
        for (int64_t place = 0; place < f->spans[4 * request + 2]; place++)
            places[f->spans[4 * request + 3] + place] = place;
}

/* `n` numbers in each of `rows` rows, `stride` apart, from type to type. */
static void convert(const void *from, int64_t stride, int type, void *to, int to_type, int64_t rows, int64_t n) {
    for (int64_t row = 0; row < rows; row++)
        for (int64_t i = 0; i < n; i += LANES)
            store_some(to, row * n + i, to_type, load_some(from, row * stride + i, type, n - i), n - i);
}

/* Those of a product's outputs that are queries' and keys' heads. */
static void turn_outputs(const void *held, int64_t row, int64_t rows, int64_t first, int64_t n) {
    const struct rope_job *j = held;
    int64_t head = first / j->turning.dim, heads = least(n / j->turning.dim, j->heads - head);
    if (heads > 0) turn_some(j, row, rows, head, heads);
}

/* Queries, keys and values of rows that are normed, and what they attend to. */
static void attend_layer(const struct forward *f, const struct layer *l, const struct stages *s, const void *normed) {
    int64_t turning = f->query_heads + f->kv_heads, heads = turning + f->kv_heads, dim = f->dim;
    struct rope_job rope = {{dim, f->eps, f->act, f->compute, f->act, f->staged, 0}, s->raw, l->head_norm, s->cosine,
                            s->sine, s->placed, f->rows, turning, heads * dim, turning, 0};
    struct next_stage placing = {turn_outputs, &rope, dim, 0};
    multiply_then(&l->qkv, normed, f->act, f->rows, NULL, 0, s->raw, f->act, &placing, f->threads);
    const void *value = at(s->raw, turning * dim, f->act);
    int64_t value_stride = heads * dim;
    int given = f->act;
    if (f->keep && l->held != f->act) {
        convert(value, value_stride, f->act, s->value, l->held, f->rows, f->kv_heads * dim);
        value = s->value, value_stride = f->kv_heads * dim, given = l->held;
    }
    struct attention a = {
        s->placed, at(s->placed, f->query_heads * dim, f->act), value, l->keys, l->values, s->attended, s->attention,
        f->spans, f->rows, f->requests, f->query_heads, f->kv_heads, dim, l->slots, l->lane_stride, l->head_stride,
        turning * dim, turning * dim, value_stride, l->window, l->causal, f->keep, f->act, given, l->held, f->threads};
    attend(&a);
}

/* The norm of rows x, its increments, and the convolution's input side, into `out`. */
static void prepare_branch(const struct forward *f, const struct product *projection, const void *base, const void *norm,
                           const void *x, const struct stages *s, void *out) {
    int64_t side = f->conv_taps * f->groups;
    rms_norm(x, norm, s->normed, f->rows, f->hidden, 1, f->act, f->compute, f->compute, f->eps, f->threads);
    multiply(projection, s->normed, f->compute, f->rows, NULL, 0, s->increments, f->compute, f->threads);
    convolve(s->normed, base, s->increments, s->places, NULL, out, f->rows, f->hidden, f->conv_taps, f->groups, 2 * side,
             f->compute, f->act, f->threads);
}

/* residual + the output side of weight · branch. */
static void finish_branch(const struct forward *f, const struct product *weight, const void *base, const void *branch,
                          const void *residual, const struct stages *s, void *out) {
    int64_t side = f->conv_taps * f->groups;
    struct conv_job conv = {s->branch, at(base, f->conv_taps * f->hidden, f->compute),
                            at(s->increments, side, f->compute), residual, s->places, out, f->rows, f->hidden,
                            f->conv_taps, f->groups, 2 * side, 0, f->compute, f->act, f->act};
    struct next_stage convolving = {convolve_some, &conv, OUTPUTS, 1};
    multiply_then(weight, branch, f->act, f->rows, NULL, 0, s->branch, f->compute, &convolving, f->threads);
}

static void plain_layer(const struct forward *f, const struct layer *l, const struct stages *s, const void *x, void *out) {
    rms_norm(x, l->input_norm, s->normed, f->rows, f->hidden, 1, f->act, f->compute, f->act, f->eps, f->threads);
    attend_layer(f, l, s, s->normed);
    multiply(&l->o_proj, s->attended, f->act, f->rows, x, f->act, s->middle, f->act, f->threads);
    rms_norm(s->middle, l->post_norm, s->normed, f->rows, f->hidden, 1, f->act, f->compute, f->act, f->eps, f->threads);
    multiply(&l->gate_up, s->normed, f->act, f->rows, NULL, 0, s->gates, f->compute, f->threads);
    gated(s->gates, s->gated, f->rows, l->gate_up.outputs / 2, f->compute, f->act, f->threads);
    multiply(&l->down_proj, s->gated, f->act, f->rows, s->middle, f->act, out, f->act, f->threads);
}

static void convolved_layer(const struct forward *f, const struct layer *l, const struct stages *s, const void *x,
                            void *out) {
    prepare_branch(f, &l->outer, l->outer_base, l->input_norm, x, s, s->branch);
    attend_layer(f, l, s, s->branch);
    finish_branch(f, &l->o_proj, l->outer_base, s->attended, x, s, s->middle);
    prepare_branch(f, &l->inner, l->inner_base, l->post_norm, s->middle, s, s->branch);
    multiply(&l->gate_up, s->branch, f->act, f->rows, NULL, 0, s->gates, f->compute, f->threads);
    gated(s->gates, s->gated, f->rows, l->gate_up.outputs / 2, f->compute, f->act, f->threads);
    finish_branch(f, &l->down_proj, l->inner_base, s->gated, s->middle, s, out);
}

/* The final norm of the rows that are wanted. */
static void norm_wanted(const struct forward *f, const void *x) {
    int64_t made = 0;
    for (int64_t request = 0; request < (f->wanted == ALL ? 1 : f->requests); request++) {
        const int32_t *span = f->spans + 4 * request;
        int64_t first = span[3], rows = span[2];
        if (f->wanted == ALL) first = 0, rows = f->rows;
        if (f->wanted == LAST) first += rows - 1, rows = 1;
        if (f->wanted == PROPOSING) first++, rows--;
        rms_norm(at(x, first * f->hidden, f->act), f->norm, (void *)at(f->out, made * f->hidden, f->act), rows, f->hidden,
                 1, f->act, f->compute, f->act, f->eps, f->threads);
        made += rows;
    }
}

/* Rows x through all layers, the features on the way, and at the end the wanted rows' norms into `out`. */
void forward(const struct forward *f) {
    struct stages s;
    lay_out(f, f->workspace, &s);
    find_places(f, s.places);
    find_turns(f->spans, f->requests, f->cosine, f->dim / 2 * width(f->compute), s.cosine);
    find_turns(f->spans, f->requests, f->sine, f->dim / 2 * width(f->compute), s.sine);
    int64_t bytes = f->hidden * width(f->act);
    const void *x = f->x;
    for (int64_t layer = 0; layer < f->count; layer++, x = s.x) {
        const struct layer *l = f->layers + layer;
        (l->outer_base ? convolved_layer : plain_layer)(f, l, &s, x, s.x);
        for (int64_t tap = 0; tap < f->tapped; tap++)
            for (int64_t row = 0; row < f->rows && f->taps[tap] == layer; row++)
                memcpy((char *)f->features + (row * f->tapped + tap) * bytes, (const char *)s.x + row * bytes, bytes);
    }
    if (f->wanted != NONE) norm_wanted(f, x);
}
