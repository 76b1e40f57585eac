/* Matrix products with weights packed for them.
 *
 * A packed weight is cut into blocks of 16 outputs, and lies as [blocks, inputs, 16] in FP32, or in BF16 as
 * [blocks, inputs / 2, 16] pairs of inputs; what is missing at the end is 0. An output's sum runs over the inputs in
 * their order, whatever rows and outputs are multiplied beside it: a row's result never depends on its neighbours. */

struct product {
    const void *weight;
    int64_t outputs, inputs;
    int type;
};

/* Bytes of a packed weight. */
int64_t packed_bytes(int64_t outputs, int64_t inputs, int type) {
    return above(outputs, LANES) * above(inputs, 2 * LANES) * width(type);
}

/* weight [outputs, inputs] of `type` into `packed`. */
void pack(const void *weight, void *packed, int64_t outputs, int64_t inputs, int type) {
    int64_t padded = above(inputs, 2 * LANES), pair = type == BF16 ? 2 : 1;
    memset(packed, 0, packed_bytes(outputs, inputs, type));
    for (int64_t output = 0; output < outputs; output++)
        for (int64_t input = 0; input < inputs; input++) {
            int64_t block = output / LANES * padded * LANES;
            int64_t place = block + (input / pair * LANES + output % LANES) * pair + input % pair;
            memcpy((void *)at(packed, place, type), at(weight, output * inputs + input, type), width(type));
        }
}

/* (residual +) x · weightᵀ, rounded once: x [rows, inputs] of `type`, `residual` NULL or [rows, outputs] of
 * `residual_type`, out [rows, outputs] of `out_type`. The sum is FP32. */
static void multiply(const struct product *p, const void *x, int type, int64_t rows, const void *residual,
                     int residual_type, void *out, int out_type, int64_t threads) {
    int64_t padded = above(p->inputs, 2 * LANES), pair = p->type == BF16 ? 2 : 1;
    (void)threads;
    for (int64_t row = 0; row < rows; row++)
        for (int64_t output = 0; output < p->outputs; output++) {
            float sum = 0;
            for (int64_t input = 0; input < p->inputs; input++) {
                int64_t block = output / LANES * padded * LANES;
                int64_t place = block + (input / pair * LANES + output % LANES) * pair + input % pair;
                sum += load_one(x, row * p->inputs + input, type) * load_one(p->weight, place, p->type);
            }
            if (residual) sum += load_one(residual, row * p->outputs + output, residual_type);
            store_some(out, row * p->outputs + output, out_type, every(sum), 1);
        }
}

/* `multiply` for callers outside. */
void product(const struct product *p, const void *x, int type, int64_t rows, const void *residual, int residual_type,
             void *out, int out_type, int64_t threads) {
    multiply(p, x, type, rows, residual, residual_type, out, out_type, threads);
}
