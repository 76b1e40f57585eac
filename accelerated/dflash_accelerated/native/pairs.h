/* Attention's two products where the machine multiplies BF16 itself, by `add_pairs`: twice as many products an
 * instruction as FP32 has.
 *
 * Scores take pairs of channels. Sums of values take pairs of keys, so weights are rounded to BF16, as the fused
 * attention of PyTorch rounds them; the sum that divides them is of the rounded weights. */

/* 16 keys into columns [channels / 2, TILE] of pairs of channels; `channels` is a multiple of 32. */
static void pair_keys(const void *const *rows, int64_t channels, uint32_t *to) {
    for (int64_t pair = 0; pair < channels / 2; pair += 16) {
        words x[16];
        for (int i = 0; i < 16; i++) x[i] = words_at((const uint32_t *)rows[i] + pair);
        transpose(x);
        for (int i = 0; i < 16; i++) memcpy(to + (pair + i) * TILE, &x[i], sizeof x[i]);
    }
}

/* 32 channels of two keys, channel by channel, into words [2, 16] at `low` and `high`, in the order of `unlaced`:
 * unpacking stays within 128 bits. */
INLINE void lace(const void *even, const void *odd, uint32_t *low, uint32_t *high) {
    typedef uint16_t shorts __attribute__((vector_size(64)));
    shorts a, b, pairs;
    memcpy(&a, even, sizeof a);
    memcpy(&b, odd, sizeof b);
    pairs = __builtin_shufflevector(a, b, 0, 32, 1, 33, 2, 34, 3, 35, 8, 40, 9, 41, 10, 42, 11, 43, 16, 48, 17, 49, 18,
                                    50, 19, 51, 24, 56, 25, 57, 26, 58, 27, 59);
    memcpy(low, &pairs, sizeof pairs);
    pairs = __builtin_shufflevector(a, b, 4, 36, 5, 37, 6, 38, 7, 39, 12, 44, 13, 45, 14, 46, 15, 47, 20, 52, 21, 53,
                                    22, 54, 23, 55, 28, 60, 29, 61, 30, 62, 31, 63);
    memcpy(high, &pairs, sizeof pairs);
}

/* Laced sums of 32 channels in their own order: the first or the last 16. */
INLINE vec unlaced(vec low, vec high, int last) {
    if (last) return __builtin_shufflevector(low, high, 8, 9, 10, 11, 24, 25, 26, 27, 12, 13, 14, 15, 28, 29, 30, 31);
    return __builtin_shufflevector(low, high, 0, 1, 2, 3, 16, 17, 18, 19, 4, 5, 6, 7, 20, 21, 22, 23);
}

/* The values of two keys, laced, into words; a key that is not there (NULL) gives zeros. */
static void pair_values(const void *even, const void *odd, int64_t channels, uint32_t *to) {
    static const uint16_t none[32];
    for (int64_t i = 0; i < channels; i += 32)
        lace(even ? (const uint16_t *)even + i : none, odd ? (const uint16_t *)odd + i : none, to + i, to + i + 16);
}

/* Scores [4, TILE] of 4 lines: q [4, pairs] times columns [pairs, TILE]. */
INLINE void score_pairs(const uint32_t *q, const uint32_t *columns, int64_t pairs, float *scores) {
    vec sums[4][4] = {{{0}}};
    for (int64_t pair = 0; pair < pairs; pair++) {
        words key[4];
        for (int i = 0; i < 4; i++) key[i] = words_at(columns + pair * TILE + i * LANES);
        for (int line = 0; line < 4; line++)
            for (int i = 0; i < 4; i++)
                sums[line][i] = add_pairs(sums[line][i], word_at(q + line * pairs + pair), key[i]);
    }
    for (int line = 0; line < 4; line++)
        for (int i = 0; i < 4; i++) store(scores, line * TILE + i * LANES, F32, sums[line][i]);
}

/* total [4, channels] += weights [4, TILE / 2] · values [TILE / 2, channels] for `parts` vectors of channels. */
INLINE void mix_some(int parts, const uint32_t *weights, const uint32_t *values, int64_t channels, float *total) {
    vec sums[4][4];
    for (int line = 0; line < 4; line++)
        for (int i = 0; i < parts; i++) sums[line][i] = load(total, line * channels + i * LANES, F32);
    for (int64_t pair = 0; pair < TILE / 2; pair++) {
        words value[4];
        for (int i = 0; i < parts; i++) value[i] = words_at(values + pair * channels + i * LANES);
        for (int line = 0; line < 4; line++)
            for (int i = 0; i < parts; i++)
                sums[line][i] = add_pairs(sums[line][i], word_at(weights + line * TILE / 2 + pair), value[i]);
    }
    for (int line = 0; line < 4; line++)
        for (int i = 0; i < parts; i++) store(total, line * channels + i * LANES, F32, sums[line][i]);
}

INLINE void mix_pairs(const uint32_t *weights, const uint32_t *values, int64_t channels, float *total) {
    int64_t channel = 0;
    for (; channel + 4 * LANES <= channels; channel += 4 * LANES)
        mix_some(4, weights, values + channel, channels, total + channel);
    for (; channel < channels; channel += LANES) mix_some(1, weights, values + channel, channels, total + channel);
}
