"""Every random number is a pure function of (seed, stream, step, element), and the numbers are good."""

import ctypes
import itertools
import math
import os
import platform
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import torch
from scipy import stats

from langevin import random as noise
from langevin.compiler.build import load
from langevin.random import Purpose, batch_indices, chains_last, compiled, normal, permutation, stream, streams, uniform

SEED = 0x9E3779B97F4A7C15
CHAIN = stream(Purpose.POSITION, 7)
FLOATS = [torch.float32, torch.float64]
NUM_DRAWS = 2**22
STANDARD_ERRORS = 4.5  # two-sided p = 7e-6 for each of about 100 comparisons with fixed seeds


PROGRAM = """
#include "lv_noise.h"
void pair_f32(uint32_t radius, uint32_t angle, float *out) { lv_pair_f32(radius, angle, out, out + 1); }
void pair_f64(uint64_t radius, uint64_t angle, double *out) { lv_pair_f64(radius, angle, out, out + 1); }
void block(uint32_t *words, uint64_t seed) { lv_philox(words, seed); }
#define FILL(kind, suffix, real) \
    void kind##suffix(real *out, int64_t count, int64_t offset, uint64_t seed, int64_t chain, int64_t step, int64_t chunk) { \
        for (int64_t i = 0; i < count; i += chunk) \
            lv_##kind##_fill##suffix(out + i, lv_min(chunk, count - i), offset + i, seed, chain, step); \
    }
FILL(normal, _f32, float)
FILL(normal, _f64, double)
FILL(uniform, _f32, float)
FILL(uniform, _f64, double)
"""


@pytest.fixture(scope="module")
def program():
    """A generated program that includes the header."""
    return load(PROGRAM)


def pair(program, dtype, radius, angle):
    out, uint, name = (
        (np.empty(2, np.float32), ctypes.c_uint32, "pair_f32")
        if dtype == torch.float32
        else (np.empty(2), ctypes.c_uint64, "pair_f64")
    )
    getattr(program, name)(uint(radius), uint(angle), ctypes.c_void_p(out.ctypes.data))
    return out


def bits(tensor):
    return tensor.numpy().tobytes()


# Philox


@pytest.mark.parametrize(
    ("counter", "key", "words"),
    [
        ([0] * 4, [0] * 2, [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]),
        ([0xFFFFFFFF] * 4, [0xFFFFFFFF] * 2, [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]),
        (
            [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344],
            [0xA4093822, 0x299F31D0],
            [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1],
        ),
    ],
)
def test_both_engines_give_the_known_answers_of_random123(program, counter, key, words):
    assert list(noise.philox(tuple(counter), tuple(key))) == words
    assert [int(w) for w in noise.philox(tuple(torch.tensor([c]) for c in counter), tuple(key))] == words
    block = (ctypes.c_uint32 * 4)(*counter)
    program.block(block, ctypes.c_uint64(key[0] | key[1] << 32))
    assert list(block) == words


# Addresses


@pytest.mark.parametrize("dtype", FLOATS)
def test_an_element_is_the_same_alone_in_a_slice_and_in_the_whole(dtype):
    whole = normal(SEED, CHAIN, 3, 5000, dtype=dtype)
    for offset, size in [(0, 1), (1, 1), (3, 2), (5, 7), (2047, 3), (2048, 2048), (2049, 2951), (4999, 1), (17, 0)]:
        part = normal(SEED, CHAIN, 3, size, offset=offset, dtype=dtype)
        assert bits(part) == bits(whole[offset : offset + size])


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(("size", "offset"), [(1, 0), (2, 0), (2, 3), (5, 1), (37, 2), (3000, 1)])
def test_rows_are_the_same_alone_and_together(dtype, size, offset):
    first = stream(Purpose.GRADIENT, 2**32 - 9)
    together = normal(SEED, range(first, first + 9), range(2**32 - 4, 2**32 + 4), size, offset=offset, dtype=dtype)
    assert together.shape == (8, 9, size)
    for i, j in itertools.product(range(8), range(9)):
        alone = normal(SEED, first + j, 2**32 - 4 + i, size, offset=offset, dtype=dtype)
        assert bits(alone) == bits(together[i, j])


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_short_rows_are_the_starts_of_long_ones(dtype, size):
    """Rows within a block have a loop of their own; rows of 50 do not take it."""
    chains, steps = streams(Purpose.POSITION, range(700)), range(2**32 - 1, 2**32 + 2)
    short, long = normal(SEED, chains, steps, size, dtype=dtype), normal(SEED, chains, steps, 50, dtype=dtype)
    assert bits(short) == bits(long[..., :size].contiguous())


def test_the_number_of_threads_does_not_change_a_bit():
    drawn, batches = [], []
    before = torch.get_num_threads()
    try:
        for num_threads in (1, 2, 3):
            torch.set_num_threads(num_threads)
            drawn.append(bits(normal(SEED, range(3), 0, 250_001, offset=1)))
            batches.append(bits(batch_indices(SEED, range(3), range(200), 100, 1001)))
    finally:
        torch.set_num_threads(before)
    assert len(set(drawn)) == 1
    assert len(set(batches)) == 1


def test_every_bit_of_the_address_matters():
    draws = [normal(SEED ^ 1 << i, 0, 0, 4) for i in range(64)]
    draws += [normal(SEED, 1 << i, 0, 4) for i in range(40)]
    draws += [normal(SEED, 0, 1 << i, 4) for i in range(56)]
    draws += [normal(SEED, 0, 0, 4, offset=4 << i) for i in range(32)]
    draws += [normal(SEED, 0, 0, 4)]
    assert len({bits(draw) for draw in draws}) == 64 + 40 + 56 + 32 + 1


def test_half_precision_is_float32_rounded():
    drawn = normal(SEED, CHAIN, 0, 1000)
    for dtype in (torch.bfloat16, torch.float16):
        assert torch.equal(normal(SEED, CHAIN, 0, 1000, dtype=dtype), drawn.to(dtype))


def test_torch_and_numpy_generators_are_left_alone():
    torch_state, numpy_state = torch.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002
    normal(SEED, CHAIN, 0, 10)
    batch_indices(SEED, CHAIN, 0, 5, 10)
    assert torch.equal(torch.get_rng_state(), torch_state)
    assert (np.random.get_state()[1] == numpy_state).all()  # noqa: NPY002


def test_a_forked_child_draws_the_same_on_threads_of_its_own():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        drawn = bits(normal(SEED, CHAIN, 0, 300_000))
        child = os.fork()
        if child == 0:
            os._exit(0 if bits(normal(SEED, CHAIN, 0, 300_000)) == drawn else 1)
        for _ in range(200):  # a child that waits for its parent's threads hangs
            done, status = os.waitpid(child, os.WNOHANG)
            if done:
                break
            time.sleep(0.05)
        else:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            pytest.fail("the child hangs")
        assert status == 0
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("kind", [normal, uniform])
def test_a_fill_inside_another_program_gives_the_same_bits(program, kind, dtype):
    expected = kind(SEED, CHAIN, 9, 10_001, offset=5, dtype=dtype)
    fill = getattr(program, f"{kind.__name__}_{'f32' if dtype == torch.float32 else 'f64'}")
    for chunk in (7, 1000, 4096, 20_000):
        out = torch.zeros_like(expected)
        fill(
            ctypes.c_void_p(out.data_ptr()), ctypes.c_int64(len(out)), ctypes.c_int64(5), ctypes.c_uint64(SEED),
            ctypes.c_int64(CHAIN), ctypes.c_int64(9), ctypes.c_int64(chunk),
        )  # fmt: skip
        assert bits(out) == bits(expected)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("kind", ["normal", "uniform"])
@pytest.mark.parametrize("size", [1, 2, 3, 4, 5])
def test_chains_side_by_side_have_the_same_numbers(kind, size, dtype):
    chains, steps = range(2**32 - 5, 2**32 + 700), range(2**32 - 1, 2**32 + 1)
    laned = chains_last(kind, SEED, chains, steps, size, dtype, torch.device("cpu"))
    assert bits(laned) == bits(noise.KINDS[kind](SEED, chains, steps, size, dtype=dtype).mT.contiguous())


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(("size", "offset"), [(1, 0), (4, 0), (3, 1), (63, 0), (2048, 0), (2048, 1), (2049, 3)])
def test_no_element_outside_the_result_is_written(size, offset, dtype):
    """The result lies between guards; tiles and vectors end where they like."""
    steps, chains = range(3), range(2)
    whole = torch.full((64 + 6 * size + 64,), -7.0, dtype=dtype)
    rows = noise.address.Grid(chains.start, len(chains), steps.start, len(steps))
    for kind in ("normal", "uniform"):
        inside = whole[64:-64]
        assert compiled.draw_rows(kind, inside, size, offset, SEED, rows)
        assert bits(inside) == bits(noise.KINDS[kind](SEED, chains, steps, size, offset=offset, dtype=dtype).flatten())
        assert (torch.cat([whole[:64], whole[-64:]]) == -7).all()


def test_a_buffer_of_another_size_is_refused():
    rows = noise.address.Grid(0, 2, 0, 3)
    for call in (
        lambda: compiled.draw_rows("normal", torch.empty(29), 5, 0, SEED, rows),
        lambda: compiled.draw_rows("normal", torch.empty(60)[::2], 5, 0, SEED, rows),
        lambda: compiled.draw_chains_last("normal", torch.empty(11), 2, SEED, rows),
        lambda: compiled.draw_batches(torch.empty(24), 4, 9, SEED, rows),
    ):
        with pytest.raises(ValueError, match="noise needs a contiguous CPU tensor of"):
            call()
    with pytest.raises(ValueError, match=r"draw_chains_last\(size=...\) needs at most 4, got 5"):
        compiled.draw_chains_last("normal", torch.empty(30), 5, SEED, rows)


# The two engines


@pytest.mark.parametrize("dtype", FLOATS)
def test_compiled_normals_equal_the_torch_reference_to_four_ulp(dtype):
    address = (SEED, range(2**40 - 3, 2**40), range(2**56 - 2, 2**56), 50_001)
    ours = normal(*address, offset=3, dtype=dtype)
    theirs = noise.normal_reference(*address, offset=3, dtype=dtype)
    assert ((ours - theirs).abs() <= 4 * torch.finfo(dtype).eps * theirs.abs()).all()


def test_a_float32_pair_is_the_documented_formula_to_four_ulp(program):
    words = np.random.default_rng(0).integers(0, 2**32, (2, 2000), dtype=np.uint32)
    words[:, :4] = [[0, 2**32 - 1, 2**31, 2**30], [2**32 - 1, 0, 2**30, 2**31]]
    pairs = np.array([pair(program, torch.float32, *map(int, column)) for column in words.T])
    uniform = (words[0].astype(np.float32) + np.float32(0.5)).astype(np.float64) / 2**32
    radius = np.sqrt(-2 * np.log(uniform))
    # the 30 bits below the quadrant are a signed number, its centre half a unit up
    phase = (np.int32(4) * words[1].astype(np.int32) // 4 + 0.5) / 2**29 * (math.pi / 4)
    quadrant = (words[1] >> 30).astype(int)
    sin, cos = np.sin(phase), np.cos(phase)
    first = radius * np.choose(quadrant, [cos, -sin, -cos, sin])
    second = radius * np.choose(quadrant, [sin, cos, -sin, -cos])
    for drawn, exact in [(pairs[:, 0], first), (pairs[:, 1], second)]:
        assert (np.abs(drawn - exact) <= 4 * np.finfo(np.float32).eps * np.abs(exact)).all()


def test_the_float32_tail_reaches_beyond_six_and_a_half_and_nothing_is_infinite(program):
    assert abs(pair(program, torch.float32, 0, 0)[0]) > 6.5
    assert abs(pair(program, torch.float64, 0, 0)[0]) > 9.3
    assert np.isfinite(pair(program, torch.float32, 2**32 - 1, 2**32 - 1)).all()
    assert np.isfinite(pair(program, torch.float64, 2**64 - 1, 2**64 - 1)).all()


@pytest.mark.parametrize("flag", ["-O0", "-mno-avx512f", "-mno-avx512dq", "-mno-avx2"])
@pytest.mark.skipif(platform.machine() != "x86_64", reason="flags of this processor family")
def test_bits_do_not_depend_on_the_instruction_set(flag):
    """Each flag takes another branch of the header."""
    expected = [
        torch.cat([kind(SEED, 3, 4, 3001, offset=1, dtype=dtype).double() for kind in (normal, uniform)]) for dtype in FLOATS
    ]
    program = load(PROGRAM, (flag,))
    for dtype, both in zip(FLOATS, expected, strict=True):
        suffix = "f32" if dtype == torch.float32 else "f64"
        drawn = []
        for kind in ("normal", "uniform"):
            out = torch.empty(3001, dtype=dtype)
            numbers = (3001, 1, SEED, 3, 4, 3001)
            getattr(program, f"{kind}_{suffix}")(ctypes.c_void_p(out.data_ptr()), *map(ctypes.c_uint64, numbers))
            drawn.append(out.double())
        assert bits(torch.cat(drawn)) == bits(both)


@pytest.mark.parametrize(("batch_size", "num_data"), [(1, 1), (1, 2), (3, 10), (100, 100), (50, 4435), (128, 70_001)])
def test_batches_of_both_engines_are_equal(batch_size, num_data):
    address = (SEED, range(2**40 - 3, 2**40), range(2**45, 2**45 + 20), batch_size, num_data)
    assert torch.equal(batch_indices(*address), noise.batch_indices_reference(*address))


def test_without_a_compiler_the_reference_serves(monkeypatch):
    monkeypatch.setattr(compiled, "_function", lambda name: None)
    assert torch.equal(normal(1, 2, range(3), 5), noise.normal_reference(1, 2, range(3), 5))
    assert torch.equal(uniform(1, 2, range(3), 5), noise.uniform_reference(1, 2, range(3), 5))
    assert torch.equal(batch_indices(1, range(2), 3, 5, 9), noise.batch_indices_reference(1, range(2), 3, 5, 9))
    laned = chains_last("normal", 1, range(4), range(3), 2, torch.float32, torch.device("cpu"))
    assert torch.equal(laned, noise.normal_reference(1, range(4), range(3), 2).mT)


def test_a_missing_compiler_is_reported_once():
    code = """if True:
        import warnings, langevin as lv
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for step in range(3):
                lv.random.normal(0, 0, step, 5)
                lv.random.batch_indices(0, 0, step, 3, 9)
        print([str(warning.message) for warning in caught])
    """
    environment = {**os.environ, "CC": "no-such-compiler"}
    said = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True).stdout
    assert said.count("noise and optimizers run on plain torch, which is slower: CC needs an executable C compiler") == 1
    assert said.count("', '") == 0


def test_other_devices_use_the_reference():
    assert normal(1, 2, range(3), 5, device="meta").shape == (3, 5)


def test_the_default_device_of_torch_is_not_consulted():
    with torch.device("meta"):
        assert normal(1, 2, 3, 5).device.type == "cpu"
        assert batch_indices(1, 2, 3, 5, 9).device.type == "cpu"


# Statistics


@pytest.fixture(scope="module", params=FLOATS, ids=str)
def draws(request):
    return normal(SEED, CHAIN, 0, NUM_DRAWS, dtype=request.param).double().numpy()


@pytest.mark.parametrize(
    ("power", "moment", "variance"),
    [(1, 0, 1), (2, 1, 2), (3, 0, 15), (4, 3, 96)],
    ids=["mean", "variance", "skewness", "kurtosis"],
)
def test_moments_are_those_of_a_standard_normal(draws, power, moment, variance):
    assert abs(np.mean(draws**power) - moment) < STANDARD_ERRORS * math.sqrt(variance / NUM_DRAWS)


@pytest.mark.parametrize("threshold", [3.0, 4.0, 4.5])
def test_the_tails_have_the_right_weight(draws, threshold):
    expected = NUM_DRAWS * stats.norm.sf(threshold)  # the standard error of a Poisson count is its root
    assert abs((draws > threshold).sum() - expected) < STANDARD_ERRORS * math.sqrt(expected)
    assert abs((draws < -threshold).sum() - expected) < STANDARD_ERRORS * math.sqrt(expected)


def test_the_distribution_is_normal_by_kolmogorov_and_smirnov(draws):
    cdf = stats.norm.cdf(np.sort(draws))
    distance = np.abs(cdf - (np.arange(NUM_DRAWS) + 0.5) / NUM_DRAWS).max() + 0.5 / NUM_DRAWS
    assert math.sqrt(NUM_DRAWS) * distance < 2.5  # p = 2 exp(-2 * 2.5**2) = 7e-6


def correlations(x, y):
    """Correlations of x with y and of their squares, in standard errors."""
    root = math.sqrt(len(x))
    return abs(np.mean(x * y)) * root, abs(np.mean((x * x - 1) * (y * y - 1))) * root / 2


@pytest.mark.parametrize("lag", range(1, 9))
def test_neighbouring_elements_are_independent(draws, lag):
    assert max(correlations(draws[:-lag], draws[lag:])) < STANDARD_ERRORS


@pytest.mark.parametrize(
    "neighbour", [(SEED + 1, CHAIN, 0), (SEED, CHAIN + 1, 0), (SEED, CHAIN, 1)], ids=["seed", "stream", "step"]
)
def test_neighbouring_seeds_streams_and_steps_are_independent(neighbour):
    x = normal(SEED, CHAIN, 0, NUM_DRAWS).double().numpy()
    y = normal(*neighbour, NUM_DRAWS).double().numpy()
    assert max(correlations(x, y)) < STANDARD_ERRORS


def test_one_element_over_many_steps_and_chains_is_normal():
    x = normal(SEED, range(1000), range(1000), 1).double().flatten().numpy()
    assert stats.kstest(x, "norm").pvalue > 1e-5
    x = x.reshape(1000, 1000)
    assert max(correlations(x[1:].ravel(), x[:-1].ravel())) < STANDARD_ERRORS
    assert max(correlations(x[:, 1:].ravel(), x[:, :-1].ravel())) < STANDARD_ERRORS


# Permutations and minibatches


@pytest.mark.parametrize("num", [*range(1, 40), 255, 256, 257, 1000, 4095, 4096, 4097, 65_537, 1_000_003])
def test_a_permutation_holds_every_index_once(num):
    assert torch.equal(permutation(SEED, CHAIN, 5, num).sort().values, torch.arange(num))


@pytest.mark.parametrize("num", [2, 3, 5, 7, 10, 100])
def test_every_index_is_equally_likely_at_every_place(num):
    repeats = 20_000
    table = permutation(SEED, stream(Purpose.BATCH), range(repeats), num).numpy()
    counts = np.array([np.bincount(column, minlength=num) for column in table.T])
    # rows and columns of the table are fixed, which leaves (num - 1)**2 degrees of freedom
    chi_square = ((counts - repeats / num) ** 2 / (repeats / num)).sum() * (num - 1) / num
    assert 1e-5 < stats.chi2.sf(chi_square, (num - 1) ** 2) < 1 - 1e-5


@pytest.mark.parametrize("num", [2, 3, 4, 5])
@pytest.mark.parametrize("over", ["epochs", "chains"])
def test_every_ordering_is_equally_likely(num, over):
    repeats = 40_000
    address = (CHAIN, range(repeats)) if over == "epochs" else (range(repeats), 0)
    table = permutation(SEED, *address, num).numpy()
    _, counts = np.unique(table @ num ** np.arange(num), return_counts=True)
    assert len(counts) == math.factorial(num)
    assert stats.chisquare(counts).pvalue > 1e-5


def test_epochs_and_chains_have_orders_of_their_own():
    orders = permutation(SEED, range(20), range(20), 50).view(400, 50)
    assert len(set(map(bits, orders))) == 400
    # the places where two permutations agree are Poisson(1) many
    agreements = (orders[1:] == orders[:-1]).sum(1).double()
    assert abs(agreements.mean() - 1) < STANDARD_ERRORS / math.sqrt(399)


@pytest.mark.parametrize(("batch_size", "num_data"), [(1, 1), (3, 10), (7, 10), (10, 10), (32, 100), (100, 4435)])
def test_batches_cover_each_epoch_exactly_once_even_when_they_straddle_two(batch_size, num_data):
    num_epochs = 3
    num_steps = -(-num_epochs * num_data // batch_size)
    indices = batch_indices(SEED, CHAIN, range(num_steps), batch_size, num_data).flatten()
    for epoch in range(num_epochs):
        assert torch.equal(indices[epoch * num_data : (epoch + 1) * num_data], permutation(SEED, CHAIN, epoch, num_data))


def test_a_run_resumed_in_the_middle_sees_the_same_batches():
    whole = batch_indices(SEED, range(4), range(100), 7, 30)
    assert torch.equal(batch_indices(SEED, range(4), range(41, 100), 7, 30), whole[41:])
    assert torch.equal(batch_indices(SEED, 2, 41, 7, 30), whole[41, 2])


# Arguments


def test_streams_are_consecutive_and_purposes_do_not_meet():
    assert streams(Purpose.BATCH, range(3, 6)) == range(stream(Purpose.BATCH, 3), stream(Purpose.BATCH, 6))
    assert stream(Purpose.POSITION, 2**32 - 1) < stream(Purpose.SECOND, 0)
    assert len({stream(purpose) for purpose in Purpose}) == len(Purpose)


def test_empty_requests_give_empty_tensors():
    assert normal(0, range(0), 0, 5).shape == (0, 5)
    assert normal(0, 0, range(3), 0).shape == (3, 0)
    assert batch_indices(0, range(0), range(2), 3, 5).shape == (2, 0, 3)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: normal("abc", 0, 0, 1), TypeError, "normal(seed=...) needs an int in [0, 2**64), got 'abc'"),
        (lambda: normal(True, 0, 0, 1), TypeError, "normal(seed=...) needs an int in [0, 2**64), got True"),
        (lambda: normal(-1, 0, 0, 1), ValueError, "normal(seed=...) needs an int in [0, 2**64), got -1"),
        (lambda: normal(2**64, 0, 0, 1), ValueError, f"got {2**64}"),
        (lambda: normal(0, 2**40, 0, 1), ValueError, f"normal(stream=...) needs an int in [0, 2**40), got {2**40}"),
        (lambda: normal(0, 1.5, 0, 1), TypeError, "normal(stream=...) needs an int in [0, 2**40), got 1.5"),
        (lambda: normal(0, range(0, 4, 2), 0, 1), ValueError, "normal(stream=...) needs a range within [0, 2**40) with step 1"),
        (lambda: normal(0, 0, range(2**56 + 1), 1), ValueError, "normal(step=...) needs a range within [0, 2**56) with step 1"),
        (lambda: normal(0, 0, -1, 1), ValueError, "normal(step=...) needs an int in [0, 2**56), got -1"),
        (lambda: normal(0, 0, np.int64(3), 1), TypeError, "normal(step=...) needs an int in [0, 2**56), got np.int64(3)"),
        (lambda: normal(0, 0, None, 1), TypeError, "normal(step=...) needs an int in [0, 2**56), got None"),
        (lambda: normal(0, 0, 0, -1), ValueError, "normal(size=...) needs an int in [0, 2**34), got -1"),
        (lambda: normal(0, 0, 0, 1, offset=2**34), ValueError, "normal(offset=...) needs an int in [0, 2**34)"),
        (lambda: normal(0, 0, 0, 2, offset=2**34 - 1), ValueError, "normal(size=...) needs offset + size <="),
        (lambda: normal(0, 0, 0, 1, dtype=torch.int64), ValueError, "normal(dtype=...) needs one of torch.float32"),
        (lambda: batch_indices(0, 0, 0, 6, 5), ValueError, "batch_indices(batch_size=...) needs batch_size <= num_data, got 6 > 5"),
        (lambda: batch_indices(0, 0, 0, 0, 5), ValueError, "batch_indices(batch_size=...) needs an int in [1, 2**62), got 0"),
        (lambda: batch_indices(0, 0, 0, 1, 0), ValueError, "batch_indices(num_data=...) needs an int in [1, 2**62), got 0"),
        (lambda: batch_indices(0, 0, 2**55, 2**8, 2**9), ValueError, "batch_indices(step=...) needs step * batch_size < 2**62"),
        (lambda: permutation(0, 0, 0, 0), ValueError, "permutation(num=...) needs an int in [1, 2**62), got 0"),
        (lambda: stream(Purpose.BATCH, 2**32), ValueError, "stream(chain=...) needs an int in [0, 2**32)"),
        (lambda: stream("batch"), TypeError, "stream(purpose=...) needs an int in [0, 2**8), got 'batch'"),
        (lambda: streams(Purpose.BATCH, 3), TypeError, "streams(chains=...) needs a range, got 3"),
        (lambda: streams(Purpose.BATCH, range(-1, 3)), ValueError, "streams(chains=...) needs a range within [0, 2**32)"),
    ],
)
def test_bad_input_is_named_with_its_value(call, error, message):
    with pytest.raises(error) as raised:
        call()
    assert message in str(raised.value)


def test_integers_are_uniform_and_have_addresses():
    place = noise.stream(noise.Purpose.AUGMENT)
    whole = noise.integers(3, place, range(20), 500, (9, 2, 1, 1000))
    assert whole.shape == (20, 500, 4)
    assert torch.equal(noise.integers(3, place, 7, 100, (9, 2, 1, 1000)), whole[7, :100])
    assert torch.equal(noise.integers(3, range(place, place + 2), 7, 100, (9, 2))[0], whole[7, :100, :2])
    for k, bound in enumerate((9, 2, 1, 1000)):
        counts = whole[..., k].flatten().bincount(minlength=bound)
        assert len(counts) == bound
        mean = 10_000 / bound
        chi_square = float(((counts - mean) ** 2 / mean).sum())
        assert abs(chi_square - (bound - 1)) <= 5 * (2 * (bound - 1)) ** 0.5  # 5 standard deviations
    words = noise.philox((7, 2, 1, 6), (3, 0))  # element, step, chain, purpose; seed
    found = noise.integers(3, noise.stream(noise.Purpose.AUGMENT, 1), 2, 8, (9, 2, 5, 7))[7]
    assert found.tolist() == [word * bound >> 32 for word, bound in zip(words, (9, 2, 5, 7), strict=True)]


@pytest.mark.parametrize("bounds", [(), (1,) * 5, (0,), (2**31,)])
def test_integers_refuse_bad_bounds(bounds):
    with pytest.raises(ValueError, match=r"integers\(bounds=...\) needs"):
        noise.integers(0, 0, 0, 1, bounds)
