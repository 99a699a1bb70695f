"""Minibatches: places of permutations, each computed by itself."""

import numpy as np

from langevin.cpu.elementary import inlined
from langevin.noise.cpu.philox import HALF_WORD, LOW, kernel, philox

__all__ = ["draw_batches"]

VECTOR = 8  # lanes of 64 bits in the widest vector
FEISTEL_MULTIPLIER = np.uint64(0xD2B74407B1CE6E93)
FEISTEL_ROUNDS = 24
FEISTEL_MIN_BITS = 8  # below this, permutations of a handful of data are visibly not uniform


@inlined
def bijection(value, keys, left_bits, right_bits):
    """VariPhilox (Mitchell et al. 2021): a keyed bijection of `left_bits + right_bits` bits."""
    left_mask, right_mask = (np.uint64(1) << left_bits) - np.uint64(1), (np.uint64(1) << right_bits) - np.uint64(1)
    left, right = value >> right_bits, value & right_mask
    for i in range(FEISTEL_ROUNDS):
        product = left * FEISTEL_MULTIPLIER
        left, right = (
            ((product >> HALF_WORD) ^ keys[i] ^ right) & left_mask,
            ((product & LOW) << (right_bits - left_bits) | right >> left_bits) & right_mask,
        )
    return left << right_bits | right


@kernel
def permute(out, begin, count, num, seed, stream, epoch, keys, values, places):
    """Write places `begin` to `begin + count - 1` of the permutation of `range(num)` at (seed, stream, epoch)."""
    c3 = np.uint64(stream >> 32 | epoch >> 32 << 8)
    for i in range(FEISTEL_ROUNDS // 4):
        keys[4 * i], keys[4 * i + 1], keys[4 * i + 2], keys[4 * i + 3] = philox(
            np.uint64(i), np.uint64(epoch), np.uint64(stream), c3, seed & LOW, seed >> HALF_WORD
        )
    bits = np.uint64(FEISTEL_MIN_BITS)
    while np.uint64(num - 1) >> bits:
        bits += np.uint64(1)
    left_bits = bits >> np.uint64(1)
    for i in range(count):
        values[i], places[i] = np.uint64(begin + i), i
    # Cycle walking: values outside the range go round again, all together so that the loop stays a vector loop. It runs
    # over whole vectors, since the scalar rest would cost more; an index still outside is written, and overwritten later.
    while count > 0:
        for i in range((count + VECTOR - 1) // VECTOR * VECTOR):
            values[i] = bijection(values[i], keys, left_bits, bits - left_bits)
        pending = 0
        for i in range(count):
            value, place = values[i], places[i]
            out[place] = value
            values[pending], places[pending] = value, place
            pending += value >= np.uint64(num)
        count = pending


@kernel
def draw_batches(out, num_data, seed, stream, step, num_streams, begin, end):
    """Rows `begin` to `end` of `out`, whose rows are the minibatches of (step, stream)."""
    batch_size = out.shape[1]
    keys = np.empty(FEISTEL_ROUNDS, np.uint64)
    values, places = np.zeros(batch_size + VECTOR, np.uint64), np.empty(batch_size, np.int64)
    for row in range(begin, end):
        chain = stream + row % num_streams
        position = (step + row // num_streams) * batch_size
        epoch, start = position // num_data, position % num_data
        count = min(batch_size, num_data - start)
        permute(out[row], start, count, num_data, seed, chain, epoch, keys, values, places)
        if count < batch_size:
            rest = batch_size - count
            permute(out[row, count:], 0, rest, num_data, seed, chain, epoch + 1, keys, values, places)
