/* The matrix tiles of the machine (Intel AMX): eight registers of up to 16 rows of 64 bytes, whose product multiplies
 * pairs of BF16 and adds in FP32.
 *
 * The kernel has to grant them to the process, once. Each thread sets their shape before it uses them and releases them
 * afterwards, because a matrix library in the same thread sets its own. Subnormal numbers count as 0 in them. */

#if defined(__AMX_BF16__) && defined(__AMX_TILE__) && defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>

#define TILES_BUILT 1

static int tiles_granted;

struct tile_shapes {
    uint8_t palette, start_row, reserved[14];
    uint16_t bytes[16];
    uint8_t rows[16];
};

/* What was written lies in memory before tiles are loaded from it: GCC 12 does not know that the intrinsics read it. */
INLINE void settle(const void *written) { __asm__ volatile("" ::"r"(written) : "memory"); }

/* Tile i has rows[i] rows of 64 bytes. */
INLINE void shape_tiles(const uint8_t *rows) {
    struct tile_shapes shapes = {.palette = 1};
    for (int tile = 0; tile < 8; tile++) shapes.bytes[tile] = 64, shapes.rows[tile] = rows[tile];
    settle(&shapes);
    _tile_loadconfig(&shapes);
}

/* All eight tiles have 16 rows of 64 bytes. */
INLINE void open_tiles(void) {
    static const uint8_t rows[8] = {16, 16, 16, 16, 16, 16, 16, 16};
    shape_tiles(rows);
}

INLINE void close_tiles(void) { _tile_release(); }

/* Asks for the tiles where `wanted`, else leaves them alone from now on; returns whether they are used. */
int use_tiles(int wanted) {
    enum { ASK = 0x1023, DATA = 18 };
    tiles_granted = wanted && syscall(SYS_arch_prctl, ASK, DATA) == 0;
    return tiles_granted;
}
#else
#define TILES_BUILT 0
enum { tiles_granted = 0 };
int use_tiles(int wanted) { return (void)wanted, 0; }
#endif
