/* A whole pass in one call: embedding rows, all layers, the head, and which id is best. Each stage is a kernel of the
 * files before. */

/* scores [rows, n] of `type`, rows `stride` apart: the best ids. With `finite` one is -1 where its score is no finite
 * number. */
void choose(const void *scores, int64_t *ids, int64_t rows, int64_t n, int64_t stride, int type, int finite,
            int64_t threads) {
    float tops[64];
    for (int64_t first = 0; first < rows; first += 64) {
        int64_t some = least(64, rows - first);
        greatest(at(scores, first * stride, type), tops, ids + first, some, n, stride, type, threads);
        for (int64_t row = 0; finite && row < some; row++)
            if (!isfinite(load_one(tops, row, type))) ids[first + row] = -1;
    }
}

struct pass {
    const struct forward *forward; /* its x and out are room for the rows in between */
    const void *table;             /* embedding rows [known, hidden] of `act` */
    const int64_t *ids;            /* [rows] */
    struct product head;
    void *scores;  /* [scored, head.outputs] of `act`: of the rows that `forward` wants */
    int64_t *best; /* [scored], of the first `public` scores; NULL where they are not asked for */
    int64_t known, scored, public;
    int finite; /* as in `choose` */
};

/* Returns 0, or 1 where an id is none of the table's, and then nothing is done. */
int run_pass(const struct pass *p) {
    const struct forward *f = p->forward;
    int64_t bytes = f->hidden * width(f->act);
    for (int64_t row = 0; row < f->rows; row++)
        if (p->ids[row] < 0 || p->ids[row] >= p->known) return 1;
    for (int64_t row = 0; row < f->rows; row++)
        memcpy((char *)f->x + row * bytes, (const char *)p->table + p->ids[row] * bytes, bytes);
    forward(f);
    if (!p->scored) return 0;
    multiply(&p->head, f->out, f->act, p->scored, NULL, 0, p->scores, f->act, f->threads);
    if (p->best) choose(p->scores, p->best, p->scored, p->public, p->head.outputs, f->act, p->finite, f->threads);
    return 0;
}

/* `count` parts of `bytes[i]` each from `from[i]`, one after another. */
void gather(const void *const *from, const int64_t *bytes, int64_t count, char *to) {
    for (int64_t i = 0; i < count; to += bytes[i++]) memcpy(to, from[i], bytes[i]);
}
