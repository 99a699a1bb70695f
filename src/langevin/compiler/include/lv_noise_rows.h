/* Rows of one kind of number (LV_KIND: normal, uniform) in one format (LV_REAL, LV_SUFFIX); see lv_noise.h. */

#define LV_LANES ((int64_t)(16 / sizeof(LV_REAL)))
#define LV_FN(name) LV_NAME3(LV_NAME3(lv_, LV_KIND, name), LV_SUFFIX, )
#define LV_NUMBERS_OF LV_NAME3(LV_NAME3(lv_, LV_KIND, s_of), LV_SUFFIX, )

/* Blocks `begin` to `end` of the flat list of blocks behind `out`, the (step, stream) rows of `size` end to end:
 * the unit of work of one thread. `offset` is the address of the first element of a row. */
LV_API void LV_FN(_rows)(
    LV_REAL *restrict out, int64_t size, int64_t offset, uint64_t seed, int64_t stream, int64_t step,
    int64_t num_streams, int64_t begin, int64_t end) {
    uint32_t words[4 * LV_TILE] __attribute__((aligned(64)));
    LV_REAL numbers[LV_LANES * LV_TILE] __attribute__((aligned(64)));
    const int64_t first_block = offset / LV_LANES, skip = offset % LV_LANES;
    const int64_t blocks_per_row = (offset + size - 1) / LV_LANES - first_block + 1;
    int64_t row = begin / blocks_per_row, block = begin % blocks_per_row;
    int64_t time = step + row / num_streams, chain = row % num_streams;
    while (begin < end) {
        const int64_t count = lv_min(LV_TILE, end - begin), padded = lv_padded(count);
        int64_t tile_row = row, tile_block = block;
        const int of_one_row = block + count <= blocks_per_row;
        if (of_one_row) lv_encrypt_row(words, padded, first_block + block, stream + chain, time, seed);
        for (int64_t done = 0; done < count;) {
            int64_t n = lv_min(count - done, blocks_per_row - block);
            if (!of_one_row) lv_address_row(words, done, n, first_block + block, stream + chain, time);
            done += n;
            block += n;
            if (block == blocks_per_row) {
                row++, block = 0, chain++;
                if (chain == num_streams) time++, chain = 0;
            }
        }
        if (!of_one_row) lv_encrypt(words, padded, seed);
        const int64_t low = tile_block * LV_LANES - skip;
        if (low >= 0 && low + count * LV_LANES <= size && padded == count) { /* nothing to cut off */
            LV_NUMBERS_OF(words, padded, out + tile_row * size + low);
        } else {
            LV_NUMBERS_OF(words, padded, numbers);
            for (int64_t done = 0; done < count;) {
                int64_t n = lv_min(count - done, blocks_per_row - tile_block);
                int64_t start = tile_block * LV_LANES - skip;
                int64_t from = start > 0 ? start : 0, to = lv_min(start + n * LV_LANES, size);
                __builtin_memcpy(out + tile_row * size + from, numbers + done * LV_LANES + from - start,
                             (uint64_t)(to - from) * sizeof(LV_REAL));
                done += n;
                tile_row++, tile_block = 0;
            }
        }
        begin += count;
    }
}

/* Whole blocks `block` to `block + count - 1` of one row, padded to whole vectors: `out` has room for lv_padded(count). */
LV_API void LV_FN(_blocks)(
    LV_REAL *restrict out, int64_t count, int64_t block, uint64_t seed, int64_t stream, int64_t step) {
    uint32_t words[4 * LV_TILE] __attribute__((aligned(64)));
    for (int64_t done = 0; done < count; done += LV_TILE) {
        const int64_t padded = lv_padded(lv_min(LV_TILE, count - done));
        lv_encrypt_row(words, padded, block + done, stream, step, seed);
        LV_NUMBERS_OF(words, padded, out + done * LV_LANES);
    }
}

/* Elements `offset` to `offset + count - 1` of one row, `count` at least 1. */
LV_API void LV_FN(_fill)(
    LV_REAL *restrict out, int64_t count, int64_t offset, uint64_t seed, int64_t stream, int64_t step) {
    int64_t blocks = (offset + count - 1) / LV_LANES - offset / LV_LANES + 1;
    LV_FN(_rows)(out, count, offset, seed, stream, step, 1, 0, blocks);
}

/* Rows `begin` to `end` where a row is the start of one block, at offset 0: the numbers of `_rows` in half the time.
 * The loop runs over the chains of a step instead of over the blocks of a row. */
LV_API void LV_FN(_short_rows)(
    LV_REAL *restrict out, int64_t size, uint64_t seed, int64_t stream, int64_t step, int64_t num_streams,
    int64_t begin, int64_t end) {
    uint32_t words[4 * LV_TILE] __attribute__((aligned(64)));
    LV_REAL numbers[LV_LANES * LV_TILE] __attribute__((aligned(64)));
    while (begin < end) {
        const int64_t count = lv_min(LV_TILE, end - begin);
        int64_t time = step + begin / num_streams, chain = begin % num_streams;
        for (int64_t done = 0; done < count; chain = 0, time++) {
            int64_t n = lv_min(count - done, num_streams - chain);
            lv_address_streams(words, done, n, stream + chain, time);
            done += n;
        }
        lv_encrypt(words, lv_padded(count), seed);
        LV_REAL *where = out + begin * size;
        if (size == LV_LANES && lv_padded(count) == count) { /* nothing to cut off */
            LV_NUMBERS_OF(words, lv_padded(count), where);
        } else {
            LV_NUMBERS_OF(words, lv_padded(count), numbers);
            for (int64_t i = 0; i < count; i++)
                for (int64_t j = 0; j < size; j++) where[i * size + j] = numbers[i * LV_LANES + j];
        }
        begin += count;
    }
}

/* Steps `begin` to `end` of `out`, (step, element, stream) end to end: chains side by side in memory. A block holds
 * the `size` elements. */
LV_API void LV_FN(_lanes)(
    LV_REAL *restrict out, int64_t size, uint64_t seed, int64_t stream, int64_t step, int64_t num_streams,
    int64_t begin, int64_t end) {
    uint32_t words[4 * LV_TILE] __attribute__((aligned(64)));
    LV_REAL numbers[LV_LANES * LV_TILE] __attribute__((aligned(64)));
    for (int64_t row = begin; row < end; row++)
        for (int64_t chain = 0; chain < num_streams; chain += LV_TILE) {
            const int64_t count = lv_min(LV_TILE, num_streams - chain);
            lv_address_streams(words, 0, count, stream + chain, step + row);
            lv_encrypt(words, lv_padded(count), seed);
            LV_NUMBERS_OF(words, lv_padded(count), numbers);
            for (int64_t j = 0; j < size; j++) {
                LV_REAL *where = out + (row * size + j) * num_streams + chain;
                for (int64_t i = 0; i < count; i++) where[i] = numbers[i * LV_LANES + j];
            }
        }
}

#undef LV_LANES
#undef LV_FN
#undef LV_NUMBERS_OF
