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

/* All eight tiles have 16 rows of 64 bytes. */
INLINE void open_tiles(void) {
    struct tile_shapes shapes = {.palette = 1};
    for (int tile = 0; tile < 8; tile++) shapes.bytes[tile] = 64, shapes.rows[tile] = 16;
    _tile_loadconfig(&shapes);
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
