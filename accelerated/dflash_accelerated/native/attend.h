/* How attention is shared out: by request, KV head and block of lines, and by chunks of the context where these are
 * few. Chunks are joined in their own order either way, so that both give the same bits. */

#define WAVE 16 /* chunks, for each thread, whose states are held at once */

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

INLINE int64_t chunks_of(const struct item *item) { return (item->high - 1) / CHUNK - item->low / CHUNK + 1; }

/* The block of lines of a request that begins with `first`. */
static struct item lines_from(const struct attention *a, int64_t request, int64_t first) {
    int64_t heads = a->query_heads / a->kv_heads, lines = a->spans[4 * request + 2] * heads, unused;
    struct item item = {.request = request, .first = first, .lines = least(BLOCK, lines - first)};
    sight(a, request, first / heads, &item.low, &unused);
    sight(a, request, (first + item.lines - 1) / heads, &unused, &item.high);
    return item;
}

/* How many tasks a KV head of a request has: its blocks, or where they are `split` the chunks of these. */
static int64_t tasks_of_head(const struct attention *a, int split, int64_t request) {
    int64_t lines = a->spans[4 * request + 2] * (a->query_heads / a->kv_heads), tasks = 0;
    if (!split) return above(lines, BLOCK) / BLOCK;
    for (int64_t first = 0; first < lines; first += BLOCK) {
        struct item item = lines_from(a, request, first);
        tasks += chunks_of(&item);
    }
    return tasks;
}

static int64_t count_tasks(const struct attention *a, int split) {
    int64_t tasks = 0;
    for (int64_t request = 0; request < a->requests; request++) tasks += tasks_of_head(a, split, request) * a->kv_heads;
    return tasks;
}

/* The item of a task, found anew each time: a list would need room for as many as there may ever be. */
static struct item find_task(const struct attention *a, int split, int64_t task) {
    int64_t request = 0, first = 0, each;
    while (task >= (each = tasks_of_head(a, split, request)) * a->kv_heads) task -= each * a->kv_heads, request++;
    int64_t head = task / each, rest = task % each;
    if (!split) first = rest * BLOCK, rest = 0;
    struct item item = lines_from(a, request, first);
    for (; split && rest >= chunks_of(&item); item = lines_from(a, request, first += BLOCK)) rest -= chunks_of(&item);
    item.head = head, item.chunk = item.low / CHUNK + rest;
    return item;
}

/* A thread's own part of the workspace; `one` and its `lone` queries are of one line. */
struct bench {
    float *state, *all, *one, *lone, *q, *columns;
};

static struct bench bench_of(const struct attention_job *j, int64_t thread) {
    float *state = j->rooms + thread * j->room, *all = state + j->state, *one = all + j->state;
    float *lone = one + 2 * BLOCK + ABREAST * j->padded, *q = lone + ABREAST * j->a.dim;
    return (struct bench){state, all, one, lone, q, q + j->lines * j->a.dim + LANES};
}

static void take_queries(const struct attention_job *j, const struct item *item, float *q, struct sights *sights) {
    if (j->tiled) tiled_queries(j, item, (uint32_t *)q);
    else fill_queries(j, item, q);
    see(j, item, sights);
}

/* What a thread is likely to read once a task is done: the stored positions of the one that will then be next. */
static struct place after_task(const struct attention_job *j, int64_t task) {
    if (task + j->a.threads >= j->tasks) return (struct place){NULL, NULL};
    struct item next = find_task(&j->a, j->split, task + j->a.threads);
    int64_t low = most(next.low, next.chunk * CHUNK) / TILE * TILE;
    return low < j->a.spans[4 * next.request + 1] ? stored_at(&j->a, &next, low) : (struct place){NULL, NULL};
}

/* Whether each of a line's totals is a finite number. */
static int all_finite(const float *total, int64_t count) {
    vec zeros = {0};
    for (int64_t i = 0; i < count; i += LANES) zeros += load(total, i, F32) * 0.0f;
    return !any(no_number(zeros, zeros));
}

/* Positions [low, high) of one chunk for one line of the item. */
static void take_alone(const struct attention_job *j, const struct item *item, int64_t line, int64_t low, int64_t high,
                       const struct bench *b, float *state) {
    struct item lone = *item;
    struct sights sights;
    lone.first += line, lone.lines = 1;
    take_queries(j, &lone, b->lone, &sights);
    low = most(low, sights.low[0]), high = least(high, sights.high[0]);
    if (low < high) chunk_of(j, &lone, low, high, b->lone, &sights, b->columns, b->one, (struct place){0});
    else clear(b->one, 1, j->padded);
    peak_of(state)[line] = *peak_of(b->one), sum_of(state)[line] = *sum_of(b->one);
    memcpy(total_of(state) + line * j->padded, total_of(b->one), j->padded * sizeof *state);
}

/* Positions [low, high) of one chunk into `state`. Pairs and tiles give what a line does not see the weight 0, and 0
 * times a NaN or an infinity is NaN: a line that may have met one so is done again alone, with zeros for what is hidden
 * from it. That is the same arithmetic, so it keeps what is its own bit for bit. */
static void take_chunk(const struct attention_job *j, const struct item *item, int64_t low, int64_t high,
                       const struct bench *b, const struct sights *sights, float *state, struct place then) {
    chunk_of(j, item, low, high, b->q, sights, b->columns, state, then);
    for (int64_t line = 0; j->pairs && line < item->lines; line++) {
        int hidden = sights->low[line] > low || sights->high[line] < high;
        if (hidden && !all_finite(total_of(state) + line * j->padded, j->padded))
            take_alone(j, item, line, low, high, b, state);
    }
}

/* All chunks of an item, and what comes of them. */
static void run_item(const struct attention_job *j, int64_t task, int64_t thread) {
    struct item item = find_task(&j->a, 0, task);
    struct bench b = bench_of(j, thread);
    struct sights sights;
    take_queries(j, &item, b.q, &sights);
    for (int64_t low = item.low, high; low < item.high; low = high) {
        float *to = low == item.low ? b.all : b.state;
        high = least(item.high, low / CHUNK * CHUNK + CHUNK);
        struct place then = high < item.high ? stored_at(&j->a, &item, high) : after_task(j, task);
        take_chunk(j, &item, low, high, &b, &sights, to, then);
        if (to == b.state) join(j, item.lines, b.all, b.state);
    }
    finish_lines(j, &item, b.all);
}

/* One chunk of an item, into a state that the wave holds. */
static void run_chunk(const struct attention_job *j, int64_t task, int64_t thread) {
    struct item item = find_task(&j->a, 1, j->first + task);
    struct bench b = bench_of(j, thread);
    struct sights sights;
    take_queries(j, &item, b.q, &sights);
    int64_t low = most(item.low, item.chunk * CHUNK), high = least(item.high, (item.chunk + 1) * CHUNK);
    take_chunk(j, &item, low, high, &b, &sights, j->wave + task * j->state, after_task(j, j->first + task));
}

static void run_task(void *held, int64_t task, int64_t thread) {
    const struct attention_job *j = held;
#if TILES_BUILT
    if (j->tiled) open_tiles();
#endif
    (j->split ? run_chunk : run_item)(j, task, thread);
#if TILES_BUILT
    if (j->tiled) close_tiles();
#endif
}

/* The wave's chunks to those before them. Only the last item may go on in the next wave, so one state is enough. */
static void join_wave(const struct attention_job *j, int64_t tasks) {
    for (int64_t task = 0; task < tasks; task++) {
        struct item item = find_task(&j->a, 1, j->first + task);
        if (item.chunk == item.low / CHUNK) clear(j->joined, item.lines, j->padded);
        join(j, item.lines, j->joined, j->wave + task * j->state);
        if (item.chunk == (item.high - 1) / CHUNK) finish_lines(j, &item, j->joined);
    }
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

_Static_assert(SWEEP / 2 + SWEEP <= 2 * TILE, "a step of tiles has its values in the room of columns and values");

/* Lays the work out in its workspace; returns how many bytes that are, however long the contexts are. */
static int64_t lay_out_work(const struct attention *a, struct attention_job *j) {
    *j = (struct attention_job){.a = *a, .padded = above(a->dim, LANES), .rooms = a->workspace};
    j->lines = least(BLOCK, above(a->rows * (a->query_heads / a->kv_heads), 16));
    j->state = 2 * BLOCK + j->lines * j->padded;
    j->room = 2 * j->state + 2 * BLOCK + ABREAST * (j->padded + a->dim); /* as in bench_of */
    j->room = above(j->room + j->lines * (a->dim + TILE) + LANES + 2 * TILE * j->padded, LANES);
    j->joined = j->rooms + j->room * a->threads;
    j->wave = j->joined + j->state;
    int64_t held = a->threads > 1 ? 1 + WAVE * a->threads : 0;
    return (j->room * a->threads + held * j->state) * sizeof(float);
}

int64_t attention_bytes(const struct attention *a) {
    struct attention_job unused;
    return lay_out_work(a, &unused);
}

void attend(const struct attention *a) {
    struct attention_job job;
    lay_out_work(a, &job);
    int bf16 = a->act == BF16 && a->given == BF16 && a->held == BF16;
    job.pairs = PAIRS_AT_HAND && bf16 && a->dim % 32 == 0;
    job.laced = !job.pairs && bf16 && a->dim % SLICE == 0;
    job.tiled = job.pairs && TILES_BUILT && tiles_granted;
    int64_t items = count_tasks(a, 0), few = a->threads > 1 && items < 4 * a->threads;
    int64_t chunks = few ? count_tasks(a, 1) : items, each = WAVE * a->threads;
    job.split = chunks > items, job.tasks = chunks;
    if (!job.split) share(run_task, &job, items, a->threads);
    for (; job.split && job.first < chunks; job.first += each) {
        int64_t tasks = least(each, chunks - job.first);
        share(run_task, &job, tasks, a->threads);
        join_wave(&job, tasks);
    }
    if (a->keep) keep_rows(a);
}
