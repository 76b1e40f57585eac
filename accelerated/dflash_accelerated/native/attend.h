/* How attention is shared out: by request, KV head and block of lines, and by chunks of the context where these are
 * few. Chunks are joined in their own order either way, so that both give the same bits. */

/* The queries of an item as its products take them. */
static void fill_queries(const struct attention_job *j, const struct item *item, float *q) {
    const struct attention *a = &j->a;
    int64_t heads = a->query_heads / a->kv_heads, first = a->spans[4 * item->request + 3];
    memset(q, 0, above(item->lines, 4) * a->dim * sizeof *q);
    for (int64_t line = 0; line < item->lines; line++) {
        int64_t row = first + (item->first + line) / heads, head = item->head * heads + (item->first + line) % heads;
        const void *given = at(a->q, row * a->q_stride + head * a->dim, a->act);
        if (j->pairs) {
            memcpy((uint16_t *)q + line * a->dim, given, a->dim * sizeof(uint16_t));
            continue;
        }
        for (int64_t i = 0; i < a->dim; i += LANES)
            store_some(q, line * a->dim + i, F32, load_some(given, i, a->act, a->dim - i), a->dim - i);
    }
}

static void run_item(const struct attention_job *j, int64_t index, int64_t thread) {
    const struct item *item = j->items + index;
    float *state = j->workspace + thread * j->room, *all = state + j->state, *q = all + j->state;
    float *columns = q + BLOCK * j->a.dim + LANES;
    struct sights sights;
    if (j->tiled) tiled_queries(j, item, (uint32_t *)q, &sights);
    else fill_queries(j, item, q);
    if (j->split) {
        int64_t low = most(item->low, item->chunk * CHUNK), high = least(item->high, (item->chunk + 1) * CHUNK);
        chunk_of(j, item, low, high, q, &sights, columns, j->partials + item->found * j->state);
        return;
    }
    for (int64_t low = item->low; low < item->high; low = low / CHUNK * CHUNK + CHUNK) {
        float *to = low == item->low ? all : state;
        chunk_of(j, item, low, least(item->high, low / CHUNK * CHUNK + CHUNK), q, &sights, columns, to);
        if (to == state) join(j, item->lines, all, state);
    }
    finish_lines(j, item, all);
}

static void run_plain(void *job, int64_t index, int64_t thread) { run_item(job, index, thread); }

static void run_tiled(void *job, int64_t index, int64_t thread) {
#if TILES_BUILT
    open_tiles();
    run_item(job, index, thread);
    close_tiles();
#else
    run_plain(job, index, thread);
#endif
}

/* Writes the items where there is room for them; returns how many there are. */
static int64_t list_items(const struct attention *a, int split, struct item *items) {
    int64_t count = 0, heads = a->query_heads / a->kv_heads, unused;
    for (int64_t request = 0; request < a->requests; request++)
        for (int64_t head = 0; head < a->kv_heads; head++) {
            int64_t lines = a->spans[4 * request + 2] * heads;
            for (int64_t first = 0; first < lines; first += BLOCK) {
                struct item one = {request, head, first, least(BLOCK, lines - first), 0, 0, 0, 0};
                sight(a, request, first / heads, &one.low, &unused);
                sight(a, request, (first + one.lines - 1) / heads, &unused, &one.high);
                int64_t last = split ? (one.high - 1) / CHUNK : one.low / CHUNK;
                for (one.chunk = one.low / CHUNK; one.chunk <= last; one.chunk++, count++) {
                    one.found = count;
                    if (items) items[count] = one;
                }
            }
        }
    return count;
}

static void join_chunks(void *held, int64_t head, int64_t thread) {
    const struct attention_job *j = held;
    const struct item *item = j->items + head;
    (void)thread;
    float *all = j->partials + item->found * j->state;
    if (item->chunk != item->low / CHUNK) return; /* the first chunk's task joins all of its block */
    for (int64_t later = 1; later <= (item->high - 1) / CHUNK - item->chunk; later++)
        join(j, item->lines, all, all + later * j->state);
    finish_lines(j, item, all);
}

/* The own keys and values into their slots, once nothing reads the store any more. */
static void keep_rows(const struct attention *a) {
    for (int64_t request = 0; request < a->requests; request++) {
        const int32_t *span = a->spans + 4 * request;
        for (int64_t row = most(0, span[2] - a->slots); row < span[2]; row++)
            for (int64_t head = 0; head < a->kv_heads; head++) {
                int64_t slot = (span[1] + row) % a->slots, given = (span[3] + row) * a->v_stride + head * a->dim;
                int64_t place = span[0] * a->lane_stride + head * a->head_stride + slot * a->dim;
                memcpy((void *)at(a->keys, place, a->act),
                       at(a->k, (span[3] + row) * a->k_stride + head * a->dim, a->act), a->dim * width(a->act));
                for (int64_t i = 0; i < a->dim; i += LANES)
                    store_some(a->values, place + i, a->held, load_some(a->v, given + i, a->given, a->dim - i),
                               a->dim - i);
            }
    }
}

/* Returns 0, or 1 where there is no memory for the work. */
int attend(const struct attention *a) {
    int64_t padded = above(a->dim, LANES), state = BLOCK * (padded + 2);
    int64_t room = above(2 * state + BLOCK * a->dim + LANES + 2 * TILE * padded, LANES);
    int pairs = PAIRS_AT_HAND && a->act == BF16 && a->given == BF16 && a->held == BF16 && a->dim % 32 == 0;
    int tiled = pairs && TILES_BUILT && tiles_granted;
    if (tiled) room = above(2 * state + BLOCK * a->dim + LANES + tiled_room(a->dim), LANES);
    int64_t whole = list_items(a, 0, NULL), split = a->threads > 1 && whole < 4 * a->threads;
    int64_t count = split ? list_items(a, 1, NULL) : whole;
    if (count == whole) split = 0;
    int64_t floats = room * a->threads + (split ? count * state : 0);
    char *memory = aligned_alloc(64, above(floats * sizeof(float), 64) + above(count * sizeof(struct item), 64));
    if (!memory) return 1;
    struct item *items = (struct item *)(memory + above(floats * sizeof(float), 64));
    struct attention_job job = {*a, items, (float *)memory, (float *)memory + room * a->threads,
                                padded, state, room, (int)split, pairs, tiled};
    list_items(a, (int)split, items);
    share(tiled ? run_tiled : run_plain, &job, count, a->threads);
    if (split) share(join_chunks, &job, count, 1);
    if (a->keep) keep_rows(a);
    free(memory);
    return 0;
}
