/* Matrix products with weights packed for them.
 *
 * A packed weight is cut into blocks of 16 outputs, and lies as [blocks, inputs, 16] in FP32, or in BF16 as
 * [blocks, inputs / 2, 16] pairs of inputs; what is missing at the end is 0. BF16 is multiplied in tiles or in pairs
 * where the machine has them, else in FP32.
 *
 * An output's sum runs over the inputs in their order, whatever rows and outputs are multiplied beside it: a row's
 * result never depends on its neighbours. Tiles and pairs take subnormal numbers for 0. */

#define OUTPUTS 16    /* of a block: PARTS vectors */
#define TASK_ROWS 256 /* at most, of one task */
#define TASK_BLOCKS 16
#define VECTOR_CHUNK 1024 /* inputs that are multiplied at a time: so many weights of some blocks stay near the core */
#define TILE_CHUNK 2048   /* the same in tiles */
#define LINE_INPUTS 32    /* inputs in a line of a tile; packed inputs are a multiple of it */

struct product {
    const void *weight;
    int64_t outputs, inputs;
    int type;
};

/* The stage after a product: the task that has made outputs first .. first + n - 1 of some rows hands them on at once,
 * cut at multiples of `unit` outputs, without waiting for the other tasks. */
struct next_stage {
    void (*run)(const void *job, int64_t row, int64_t rows, int64_t first, int64_t n);
    const void *job;
    int64_t unit;
    int neighbours; /* a row's part reads the rows before it */
};

struct product_job {
    struct product p;
    const void *x, *residual;
    void *out;
    const struct next_stage *next; /* NULL for none */
    int64_t rows, padded, task_rows, task_blocks, row_tasks;
    int type, residual_type, out_type;
};

/* Rows and blocks of one task, and room for their FP32 sums [blocks, rows, 16]. */
struct product_task {
    const struct product_job *job;
    int64_t first_row, rows, first_block, blocks;
    float *sums;
};

/* Bytes of a packed weight. */
int64_t packed_bytes(int64_t outputs, int64_t inputs, int type) {
    return above(outputs, OUTPUTS) * above(inputs, LINE_INPUTS) * width(type);
}

struct packing {
    const char *weight;
    char *packed;
    int64_t outputs, inputs;
    int type, back;
};

/* One block: squares of LANES outputs by as many words are turned. */
static void pack_block(void *held, int64_t block, int64_t thread) {
    const struct packing *j = held;
    int64_t each = sizeof(vec) / width(j->type), inputs = above(j->inputs, LINE_INPUTS);
    char *packed = j->packed + block * OUTPUTS * inputs * width(j->type);
    (void)thread;
    for (int64_t input = 0; input < inputs; input += each, packed += LANES * OUTPUTS * 4)
        for (int64_t part = 0; part < PARTS; part++) {
            int64_t bytes = most(0, least(sizeof(vec), (j->inputs - input) * width(j->type)));
            int64_t first = block * OUTPUTS + part * LANES, rows = most(0, least(LANES, j->outputs - first));
            char *square = packed + part * sizeof(vec);
            words x[LANES] = {{0}};
            for (int64_t i = 0; i < LANES && j->back; i++) memcpy(&x[i], square + i * OUTPUTS * 4, sizeof *x);
            for (int64_t row = 0; row < rows && !j->back; row++)
                memcpy(&x[row], at(j->weight, (first + row) * j->inputs + input, j->type), bytes);
            transpose(x);
            for (int64_t i = 0; i < LANES && !j->back; i++) memcpy(square + i * OUTPUTS * 4, &x[i], sizeof *x);
            for (int64_t row = 0; row < rows && j->back; row++)
                memcpy((void *)at(j->weight, (first + row) * j->inputs + input, j->type), &x[row], bytes);
        }
}

/* weight [outputs, inputs] of `type` into `packed`, or `back` from there. */
void pack(const void *weight, void *packed, int64_t outputs, int64_t inputs, int type, int back, int64_t threads) {
    struct packing job = {weight, packed, outputs, inputs, type, back};
    share(pack_block, &job, above(outputs, OUTPUTS) / OUTPUTS, threads);
}

INLINE void finish_as(const struct product_job *j, int residual, int residual_type, int out_type, int paired,
                      int64_t row, int64_t rows, int64_t block, int64_t blocks, const float *sums, int64_t stride) {
    for (int64_t r = 0; r < rows; r++)
        for (int64_t b = 0; b < blocks; b++)
            for (int64_t p = 0; p < PARTS; p++) {
                int64_t output = (block + b) * OUTPUTS + p * LANES, place = (row + r) * j->p.outputs + output;
                int64_t some = j->p.outputs - output;
                if (some <= 0) break;
                vec sum = load(sums, (b * stride + r) * OUTPUTS + p * LANES, F32);
                if (residual) sum += load_some(j->residual, place, residual_type, some);
                if (out_type == BF16 && paired && some >= LANES) {
                    halves bits = paired_bits(sum);
                    memcpy((uint16_t *)j->out + place, &bits, sizeof bits);
                } else store_some(j->out, place, out_type, sum, some);
            }
}

/* The sums of some rows and blocks, `stride` rows of sums from block to block, into the output; BF16 as pairs have it
 * where `paired`. */
INLINE void finish_sums(const struct product_job *j, int64_t row, int64_t rows, int64_t block, int64_t blocks,
                        const float *sums, int64_t stride, int paired) {
    int residual = j->residual != NULL, from = j->residual_type, to = j->out_type;
    if (!residual && to == BF16) finish_as(j, 0, 0, BF16, paired, row, rows, block, blocks, sums, stride);
    else if (from == BF16 && to == BF16) finish_as(j, 1, BF16, BF16, paired, row, rows, block, blocks, sums, stride);
    else finish_as(j, residual, from, to, paired, row, rows, block, blocks, sums, stride);
}

INLINE const char *block_of(const struct product_job *j, int64_t block, int64_t input) {
    return (const char *)j->p.weight + (block * j->padded + input) * OUTPUTS * width(j->p.type);
}

#if TILES_BUILT
#define TILE_BYTES 1024
#define LINES_BYTES (128 << 10) /* of rows that have to be copied into tiles */

/* 16 or 32 rows and some blocks, in one chunk of `steps`. */
struct tile_lines {
    const char *x, *weight, *ahead; /* `ahead` is asked for meanwhile, `ahead_each` lines at each step */
    int64_t each, stride, low;      /* bytes in x from step to step, from row to row, and 16 rows on */
    int64_t steps, block_bytes, ahead_each;
};

/* Copies a chunk of rows into tiles [row tiles, steps]; what is missing is 0. */
static void take_lines(const struct product_task *t, int64_t input, int64_t next, char *to) {
    const struct product_job *j = t->job;
    int64_t given = least(next, j->p.inputs) - input, whole = given / LINE_INPUTS, left = given * 2 - whole * 64;
    int64_t steps = (next - input) / LINE_INPUTS;
    for (int64_t row = 0; row < above(t->rows, 16); row++) {
        char *line = to + row / 16 * steps * TILE_BYTES + row % 16 * 64;
        const char *x = at(j->x, (t->first_row + row) * j->p.inputs + input, BF16);
        int64_t step = 0;
        for (; row < t->rows && step < whole; step++) memcpy(line + step * TILE_BYTES, x + step * 64, 64);
        for (; step < steps; step++) {
            memset(line + step * TILE_BYTES, 0, 64);
            if (row < t->rows && step == whole) memcpy(line + step * TILE_BYTES, x + step * 64, left);
        }
    }
}

/* One step of 32 rows times 2 blocks (high), or of 16 rows times 4: tiles 0 to 3 are sums. */
INLINE void tile_step(int high, int blocks, const struct tile_lines *t, int64_t step) {
    const char *x = t->x + step * t->each, *weight = t->weight + step * TILE_BYTES;
    int64_t block = t->block_bytes;
    _tile_loadd(4, x, t->stride);
    _tile_loadd(6, weight, 64);
    _tile_dpbf16ps(0, 4, 6);
    if (blocks > 1) {
        _tile_loadd(7, weight + block, 64);
        _tile_dpbf16ps(1, 4, 7);
    }
    if (high) {
        _tile_loadd(5, x + t->low, t->stride);
        _tile_dpbf16ps(2, 5, 6);
        if (blocks > 1) _tile_dpbf16ps(3, 5, 7);
    } else if (blocks > 2) {
        _tile_loadd(5, weight + 2 * block, 64);
        _tile_dpbf16ps(2, 4, 5);
        _tile_loadd(6, weight + 3 * block, 64);
        _tile_dpbf16ps(3, 4, 6);
    }
}

/* Tiles of sums to or from their places, `stride` floats from block to block. */
#define MOVE(move)                                               \
    move(0, sums, 64);                                           \
    if (blocks > 1) move(1, sums + stride, 64);                  \
    if (high) move(2, sums + 16 * LANES, 64);                    \
    else if (blocks > 2) move(2, sums + 2 * stride, 64);         \
    if (high && blocks > 1) move(3, sums + stride + 16 * LANES, 64); \
    else if (blocks > 3) move(3, sums + 3 * stride, 64);

/* The sums of a group, from zero or going on. */
INLINE void multiply_tiles(int high, int blocks, const struct tile_lines *t, float *sums, int64_t stride,
                           int going_on) {
    settle(sums);
    if (going_on) {
        MOVE(_tile_loadd)
    } else {
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
    }
    const char *ahead = t->ahead;
    for (int64_t step = 0; step < t->steps; step++) {
        for (int64_t i = 0; i < t->ahead_each; i++, ahead += 64) _mm_prefetch(ahead, _MM_HINT_T1);
        tile_step(high, blocks, t, step);
    }
    MOVE(_tile_stored)
}
#undef MOVE

/* The rows of a task from where they are, if they fill tiles; else from copies. */
static const char *place_lines(const struct product_task *t, int straight, int64_t input, int64_t next, char *copies,
                               struct tile_lines *lines) {
    int64_t inputs = t->job->p.inputs;
    lines->steps = (next - input) / LINE_INPUTS;
    if (straight) {
        lines->each = 64, lines->stride = inputs * 2, lines->low = 16 * lines->stride;
        return at(t->job->x, t->first_row * inputs + input, BF16);
    }
    lines->each = TILE_BYTES, lines->stride = 64, lines->low = lines->steps * TILE_BYTES;
    take_lines(t, input, next, copies);
    return copies;
}

/* Asks for the output's lines that a group will be written to. */
INLINE void expect(const struct product_job *j, int64_t row, int64_t rows, int64_t block) {
    for (int64_t r = row; r < row + rows; r++)
        __builtin_prefetch(at(j->out, r * j->p.outputs + block * LANES, j->out_type), 1);
}

static void tile_task(const struct product_task *t) {
    const struct product_job *j = t->job;
    int64_t rows_each = t->rows > 16 ? 32 : 16, blocks_each = t->rows > 16 ? 2 : 4, filled = above(t->rows, 16);
    static _Thread_local char copies[LINES_BYTES] __attribute__((aligned(64)));
    int straight = t->rows % 16 == 0 && j->p.inputs % LINE_INPUTS == 0;
    int64_t chunk = straight ? TILE_CHUNK : LINES_BYTES / 2 / filled / LINE_INPUTS * LINE_INPUTS;
    int64_t stride = (chunk < j->padded ? filled : rows_each) * LANES;
    open_tiles();
    for (int64_t input = 0, next = -1; next < j->padded; input = next) {
        next = least(j->padded, input + chunk);
        struct tile_lines lines = {.block_bytes = j->padded * LANES * 2};
        const char *x = place_lines(t, straight, input, next, copies, &lines);
        for (int64_t block = 0, blocks; block < t->blocks; block += blocks) {
            blocks = t->blocks - block < blocks_each ? 1 : blocks_each;
            lines.weight = block_of(j, t->first_block + block, input);
            lines.ahead = lines.weight + blocks * lines.block_bytes;
            lines.ahead_each = t->rows <= 32 ? 0 : 1024 / t->rows + 1; /* the next blocks, while all rows go by */
            for (int64_t row = 0; row < t->rows; row += rows_each) {
                int64_t rows = least(rows_each, t->rows - row);
                float *sums = chunk < j->padded ? t->sums + block * stride + row * LANES : t->sums;
                lines.x = x + row / 16 * lines.low;
                if (next == j->padded) expect(j, t->first_row + row, rows, t->first_block + block);
                if (rows > 16 && blocks == 2) multiply_tiles(1, 2, &lines, sums, stride, input > 0);
                else if (rows > 16) multiply_tiles(1, 1, &lines, sums, stride, input > 0);
                else if (blocks == 4) multiply_tiles(0, 4, &lines, sums, stride, input > 0);
                else if (blocks == 2) multiply_tiles(0, 2, &lines, sums, stride, input > 0);
                else multiply_tiles(0, 1, &lines, sums, stride, input > 0);
                lines.ahead += lines.steps * lines.ahead_each * 64;
                if (next == j->padded)
                    finish_sums(j, t->first_row + row, rows, t->first_block + block, blocks, sums, stride / LANES, 1);
            }
        }
    }
    close_tiles();
}
#endif

/* How many rows are multiplied at once, and by how many blocks: the registers hold all their sums, eight or more where
 * that can be, for each step of a sum waits for the one before. */
#if LANES == 16
enum { ROWS_AT_ONCE = 6 };
#define BLOCKS_AT_ONCE(rows) 4
#elif LANES == 8 || defined(__aarch64__)
enum { ROWS_AT_ONCE = 6 };
#define BLOCKS_AT_ONCE(rows) ((rows) == 1 ? 4 : (rows) == 2 ? 2 : 1)
#else
enum { ROWS_AT_ONCE = 3 };
#define BLOCKS_AT_ONCE(rows) ((rows) == 1 ? 2 : 1)
#endif

/* How many of the rows that are left come next: 9 as 5 and 4, where 3 have too few sums. */
INLINE int64_t rows_next(int64_t left) { return LANES == 8 && left == 9 ? 5 : least(ROWS_AT_ONCE, left); }

/* How a weight is multiplied: FP32, BF16 widened to it, or BF16 in pairs. */
enum { FLOATS, WIDE, PAIRS };

enum { X_STRIDE = VECTOR_CHUNK + OUTPUTS }; /* rows lie apart in the cache too */
enum { LINE = OUTPUTS * 4 };
/* Lines of a block that are asked for before they are needed; of a block alone more, that as many are on their way. */
#define AHEAD(blocks) (LANES < 16 && (blocks) == 1 ? 64 : 16)

/* The odd inputs in words of weights. Where registers are few this is read each time: a compiler would keep it in one,
 * and for want of that sums in memory. */
#if LANES == 16
static const words ODD = {ALL_LANES(0xffff0000)};
#else
static const volatile words ODD = {ALL_LANES(0xffff0000)};
#endif

/* sums [blocks, rows, 16], `stride` floats from block to block, += x [rows, X_STRIDE] · weights; x is FP32, or words
 * for PAIRS. `count` is of inputs for FLOATS, else of pairs. At the end the first weights of `next` are asked for. */
INLINE void multiply_vectors(int way, int rows, int blocks, const float *x, int64_t count, const char *weight,
                             const char *next, int64_t block_bytes, float *sums, int64_t stride) {
    const char *ahead = weight + AHEAD(blocks) * LINE;
    vec total[ROWS_AT_ONCE][4][PARTS];
    for (int b = 0; b < blocks; b++)
        for (int r = 0; r < rows; r++) memcpy(total[r][b], sums + b * stride + r * OUTPUTS, LINE);
    for (int64_t i = 0; i < count; i++, weight += LINE, ahead += LINE) {
        if (i == count - AHEAD(blocks)) ahead = next;
        _Pragma("GCC unroll 4") /* or sums lie in memory */
        for (int b = 0; b < blocks; b++) {
            __builtin_prefetch(ahead + b * block_bytes);
            for (int odd = 0; odd < (way == WIDE ? 2 : 1); odd++) {
                words w[PARTS], upper;
                if (odd) upper = ODD;
                for (int p = 0; p < PARTS; p++) {
                    w[p] = words_at((const uint32_t *)(weight + b * block_bytes) + p * LANES);
                    if (way == WIDE) w[p] = odd ? w[p] & upper : w[p] << 16;
                }
                for (int r = 0; r < rows; r++) {
                    const float *from = x + r * X_STRIDE + (way == WIDE ? 2 * i + odd : i);
                    for (int p = 0; p < PARTS; p++) {
                        vec *sum = &total[r][b][p];
#if PAIRS_AT_HAND
                        if (way == PAIRS) *sum = add_pairs(*sum, w[p], word_at((const uint32_t *)from));
#endif
                        if (way != PAIRS) *sum = fused(every(*from), (vec)w[p], *sum);
                    }
                }
            }
        }
    }
    for (int b = 0; b < blocks; b++)
        for (int r = 0; r < rows; r++) memcpy(sums + b * stride + r * OUTPUTS, total[r][b], LINE);
}

/* Inputs [input, next) of some rows as `multiply_vectors` reads them; what is missing is 0. */
INLINE void take_rows(int way, const struct product_job *j, int64_t first, int64_t rows, int64_t input, int64_t next,
                      float *x) {
    for (int64_t r = 0; r < rows; r++, x += X_STRIDE) {
        int64_t some = least(next, j->p.inputs) - input, place = (first + r) * j->p.inputs + input, i = 0;
        if (way == PAIRS) {
            memcpy(x, at(j->x, place, BF16), some * 2);
            memset((char *)x + some * 2, 0, (next - input - some) * 2);
            continue;
        }
        for (; i < some; i += LANES) store(x, i, F32, load_some(j->x, place + i, j->type, some - i));
        for (; i < next - input; i += LANES) store(x, i, F32, every(0));
    }
}

INLINE void vector_task(int way, const struct product_task *t) {
    const struct product_job *j = t->job;
    float x[ROWS_AT_ONCE * X_STRIDE];
    memset(t->sums, 0, t->blocks * t->rows * OUTPUTS * sizeof *t->sums);
    for (int64_t input = 0, next = -1; next < j->padded; input = next) {
        next = least(j->padded, input + VECTOR_CHUNK);
        int64_t count = (next - input) / (way == FLOATS ? 1 : 2);
        for (int64_t row = 0, rows; row < t->rows; row += rows) {
            rows = rows_next(t->rows - row);
            take_rows(way, j, t->first_row + row, rows, input, next, x);
            int64_t each = BLOCKS_AT_ONCE(rows);
            for (int64_t block = 0, blocks; block < t->blocks; block += blocks) {
                blocks = t->blocks - block < each ? 1 : each;
                const char *weight = block_of(j, t->first_block + block, input);
                int64_t bytes = j->padded * OUTPUTS * width(j->p.type), stride = t->rows * OUTPUTS;
                const char *next = weight + blocks * bytes;
                float *sums = t->sums + (block * t->rows + row) * OUTPUTS;
#define PART(n, blocks) multiply_vectors(way, n, blocks, x, count, weight, next, bytes, sums, stride)
#define CASE(n) \
    case n: \
        if (blocks == 1 || BLOCKS_AT_ONCE(n) == 1) PART(n, 1); \
        else PART(n, BLOCKS_AT_ONCE(n)); \
        break;
                switch (rows) {
                    CASE(1) CASE(2) CASE(3)
#if !defined(__x86_64__) || defined(__FMA__)
                    CASE(4) CASE(5) CASE(6)
#endif
                }
#undef CASE
#undef PART
            }
        }
    }
    finish_sums(j, t->first_row, t->rows, t->first_block, t->blocks, t->sums, t->rows, way == PAIRS);
}

static void float_task(const struct product_task *t) { vector_task(FLOATS, t); }
static void wide_task(const struct product_task *t) { vector_task(WIDE, t); }
#if PAIRS_AT_HAND
static void pair_task(const struct product_task *t) { vector_task(PAIRS, t); }
#endif

static void multiply_blocks(const struct product_task *t) {
    const struct product_job *j = t->job;
    int paired = j->p.type == BF16 && j->type == BF16;
    (void)paired;
#if TILES_BUILT
    if (paired && tiles_granted) {
        tile_task(t);
        return;
    }
#endif
#if PAIRS_AT_HAND
    if (paired) {
        pair_task(t);
        return;
    }
#endif
    if (j->p.type == F32) float_task(t);
    else wide_task(t);
}

static void multiply_task(void *held, int64_t index, int64_t thread) {
    const struct product_job *j = held;
    /* Stacks are small. */
    static _Thread_local float sums[TASK_ROWS * TASK_BLOCKS * OUTPUTS] __attribute__((aligned(64)));
    struct product_task t = {j, index % j->row_tasks * j->task_rows, 0, index / j->row_tasks * j->task_blocks, 0, sums};
    t.rows = least(j->task_rows, j->rows - t.first_row);
    t.blocks = least(j->task_blocks, above(j->p.outputs, OUTPUTS) / OUTPUTS - t.first_block);
    int64_t first = t.first_block * OUTPUTS, n = least(t.blocks * OUTPUTS, j->p.outputs - first);
    (void)thread;
    multiply_blocks(&t);
    if (j->next) j->next->run(j->next->job, t.first_row, t.rows, first, n);
}

struct later_job {
    const struct next_stage *next;
    int64_t rows, n, each;
};

static void run_later(void *held, int64_t index, int64_t thread) {
    const struct later_job *j = held;
    int64_t row = index * j->each;
    (void)thread;
    j->next->run(j->next->job, row, least(j->each, j->rows - row), 0, j->n);
}

/* (residual +) x · weightᵀ, rounded once: x [rows, inputs] of `type`, `residual` NULL or [rows, outputs] of
 * `residual_type`, out [rows, outputs] of `out_type`. The sum is FP32. Then the next stage, or NULL for none: in the
 * same tasks where they hold whole parts. */
static void multiply_then(const struct product *p, const void *x, int type, int64_t rows, const void *residual,
                          int residual_type, void *out, int out_type, const struct next_stage *next, int64_t threads) {
    if (!rows || !p->outputs) return;
    int joined = next && next->unit % OUTPUTS == 0 && next->unit <= TASK_BLOCKS * OUTPUTS &&
                 (rows <= TASK_ROWS || !next->neighbours);
    struct product_job j = {.p = *p, .x = x, .residual = residual, .out = out, .next = joined ? next : NULL,
                            .rows = rows, .padded = above(p->inputs, LINE_INPUTS), .task_rows = least(rows, TASK_ROWS),
                            .type = type, .residual_type = residual ? residual_type : out_type, .out_type = out_type};
    int64_t blocks = above(p->outputs, OUTPUTS) / OUTPUTS, unit = joined ? next->unit / OUTPUTS : 1;
    int64_t work = p->outputs * p->inputs * most(1, rows / 16); /* reading a weight takes as long as 16 rows do */
    int64_t sharing = work < 1 << 17 ? 1 : threads;
    j.row_tasks = (rows + j.task_rows - 1) / j.task_rows;
    int64_t fair = (blocks * j.row_tasks + 4 * sharing - 1) / (4 * sharing);
    int64_t each = sharing == 1 ? TASK_BLOCKS : most(4, least(TASK_BLOCKS, above(fair, 4)));
    j.task_blocks = most(unit, each / unit * unit);
    share(multiply_task, &j, (blocks + j.task_blocks - 1) / j.task_blocks * j.row_tasks, sharing);
    if (!next || joined) return;
    struct later_job later = {next, rows, p->outputs, rows_each(rows, p->outputs, threads)};
    share(run_later, &later, (rows + later.each - 1) / later.each, threads);
}

static void multiply(const struct product *p, const void *x, int type, int64_t rows, const void *residual,
                     int residual_type, void *out, int out_type, int64_t threads) {
    multiply_then(p, x, type, rows, residual, residual_type, out, out_type, NULL, threads);
}

/* `multiply` for callers outside. */
void product(const struct product *p, const void *x, int type, int64_t rows, const void *residual, int residual_type,
             void *out, int out_type, int64_t threads) {
    multiply(p, x, type, rows, residual, residual_type, out, out_type, threads);
}

/* `count` products one after another, each of its weight's type throughout, all from one x to one `out`: what they take
 * with nothing between them. */
void products(const struct product *list, const int64_t *rows, int64_t count, const void *x, void *out,
              int64_t threads) {
    for (int64_t i = 0; i < count; i++)
        multiply(list + i, x, list[i].type, rows[i], NULL, 0, out, list[i].type, threads);
}
