/* The context of a draft in one call: from features of committed rows to each layer's keys and values. */

struct intake {
    const struct layer *layers; /* of which only the stores are read */
    struct product fc, projection;
    const void *hidden_norm, *norms, *features, *cosine, *sine; /* norms [count, dim]; features [rows, fc.inputs] */
    const int32_t *spans;
    void *c, *workspace; /* c [rows, fc.outputs] */
    int64_t count, rows, requests, kv_heads, dim, threads;
    int staged, act, compute;
    float eps;
};

struct intake_stages {
    void *cosine, *sine, *projected, *raw;
};

static int64_t lay_out_intake(const struct intake *t, char *workspace, struct intake_stages *s) {
    int64_t taken = 0, compute = t->rows * width(t->compute);
    s->cosine = carve(workspace, &taken, t->dim / 2 * compute);
    s->sine = carve(workspace, &taken, t->dim / 2 * compute);
    s->projected = carve(workspace, &taken, t->rows * t->fc.outputs * width(t->act));
    s->raw = carve(workspace, &taken, t->projection.outputs * compute);
    return taken;
}

int64_t intake_bytes(const struct intake *t) {
    struct intake_stages unused;
    return lay_out_intake(t, NULL, &unused);
}

void intake(const struct intake *t) {
    struct intake_stages s;
    lay_out_intake(t, t->workspace, &s);
    find_turns(t->spans, t->requests, t->cosine, t->dim / 2 * width(t->compute), s.cosine);
    find_turns(t->spans, t->requests, t->sine, t->dim / 2 * width(t->compute), s.sine);
    multiply(&t->fc, t->features, t->act, t->rows, NULL, 0, s.projected, t->act, t->threads);
    rms_norm(s.projected, t->hidden_norm, t->c, t->rows, t->fc.outputs, 1, t->act, t->compute, t->act, t->eps, t->threads);
    multiply(&t->projection, t->c, t->act, t->rows, NULL, 0, s.raw, t->compute, t->threads);
    int64_t layer_width = t->kv_heads * t->dim, row = t->projection.outputs;
    for (int64_t layer = 0; layer < t->count; layer++) {
        const struct layer *l = t->layers + layer;
        store_context(at(s.raw, layer * layer_width, t->compute), at(s.raw, (t->count + layer) * layer_width, t->compute),
                      at(t->norms, layer * t->dim, t->compute), s.cosine, s.sine, l->keys, l->values, t->spans,
                      t->requests, 1, t->kv_heads, t->dim, l->slots, l->lane_stride, 0, l->head_stride, row, row,
                      t->compute, t->compute, t->act, l->held, t->staged, t->eps, t->threads);
    }
}
