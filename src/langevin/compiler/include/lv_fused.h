/* The loop behind a fused update: every tensor of a table, end to end, in place, with its noise made in the L1 cache.
 *
 * A generated program defines, before it includes this header:
 *     REAL, STORED             what elements are computed in, and what positions and gradients are stored in
 *     LV_NOISES, LV_TENSORS    noises of an element, and tensors of a row (position, gradient, memory)
 *     LV_PURPOSES              initialiser of the noises' purposes
 *     LV_BLOCKS                lv_normal_blocks_f32 or another of its kind
 * and after it `elements`. `run(job)` may be called by several threads with the same job at once. */
#ifndef LV_FUSED_H
#define LV_FUSED_H

#include "lv_noise.h"

#define LV_LANES ((int64_t)(16 / sizeof(REAL)))
#define LV_CHUNK (LV_TILE * LV_LANES - LV_LANES) /* elements whose noise is made at a time: with a cut block, a tile */
#define LV_COLUMNS (4 + LV_TENSORS) /* of the table: size, offset, channels, spatial, then an address for each tensor */

typedef struct {
    const int64_t *table;
    const double *scalars;
    REAL *workspace; /* for channels-last tensors: (LV_NOISES + 1) * room elements for each thread */
    int64_t room; /* elements of the largest slab or LV_CHUNK, and 32 blocks; 0 without such tensors */
    int64_t rows, chain, step;
    uint64_t seed;
    int64_t total; /* elements of all rows */
    int64_t piece; /* elements that a thread takes at a time, whole slabs of every row */
    int64_t threads; /* that have begun */
    int64_t next; /* the first element that no thread has taken */
} lv_job;

/* Update `count` elements; `noise` points to theirs. */
static void elements(int64_t count, char *const *at, REAL *const *noise, const double *scalars);

static const int64_t lv_purposes[] = LV_PURPOSES;

static inline void lv_make_noise(const lv_job *job, REAL *const *tiles, int64_t block, int64_t blocks) {
    for (int k = 0; k < LV_NOISES; k++)
        LV_BLOCKS(tiles[k], blocks, block, job->seed, (lv_purposes[k] << 32) + job->chain, job->step);
}

/* Elements `low` to `high` of a row, from where their noise begins in `tiles`. */
static inline void lv_update(
    const lv_job *job, const int64_t *row, int64_t low, int64_t high, REAL *const *tiles, int64_t begin) {
    char *at[LV_TENSORS];
    REAL *noise[LV_NOISES];
    for (int k = 0; k < LV_TENSORS; k++)
        at[k] = (char *)row[4 + k] + low * (int64_t)(k < 2 ? sizeof(STORED) : sizeof(REAL));
    for (int k = 0; k < LV_NOISES; k++) noise[k] = tiles[k] + begin;
    elements(high - low, at, noise, job->scalars);
}

/* Channels-last weights: memory has the channel innermost, addresses do not, so noise is made for whole slabs. */
static void lv_update_slabs(const lv_job *job, const int64_t *row, int64_t low, int64_t high, REAL *workspace) {
    const int64_t channels = row[2], spatial = row[3], slab = channels * spatial;
    const int64_t chunk = (slab < LV_CHUNK ? LV_CHUNK / slab : 1) * slab;
    REAL *spare = workspace + LV_NOISES * job->room, *tiles[LV_NOISES];
    for (int k = 0; k < LV_NOISES; k++) tiles[k] = workspace + k * job->room;
    while (low < high) {
        const int64_t first = low / slab * slab, made = lv_min(chunk, row[0] - first);
        const int64_t address = row[1] + first, block = address / LV_LANES, skip = address % LV_LANES;
        for (int k = 0; k < LV_NOISES; k++) {
            LV_BLOCKS(spare, (skip + made + LV_LANES - 1) / LV_LANES, block, job->seed,
                      (lv_purposes[k] << 32) + job->chain, job->step);
            for (int64_t begin = 0; begin < made; begin += slab)
                for (int64_t s = 0; s < spatial; s++)
                    for (int64_t c = 0; c < channels; c++)
                        tiles[k][begin + s * channels + c] = spare[skip + begin + c * spatial + s];
        }
        const int64_t stop = lv_min(high, first + made);
        lv_update(job, row, low, stop, tiles, low - first);
        low = stop;
    }
}

__attribute__((visibility("default"))) void run(lv_job *job) {
    REAL noise[LV_NOISES][LV_TILE * LV_LANES] __attribute__((aligned(64))), *tiles[LV_NOISES];
    for (int k = 0; k < LV_NOISES; k++) tiles[k] = noise[k];
    REAL *workspace = 0;
    if (job->room)
        workspace = job->workspace
                    + __atomic_fetch_add(&job->threads, 1, __ATOMIC_RELAXED) * (LV_NOISES + 1) * job->room;
    int64_t held = 0, held_end = 0; /* addresses whose noise is in `tiles`, from the start of a block on */
    for (;;) {
        int64_t begin = __atomic_fetch_add(&job->next, job->piece, __ATOMIC_RELAXED);
        int64_t end = lv_min(begin + job->piece, job->total);
        if (begin >= end) return;
        const int64_t *row = job->table, *last = job->table + job->rows * LV_COLUMNS;
        for (; end > 0 && row < last; row += LV_COLUMNS) {
            const int64_t size = row[0], offset = row[1], high = lv_min(end, size);
            int64_t low = begin > 0 ? begin : 0;
            if (row[2] && low < high) lv_update_slabs(job, row, low, high, workspace), low = high;
            while (low < high) {
                if (offset + low < held || offset + low >= held_end) {
                    /* Make noise ahead, for the rows whose addresses follow: many small tensors share a tile. */
                    int64_t ahead = size - low;
                    for (const int64_t *next = row + LV_COLUMNS; ahead < LV_CHUNK && next < last; next += LV_COLUMNS) {
                        const int64_t *before = next - LV_COLUMNS;
                        if (next[2] || next[1] != before[1] + before[0]) break;
                        ahead += next[0];
                    }
                    ahead = lv_min(lv_min(ahead, LV_CHUNK), end - low);
                    held = (offset + low) / LV_LANES * LV_LANES, held_end = offset + low + ahead;
                    lv_make_noise(job, tiles, held / LV_LANES, (held_end - held + LV_LANES - 1) / LV_LANES);
                }
                const int64_t stop = lv_min(high, held_end - offset);
                lv_update(job, row, low, stop, tiles, offset + low - held);
                low = stop;
            }
            begin -= size, end -= size;
        }
    }
}

/* ---- Functions of an element that formulas may use ---- */

#define lv_sign(x) ((REAL)(((x) > 0) - ((x) < 0)))

/* The float32 that a bfloat16, given by its bits, stands for, and the nearest bfloat16, ties to even, as in torch. */
LV_INLINE float lv_widen(uint16_t bits) { return lv_as_f32((uint32_t)bits << 16); }
LV_INLINE uint16_t lv_narrow(float value) {
    uint32_t bits = lv_bits_f32(value);
    return value != value ? 0x7FC0 : (uint16_t)((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}

/* Cody and Waite: x = n log 2 + r with |r| <= log(2) / 2, and a Taylor polynomial for e**r: a few units in the last
 * place. Beyond the format's range its ends, never infinity. Adding 1.5 * 2**fraction rounds to an integer, whose bits
 * are then the lowest of the sum. */
LV_INLINE float lv_exp_f32(float x) {
    const float highest = (float)(127.5 * 0x1.62e42fefa39efp-1), lowest = (float)(-126 * 0x1.62e42fefa39efp-1);
    x = x > highest ? highest : x; // NaN stays NaN
    x = x < lowest ? lowest : x;
    float shifted = __builtin_fmaf(x, (float)(1 / 0x1.62e42fefa39efp-1), 0x1.8p23f), n = shifted - 0x1.8p23f;
    float r = __builtin_fmaf(-n, -2.12194440e-4f, __builtin_fmaf(-n, 0.693359375f, x));
    static const float taylor[] = {
        (float)(1.0 / 5040), (float)(1.0 / 720), (float)(1.0 / 120), (float)(1.0 / 24), (float)(1.0 / 6), 0.5f, 1, 1};
    float y = taylor[0];
    for (int k = 1; k < 8; k++) y = __builtin_fmaf(y, r, taylor[k]);
    return lv_as_f32((lv_bits_f32(shifted) + 127) << 23) * y;
}
LV_INLINE double lv_exp_f64(double x) {
    const double highest = 1023.5 * 0x1.62e42fefa39efp-1, lowest = -1022 * 0x1.62e42fefa39efp-1;
    x = x > highest ? highest : x; // NaN stays NaN
    x = x < lowest ? lowest : x;
    double shifted = __builtin_fma(x, 1 / 0x1.62e42fefa39efp-1, 0x1.8p52), n = shifted - 0x1.8p52;
    double r = __builtin_fma(-n, 1.90821492927058770002e-10, __builtin_fma(-n, 6.93147180369123816490e-01, x));
    static const double taylor[] = {
        1.0 / 6227020800, 1.0 / 479001600, 1.0 / 39916800, 1.0 / 3628800, 1.0 / 362880, 1.0 / 40320, 1.0 / 5040,
        1.0 / 720, 1.0 / 120, 1.0 / 24, 1.0 / 6, 0.5, 1, 1};
    double y = taylor[0];
    for (int k = 1; k < 14; k++) y = __builtin_fma(y, r, taylor[k]);
    return lv_as_f64((lv_bits_f64(shifted) + 1023) << 52) * y;
}

#endif
