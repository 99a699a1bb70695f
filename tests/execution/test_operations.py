# ruff: noqa: E501
"""Each operation of the generator against torch: dtypes, layouts, broadcasting, edge values, mutation."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from program_checks import check_cases
from torch import Tensor

aten = torch.ops.aten
EDGES = [0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 2.5, -2.5, 3.0, 1e-30, 40.0, -40.0, 1e4, -1e4, float("inf"), float("-inf"), float("nan")]


def numbers(dtype: torch.dtype, seed: int, *shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def inputs_of(dtype: torch.dtype, seed: int = 0) -> list[Tensor]:
    """x, y (4, 5), v (5), s (), z (4, 5) in (0, 1), i (4, 5) of integers 0 to 3, m (4, 5) of booleans."""
    generator = torch.Generator().manual_seed(seed)
    x, y = numbers(dtype, seed, 4, 5), numbers(dtype, seed + 1, 4, 5) * 2
    z = (x * 0.7).sigmoid()
    i = torch.randint(0, 4, (4, 5), generator=generator)
    return [x, y, numbers(dtype, seed + 2, 5), numbers(dtype, seed + 3), z, i, (x + y > 0)]


UNARY = {
    **{name: getattr(torch, name) for name in ["abs", "exp", "exp2", "expm1", "sqrt", "rsqrt", "reciprocal", "sigmoid", "tanh", "sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh", "asinh", "acosh", "atanh", "erf", "erfc", "ceil", "floor", "trunc", "frac", "round", "sign", "sgn", "neg", "square", "relu", "deg2rad", "rad2deg", "log", "log1p", "log2", "log10", "isnan", "isinf", "isfinite", "signbit", "logical_not", "isposinf", "isneginf", "positive", "i0", "sinc"]},
    **{name: getattr(torch.special, name) for name in ["expit", "ndtr", "log_ndtr", "i0e", "i1", "i1e", "entr"]},
    **{name: getattr(F, name) for name in ["silu", "softplus", "logsigmoid", "gelu", "elu", "selu", "celu", "leaky_relu", "hardtanh", "relu6", "softsign", "mish", "hardswish", "hardsigmoid", "softshrink", "hardshrink", "tanhshrink"]},
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "softplus_beta": lambda x: F.softplus(x, 2.0, 5.0),
    "elu_alpha": lambda x: F.elu(x, 0.3),
    "threshold": lambda x: F.threshold(x, 0.25, -7.0),
    "clamp": lambda x: x.clamp(-1, 0.5),
    "clamp_low": lambda x: x.clamp(min=-1),
    "clamp_high": lambda x: x.clamp(max=2),
    "nan_to_num": lambda x: x.nan_to_num(),
    "nan_to_num_values": lambda x: x.nan_to_num(1.0, 2.0, -3.0),
    "heaviside": lambda x: torch.heaviside(x, torch.tensor(0.25, dtype=x.dtype)),
    **{f"pow {power}": lambda x, power=power: x**power for power in (2, 3, 1, 0.5, -0.5, -1, -2, 0, 4, 1.7, -3)},
    "base 2": lambda x: 2.0**x,
    "to int": lambda x: x.clamp(-9, 9).nan_to_num().to(torch.int64),
    "to bool": lambda x: x.to(torch.bool),
    "to the other": lambda x: x.to(torch.float32 if x.dtype is torch.float64 else torch.float64),
}  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_functions_of_one_argument_match_torch(dtype):
    x = numbers(dtype, 0, 8, 5) * 2
    check_cases(UNARY, [x], [numbers(dtype, 1, 8, 5)], scale=4)
    away = {"lgamma": torch.lgamma, "digamma": torch.digamma}
    inside = {"erfinv": torch.erfinv, "ndtri": lambda x: torch.special.ndtri(x.abs()), "logit": lambda x: torch.logit(x.abs())}
    check_cases({**away, "logit eps": lambda x: torch.logit(x, 0.1)}, [x.abs() + 0.1], scale=20)
    check_cases({**inside, **away}, [x.abs().clamp(0.01, 0.97)], scale=20)
    check_cases({"trigamma": lambda x: torch.polygamma(1, x)}, [x.abs() + 0.1], scale=1e5)  # torch's has errors of 1e-9


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_functions_of_edge_values_match_torch(dtype):
    edges = torch.tensor(EDGES, dtype=dtype)
    less = {
        "gelu",
        "rad2deg",
        "to int",
        "sinc",
        "sin",
        "cos",
        "tan",
        "lgamma",
        "digamma",
    }  # arguments of 1e4 lose digits before the function
    check_cases({name: case for name, case in UNARY.items() if name not in less}, [edges], scale=4)
    x, y = (part.flatten() for part in torch.meshgrid(edges, edges, indexing="ij"))
    check_cases(BINARY, [x, y], scale=4)


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.int8])
def test_integers_wrap_around_as_in_torch(dtype):
    """Overflow of signed integers is undefined in C: compilers take x + 1 > x for granted, were it not for -fwrapv."""
    limits = torch.iinfo(dtype)
    x = torch.tensor([limits.max, limits.min, 0, 1, -1, limits.max - 1, 7, limits.min + 1], dtype=dtype)
    cases = {
        "larger": lambda x: x + 1 > x,
        "smaller": lambda x: x - 1 < x,
        "doubled": lambda x: x * 2 // 2 == x,
        "negated": lambda x: -x,
        "size": lambda x: x.abs(),
        "size is positive": lambda x: x.abs() >= 0,
        "square": lambda x: x * x,
        "sum": lambda x: x.sum(dtype=dtype),
        "product": lambda x: (x | 1).prod(dtype=dtype),
        "running sum": lambda x: x.cumsum(0, dtype=dtype),
        "added by index": lambda x: x.index_add(0, torch.zeros(len(x), dtype=torch.int64), x),
    }
    check_cases(cases, [x])


BINARY = {
    **{name: getattr(torch, name) for name in ["add", "sub", "mul", "div", "maximum", "minimum", "fmax", "fmin", "atan2", "hypot", "logaddexp", "logaddexp2", "xlogy", "copysign", "eq", "ne", "lt", "le", "gt", "ge", "logical_and", "logical_or", "logical_xor", "rsub"]},
    "fmod": lambda x, y: torch.fmod(x.clamp(-50, 50), y),
    "remainder": lambda x, y: torch.remainder(x.clamp(-50, 50), y),
    "floor_divide": lambda x, y: torch.floor_divide(x.clamp(-50, 50), y),
    "trunc_divide": lambda x, y: torch.div(x.clamp(-50, 50), y, rounding_mode="trunc"),
    "xlog1py": torch.special.xlog1py,
    "addcmul": lambda x, y: torch.addcmul(x, y, x, value=0.3),
    "addcdiv": lambda x, y: torch.addcdiv(x, y, x, value=2),
    "lerp": lambda x, y: torch.lerp(x, y, 0.3),
    "alpha": lambda x, y: torch.add(x, y, alpha=-3),
    "sub alpha": lambda x, y: torch.sub(x, y, alpha=0.5),
    "rsub alpha": lambda x, y: torch.rsub(x, y, alpha=2),
    "clamp": lambda x, y: torch.clamp(x, y, y + 1),
    "clamp_min": lambda x, y: torch.clamp_min(x, y),
    "clamp_max": lambda x, y: torch.clamp_max(x, y),
    "where": lambda x, y: torch.where(x > y, x, y),
    "where number": lambda x, y: torch.where(x > y, 0.5, y),
    "masked_fill": lambda x, y: x.masked_fill(x > y, -2.5),
    "masked_fill tensor": lambda x, y: x.masked_fill(x > y, y.flatten()[0]),
    "max of two": lambda x, y: torch.max(x, y),
    "min of two": lambda x, y: torch.min(x, y),
    "nextafter-free sign": lambda x, y: torch.sign(x) * y,
}  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_functions_of_two_arguments_match_torch_for_all_layouts(dtype):
    def laid_out(case, change):
        return lambda x, y: case(*change(x, y))

    layouts = {
        "plain": lambda x, y: (x, y),
        "transposed": lambda x, y: (x.mT, y.mT.contiguous()),
        "sliced": lambda x, y: (x[1:, ::2], y[:-1, 1:4]),
        "row": lambda x, y: (x, y[0]),
        "column": lambda x, y: (x[:, :1], y),
        "outer": lambda x, y: (x[:, None, 0], y[None, :, 1]),
        "number": lambda x, y: (x[1, 2], y[1, 2]),
        "number right": lambda x, y: (x, y[0, 0]),
        "expanded": lambda x, y: (x[:, :1].expand(4, 5), y[0].expand(4, 5)),
        "flipped": lambda x, y: (x.flip(0), y.flip(0, 1)),
        "empty": lambda x, y: (x[:0], y[:0]),
        "one axis": lambda x, y: (x[None, :1, None], y[:1, :, None]),
    }
    cases = {
        f"{name} {layout}": laid_out(case, change)
        for layout, change in layouts.items()
        for name, case in BINARY.items()
        if layout == "plain" or name in ("sub", "where number", "lt", "addcmul", "clamp", "maximum")
    }
    x, y = numbers(dtype, 0, 4, 5) * 2, numbers(dtype, 1, 4, 5)
    check_cases(cases, [x, y], [y, x], scale=4)


def test_dtypes_promote_as_in_torch():
    d, f = numbers(torch.float64, 0, 3, 4), numbers(torch.float32, 1, 3, 4)
    i, j = torch.arange(12).view(3, 4) - 5, (torch.arange(12, dtype=torch.int32).view(3, 4) - 6)
    b, u = torch.arange(12).view(3, 4) % 3 == 0, torch.arange(12, dtype=torch.uint8).view(3, 4) * 20
    names = dict(zip("dfijbu", (d, f, i, j, b, u), strict=True))
    order = list(names)

    def pair(operation, one, two):
        return lambda *given: operation(given[order.index(one)], given[order.index(two)])

    def single(operation, one):
        return lambda *given: operation(given[order.index(one)])

    def number(operation, one):
        return lambda *given: operation(given[order.index(one)], given[order.index(one)].flatten()[3])

    cases = {}
    names_of_two = ("add", "mul", "eq", "lt", "logical_and", "maximum")
    for k, one in enumerate(order):
        for j, two in enumerate(order):
            name, other = names_of_two[(k + j) % 6], names_of_two[(k + 2 * j + 1) % 6]
            cases[f"{name} {one} {two}"] = pair(getattr(torch, name), one, two)
            cases[f"{other} {one} number {two}"] = lambda *given, n=other, a=one, b=two: getattr(torch, n)(
                given[order.index(a)], given[order.index(b)][1, 1]
            )
    for one in order:
        for two in order:
            if "b" not in (one, two):
                cases[f"sub {one} {two}"] = pair(torch.sub, one, two)
                cases[f"div {one} {two}"] = lambda *given, a=one, b=two: torch.div(
                    given[order.index(a)], given[order.index(b)].to(torch.float32) + 0.25
                )
            cases[f"where {one} {two}"] = lambda *given, a=one, b=two: torch.where(
                given[4], given[order.index(a)], given[order.index(b)]
            )
            cases[f"to {one} {two}"] = lambda *given, a=one, b=two: (
                given[order.index(a)].abs().to(given[order.index(b)].dtype)
                if a != "b"
                else given[4].to(given[order.index(b)].dtype)
            )
        for text, operation in {
            "float": lambda x: x * 2.5 + 0.3, "int": lambda x: x + 3, "true": lambda x: x * True, "less": lambda x: x < 1.5, "r": lambda x: 2.5 / (x + 0.25),
            "less int": lambda x: x >= 2, "bool": lambda x: x == True, "sum": lambda x: x.sum(), "sum axis": lambda x: x.sum(0),  # noqa: E712
            "prod": lambda x: x.prod(), "mean": lambda x: x.mean(dtype=torch.float64), "any": lambda x: x.any(1), "all": lambda x: x.all(),
            "max": lambda x: x.max(), "min": lambda x: x.amin(0), "max axis": lambda x: x.max(1), "argmin": lambda x: x.argmin(0) if x.dtype != torch.bool else x,
            "cumsum": lambda x: x.cumsum(1), "sum to float": lambda x: x.sum(1, dtype=torch.float32), "full": lambda x: torch.full_like(x, 3),
            "sin": lambda x: x.sin(), "sqrt": lambda x: x.abs().sqrt() if x.dtype != torch.bool else x.sqrt(), "square": lambda x: x**2, "clamp": lambda x: x.clamp(0.5, 3) if x.dtype != torch.bool else x,
            "fill": lambda x: x.clone().fill_(1), "isnan": lambda x: x.isnan(), "stack": lambda x: torch.stack([x, x + 1]), "sign": lambda x: x.sign(), "abs": lambda x: x.abs() if x.dtype != torch.bool else x,
            "ones": lambda x: torch.ones_like(x), "not": lambda x: x.logical_not(), "masked": lambda x: x.masked_fill(x > 1, 7), "neg": lambda x: -x if x.dtype != torch.bool else ~x,
            "cube": lambda x: x**3, "exp": lambda x: (x / 20).exp(), "lgamma": lambda x: (x + 20.5).lgamma(), "relu": lambda x: x.relu() if x.dtype != torch.bool else x, "nan_to_num": lambda x: x.nan_to_num(), "floor": lambda x: x.floor() if x.dtype != torch.bool else x,
        }.items():  # fmt: skip
            cases[f"{text} {one}"] = single(operation, one)
        cases[f"times own number {one}"] = number(torch.mul, one)
    for one in "ijbu":
        for two in "ib":
            for name in ("bitwise_and", "bitwise_or", "bitwise_xor"):
                cases[f"{name} {one} {two}"] = pair(getattr(torch, name), one, two)
        cases[f"bitwise_not {one}"] = single(torch.bitwise_not, one)
    cases["cat"] = lambda d, f, i, j, b, u: torch.cat([d, f, i, b], 1)
    cases["cat of integers"] = lambda d, f, i, j, b, u: torch.cat([i, j, b, u])
    cases["in place, wider operand"] = lambda d, f, i, j, b, u: (f + 0).mul_(d).add_(i)
    cases["in place, beyond the narrower range"] = lambda d, f, i, j, b, u: (f * 0 + 1e-30).mul_(d * 0 + 1e40)
    cases["copy narrower"] = lambda d, f, i, j, b, u: (f + 0).copy_(d)
    for one in "iju":
        for number_ in (3, 7, -4) if one != "u" else (3, 7):
            for name in ("remainder", "fmod", "floor_divide"):
                cases[f"{name} {one} {number_}"] = lambda *given, n=name, a=one, k=number_: getattr(torch, n)(
                    given[order.index(a)], k
                )
            cases[f"trunc {one} {number_}"] = lambda *given, a=one, k=number_: torch.div(
                given[order.index(a)], k, rounding_mode="trunc"
            )
    cases["comparison to bool"] = lambda d, f, i, j, b, u: torch.where((d > 0) & b | (i == 2), d, f)
    check_cases(cases, list(names.values()), scale=4)


REDUCTIONS = {
    **{f"{name} {dim} {keep}": (lambda x, *rest, n=name, d=dim, k=keep: getattr(x, n)(d, keepdim=k))
       for name in ("sum", "mean", "amax", "amin", "var", "std", "logsumexp") for dim in (0, 1, -1, (0, 2), (1, 2), (0, 1, 2)) for keep in (False, True)},
    **{f"{name} {dim} {keep}": (lambda x, *rest, n=name, d=dim, k=keep: getattr(x, n)(d, keepdim=k))
       for name in ("prod", "max", "min", "argmax", "argmin", "any", "all", "median" if False else "prod") for dim in (0, 1, 2) for keep in (False, True)},
    **{f"{name} all": (lambda x, *rest, n=name: getattr(x, n)()) for name in ("sum", "mean", "max", "min", "prod", "var", "std", "any", "all", "argmax", "argmin", "norm", "amax")},
    **{f"norm {order} {dim}": (lambda x, *rest, o=order, d=dim: torch.linalg.vector_norm(x, o, d)) for order in (1, 2, torch.inf, 3, 0.5) for dim in (None, 0, (1, 2))},
    **{f"{name} {dim}": (lambda x, *rest, n=name, d=dim: getattr(x, n)(d)) for name in ("softmax", "log_softmax", "cumsum", "cumprod", "logcumsumexp") for dim in (0, 1, -1)},
    "var uncorrected": lambda x, *rest: x.var(1, correction=0),
    "var of one": lambda x, *rest: x[:, :1].var(1, correction=0),
    "sum of nothing": lambda x, *rest: x[:0].sum(),
    "sum over nothing": lambda x, *rest: x[:, :0].sum(1),
    "prod of nothing": lambda x, *rest: x[:, :0].prod(1),
    "nothing over": lambda x, *rest: x[:0].sum(1),
    "all of nothing": lambda x, *rest: (x[:0] > 0).all(),
    "sum of a number": lambda x, *rest: x[0, 0, 0].sum(),
    "mean of a number": lambda x, *rest: x[0, 0, 0].mean(),
    "max of a number": lambda x, *rest: x[0, 0, 0].max(0),
    "amax of a number": lambda x, *rest: x[0, 0, 0].amax(),
    "cumsum of a number": lambda x, *rest: x[0, 0, 0].cumsum(0),
    "logsumexp of a number": lambda x, *rest: x[0, 0, 0].logsumexp(0),
    "softmax of a number": lambda x, *rest: x[0, 0, 0].softmax(0),
    "transposed sum": lambda x, *rest: x.transpose(0, 2).sum(1),
    "stepped sum": lambda x, *rest: x[:, ::2, 1:].sum((0, 2)),
    "expanded sum": lambda x, *rest: x[:, :1].expand(3, 9, 6).sum(1),
    "flipped sum": lambda x, *rest: x.flip(1).cumsum(1).sum(0),
    "sum of squares and sum": lambda x, *rest: (x.square().sum(2), x.sum(2), (x - x.mean(2, keepdim=True)).square().sum(2)),
    "two reductions of other axes": lambda x, *rest: (x.exp().sum(0), x.exp().sum(1), x.exp()),
    "sum of ones": lambda x, *rest: torch.ones(5, dtype=x.dtype).sum(),
    "sum of a constant times": lambda x, *rest: torch.zeros(3, 4, dtype=x.dtype).sum(0) + x.sum(),
    "dist": lambda x, *rest: torch.dist(x[0], x[1]),
    "trace": lambda x, *rest: x[0, :, :].trace(),
    "count": lambda x, *rest: (x > 0).sum(1) + torch.count_nonzero(x, 1),
    "many": lambda x, many: (many.sum(0), many.sum(1), many.mean(), many.amax(0), many.logsumexp(1)),
    "nanmean": lambda x, *rest: torch.where(x > 1, torch.nan, x).nansum(1),
    "std_mean": lambda x, *rest: torch.std_mean(x, 1),
    "var_mean": lambda x, *rest: torch.var_mean(x, (0, 2)),
    "diff": lambda x, *rest: x.diff(dim=1),
    "aminmax": lambda x, *rest: torch.aminmax(x, dim=1),
    "nan": lambda x, *rest: [f(torch.where(x > 1.5, torch.nan, x)) for f in (torch.amax, torch.amin, torch.sum, lambda z: z.max(1)[0], lambda z: z.min(2)[1], lambda z: z.argmax(0))],
    "inf": lambda x, *rest: [f(torch.where(x > 1, -torch.inf, x)) for f in (lambda z: z.logsumexp(1), lambda z: z.amin(2), lambda z: z.logcumsumexp(1))],
    "all minus inf": lambda x, *rest: [f(torch.full_like(x, -torch.inf)) for f in (lambda z: z.logsumexp(1), lambda z: z.logcumsumexp(1))],
}  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_reductions_match_torch(dtype):
    inputs = [numbers(dtype, 0, 3, 6, 6), numbers(dtype, 1, 700, 300)]
    check_cases(REDUCTIONS, inputs, [inputs[0] * 0.5, inputs[1] + 1], scale=20)


VIEWS = {
    "transpose": lambda x: x.transpose(0, 2),
    "permute": lambda x: x.permute(2, 0, 1) + 1,
    "reshape": lambda x: x.transpose(0, 1).reshape(4, 15) * 2,
    "view": lambda x: x.view(2, 2, 15),
    "flatten": lambda x: x.mT.flatten(),
    "unflatten": lambda x: x.unflatten(0, (2, 2)).sum(0),
    "squeeze": lambda x: x[:1].squeeze(0).unsqueeze(-1),
    "select": lambda x: x[2, -1],
    "slices": lambda x: x[1:3, ::2, -4:-1],
    "newaxis": lambda x: x[:, None, 1],
    "split": lambda x: x.split(2, 2),
    "chunk": lambda x: x.chunk(2, 0),
    "unbind": lambda x: x.unbind(1),
    "expand": lambda x: x[:, :1].expand(4, 7, 5),
    "broadcast_to": lambda x: x[0, 0].broadcast_to(2, 3, 5),
    "movedim": lambda x: x.movedim(0, -1),
    "diagonal": lambda x: x[:, :, :3].diagonal(0, 1, 2),
    "diagonal above": lambda x: x.diagonal(1, 2, 0),
    "diag": lambda x: x[:, 0, 0].diag() + x[:, :, :4][:, 0].diag(),
    "diag_embed": lambda x: (x.diag_embed(), x.diag_embed(1), x.diag_embed(-1, 0, 2)),
    "tril": lambda x: (x.tril(), x.tril(-1), x.triu(), x.triu(1), x.mT.tril(1)),
    "flip": lambda x: x.flip(0, 2)[1:, ::2],
    "roll": lambda x: (x.roll(2, 1), x.roll(-1, 2), x.roll((1, 2), (0, 2)), x.roll(3)),
    "repeat": lambda x: (x.repeat(1, 2, 1), x[0].repeat(2, 1, 3), x.repeat_interleave(2, 1), x.tile(2)),
    "cat": lambda x: torch.cat([x, x[:, 1:2], x.flip(1)], 1),
    "cat with empty": lambda x: torch.cat([x, x[:, :0], torch.zeros(0, dtype=x.dtype)], 1),
    "stack": lambda x: (torch.stack([x, x + 1], -1), torch.stack([x, x], 1)),
    "hstack": lambda x: (torch.hstack([x, x]), torch.vstack([x[0], x[1]]), torch.column_stack([x[0, 0], x[0, 1]])),
    "pad": lambda x: (F.pad(x, (1, 2)), F.pad(x, (0, 0, 2, 1), value=3.5), F.pad(x, (-1, -2)), F.pad(x, (-1, 3, 1, -1))),
    "as_strided": lambda x: x.as_strided((3, 2), (7, 2), 3) + 0,
    "unfold": lambda x: x.unfold(2, 3, 1).sum(-1),
    "rot90": lambda x: x.rot90(1, (1, 2)),
    "meshgrid": lambda x: torch.meshgrid(x[0, 0], x[0, 1], indexing="ij"),
    "kron": lambda x: torch.kron(x[0], x[1]),
    "block_diag": lambda x: torch.block_diag(x[0], x[1]),
    "cartesian": lambda x: torch.outer(x[0, 0], x[1, 1]) + x[0, 0][:, None] * x[2, 2],
    "vander": lambda x: torch.vander(x[0, 0], 4),
    "cross": lambda x: torch.linalg.cross(x[0], x[1], dim=0),
    "where of views": lambda x: torch.where(x.mT > 0, x.mT, x[:, :1, :1]),
    "linspace": lambda x: torch.linspace(0, 1, 5, dtype=x.dtype) * x + torch.arange(5) * x + torch.eye(5, dtype=x.dtype)[:3] * x,
    "empty": lambda x: (x[:0], x[:0] * 2, torch.cat([x[:0], x[:0]]), x[:, :0].reshape(0), x[:0].flip(0), x[:0].repeat(2, 1, 1), x[:0].roll(1, 0)),
    "number": lambda x: (x[0, 0, 0], x[0, 0, 0] * 2, x[0, 0, 0].reshape(1, 1), x[0, 0, 0].expand(3)),
    "constant": lambda x: (torch.ones(3, dtype=x.dtype), torch.full((2,), 1.5), torch.zeros(2, dtype=torch.int64), torch.arange(4)),
    "the same twice": lambda x: (x, x, x * 2, (y := x.exp()), y, y[1:], y.mT),
    "new": lambda x: (x.new_zeros(2), x.new_full((2, 1), 4), x.new_ones(3, 1), x.new_tensor([1.0, 2.0])),
    "scalar tensor": lambda x: x * torch.tensor(2.0) + torch.scalar_tensor(1.5),
}  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.int64])
def test_views_and_copies_match_torch(dtype):
    x = (numbers(torch.float64, 0, 4, 3, 5) * 9).to(dtype)
    cases = dict(VIEWS)
    cases["view"] = lambda x: x.reshape(2, 2, 15)
    if dtype is torch.int64:
        cases.pop("linspace")
    check_cases(cases, [x])
    turned = x.permute(2, 1, 0).contiguous().permute(2, 1, 0)  # the same, in another order in memory
    cases.pop("as_strided")
    check_cases(
        {name: cases[name] for name in ("transpose", "reshape", "slices", "unfold", "cat", "the same twice", "flip")}, [turned]
    )


def indexing(x, v, i, k):
    """x (4, 5, 3), v (5), i (2, 3) in [0, 4), k (6) in [0, 5)."""
    big = i.view(2, 3, 1).expand(2, 3, 3)
    return {
        "index": x[i],
        "index one axis": x[:, k],
        "index two": x[i[0], i[1]],
        "index apart": x[i[0], :, i[1] % 3],
        "index with slice": x[1:, k, ::2],
        "index broadcast": x[i[:, :1], i[0]],
        "index negative": x[-i - 1],
        "index transposed": x.mT[:, i % 3],
        "index vector": v[k],
        "index_select": x.index_select(1, k),
        "index_select flipped": x.flip(1).index_select(1, k),
        "index_select number": v.index_select(0, k[:1].reshape(())),
        "gather": x.gather(0, big),
        "gather last": x.gather(2, (k[:3].view(1, 1, 3) % 3).expand(4, 5, 3)),
        "gather number": v.gather(0, k[:1].reshape(())),
        "take_along_dim": torch.take_along_dim(x[0, 0], k % 3),
        "take": x.take(k),
        "embedding": F.embedding(i, x[:, 0]),
        "scatter": torch.zeros_like(x).scatter(0, big, x[:2, :3]),
        "scatter value": x.scatter(1, big[:, :2] % 5, 2.5),
        "scatter_add": x.scatter_add(0, big, x[:2, :3]),
        "scatter_add last": torch.zeros(4, 5, 3, dtype=x.dtype).scatter_add(2, (big % 3), x),
        "index_add": torch.zeros(5, dtype=x.dtype).index_add(0, k, torch.cat([v, v[:1]])),
        "index_add axis": x.index_add(1, k, torch.cat([x, x[:, :1]], 1)),
        "index_add alpha": v.index_add(0, k, torch.cat([v, v[:1]]), alpha=-2),
        "index_copy": x.index_copy(0, i[0][:1], x[:1] + 1),
        "index_fill": x.index_fill(1, k[:2], -1.5),
        "index_put": x.index_put((i[0],), x[:1].expand(3, 5, 3) * 0 + 2),
        "index_put accumulate": x.index_put((i[0], k[:3]), x[:3, 0], accumulate=True),
        "index_put broadcast": v.index_put((k,), v[0]),
        "index_put in place": put(x, i, v),
        "one_hot": F.one_hot(torch.tensor([0, 2, 1]), 5) * v,
        "masked": mask(x),
        "searchsorted": torch.searchsorted(torch.linspace(-2, 2, 7, dtype=v.dtype), v),
        "bucketize": torch.bucketize(v, torch.linspace(-2, 2, 7, dtype=v.dtype), right=True),
        "slice_scatter": x.slice_scatter(x[:, :2] * 2, 1, 1, 5, 2),
        "select_scatter": x.select_scatter(x[0] * 2, 0, -1),
        "isin": torch.isin(k, torch.tensor([1, 3])),
    }


def put(x, i, v):
    y = x * 1
    y[i[0], 1] += 2
    y[:, i[1]] = v[0]
    y[0, 0, 0] = v[1]
    y[1:, 1] = x[1:, 2]
    return y


def mask(x):
    y = x * 1
    y[x > 0.5] = 0.25
    y[:, 0][x[:, 0] < 0] = -7
    return y


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("whole", [torch.int64, torch.int32])
def test_indexing_matches_torch(dtype, whole):
    generator = torch.Generator().manual_seed(3)
    x, v = numbers(dtype, 0, 4, 5, 3), numbers(dtype, 1, 5)
    i, k = torch.randint(0, 4, (2, 3), generator=generator), torch.randint(0, 5, (6,), generator=generator)
    names = list(indexing(x, v, i, k))
    only_long = (
        "gather",
        "scatter",
        "take",
        "one_hot",
        "index_copy",
        "index_fill",
        "index_add",
        "scatter_add",
        "searchsorted",
        "bucketize",
    )
    if whole is torch.int32:
        i, k = i.to(whole), k.to(whole)
        cases = {
            "index": lambda x, v, i, k: (x[i], x[:, k], x[i[0], i[1]], x.index_select(1, k), v[-k - 1], F.embedding(i, x[:, 0])),
            "index_add": lambda x, v, i, k: v.index_add(0, k, torch.cat([v, v[:1]])),
            "index_put": lambda x, v, i, k: put(x, i, v),
        }
    else:
        assert only_long
        cases = {name: (lambda x, v, i, k, name=name: indexing(x, v, i, k)[name]) for name in names}
    check_cases(cases, [x, v, i, k], [x * 2, v + 1, i.flip(0), k.flip(0)])


MUTATIONS = {
    "chain": lambda x, y: (x * 1).add_(y).mul_(2).sub_(1).div_(3).exp_().neg_().clamp_(-5),
    "view sees the change": lambda x, y: (a := x.clone(), b := a[1:], a.mul_(2), b * 3)[-1],
    "base sees the change": lambda x, y: (a := x.clone(), a[1:].mul_(2), a[:, 0].fill_(7), a)[-1],
    "value before": lambda x, y: (a := x.clone(), b := a + 1, a.zero_(), b + a)[-1],
    "sum before": lambda x, y: (a := x * y, b := a.sum(), a.add_(b), c := a.sum(0), a.mul_(c), a)[-1],
    "twice": lambda x, y: (a := x * y, b := a.exp(), a.add_(1), c := a.exp(), a.add_(1), (a, b, c))[-1],
    "copy into slices": lambda x, y: (a := torch.empty_like(x), a[:2].copy_(x[:2]), a[2:].copy_(y[2:]), a * 2)[-1],
    "set slices": lambda x, y: fill_rows(x, y),
    "diagonal": lambda x, y: (a := x[:, :4] + 0, a.diagonal().add_(1), a)[-1],
    "transposed": lambda x, y: (a := x + 0, a.mT.mul_(y.mT), a)[-1],
    "masked_fill_": lambda x, y: (a := x * 1, a.masked_fill_(x > 0, 0.5), a)[-1],
    "where out of itself": lambda x, y: (a := x * 1, a.copy_(torch.where(a > 0, a, -a)), a)[-1],
    "index_put_": lambda x, y: (a := x * 1, a.index_put_((torch.tensor([0, 2, 0]),), y[:3], accumulate=True), a)[-1],
    "index_add_": lambda x, y: (a := x * 1, a.index_add_(0, torch.tensor([0, 2, 0]), y[:3]), a.sum())[-1],
    "scatter_": lambda x, y: (a := x * 1, a.scatter_(1, torch.zeros(4, 5, dtype=torch.int64) + 1, y), a)[-1],
    "scatter_add_": lambda x, y: (a := x * 1, a.scatter_add_(0, torch.zeros(4, 5, dtype=torch.int64) + 1, y), a)[-1],
    "zeros then add": lambda x, y: (a := torch.zeros(4, 5, dtype=x.dtype), a[1].add_(x[0]), a[:, 2].sub_(y[:, 0]), a)[-1],
    "accumulate": lambda x, y: accumulate(x, y),
    "cholesky in place after": lambda x, y: (a := x @ x.mT + 5 * torch.eye(4, dtype=x.dtype), l := torch.linalg.cholesky(a), a.zero_(), l)[-1],
    "tril_": lambda x, y: (a := x * 1, a.tril_(), a)[-1],
    "addcmul_": lambda x, y: (a := x * 1, a.addcmul_(x, y, value=2).addcdiv_(x, y + 9, value=-1).lerp_(y, 0.2), a)[-1],
    "relu_": lambda x, y: (a := x * 1, torch.relu_(a), torch.sigmoid_(a), a.pow_(2), a.sqrt_(), a.log1p_(), a)[-1],
    "swap": lambda x, y: (a := x * 1, t := a[0].clone(), a[0].copy_(a[1]), a[1].copy_(t), a)[-1],
    "reverse": lambda x, y: (a := x * 1, a.copy_(a.flip(0)), a)[-1],
    "result then changed": lambda x, y: ((a := x * 1), a[0], a.mul_(3))[:2],
    "fill_ with tensor": lambda x, y: (a := x * 1, a[1:3].fill_(y[0, 0]), a)[-1],
    "out": lambda x, y: (a := torch.empty_like(x), torch.add(x, y, out=a), a * 2)[-1],
    "set_ of zeros": lambda x, y: (a := x.new_zeros(4, 5), b := a.view(-1), b[::2].copy_(x.reshape(-1)[::2]), a.sum(1), a)[-2:],
    "tensor then set": lambda x, y: (a := torch.tensor([0.0, 1.0, 2.0], dtype=x.dtype), a[1:].copy_(x[0, :2]), a * 2)[-1],
    "baddbmm_": lambda x, y: (a := x[:, :4] * 1, a.addmm_(x, y.mT, beta=0.5, alpha=2), a)[-1],
    "logical_": lambda x, y: (a := x > 0, a.logical_and_(y > 0).logical_not_(), a.bitwise_or_(x > 1), a)[-1],
    "integers": lambda x, y: (a := (x > 0).long(), a.add_(3).mul_(2), a[0].sub_(1), a.bitwise_xor_(5), a)[-1],
    "foreach": lambda x, y: (a := [x * 1, y * 1], torch._foreach_mul_(a, 2.0), torch._foreach_add_(a, [y, x]), torch.stack(a))[-1],
    "foreach out": lambda x, y: torch.stack(torch._foreach_add([x, y], [y, y])),
    "squeeze_": lambda x, y: (a := x[:1] * 1, a.squeeze_(0), a.mul_(2), a.unsqueeze_(1), a + 1)[-1],
}  # fmt: skip
REPLAYED = {"out", "foreach", "foreach out"}


def fill_rows(x: Tensor, y: Tensor) -> Tensor:
    a = torch.zeros(4, 5, dtype=x.dtype)
    a[0] = x[0]
    for row in range(1, 4):
        a[row] = a[row - 1] * 0.5 + y[row]
        a[row, row] = 1.0
    a[:, 0] += a.sum(1)
    return a


def accumulate(x: Tensor, y: Tensor) -> Tensor:
    total = torch.zeros((), dtype=x.dtype)
    state = x[0] * 1
    for row in range(4):
        state = state * 0.9 + y[row]
        total += state.square().sum()
        state[1:] -= state[:-1].clone()
    return torch.cat([state, total[None]])


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_mutations_match_torch(dtype):
    x, y = numbers(dtype, 0, 4, 5), numbers(dtype, 1, 4, 5)
    check_cases({name: case for name, case in MUTATIONS.items() if name not in REPLAYED}, [x, y], [y, x], scale=20)


def square(x):
    """A well conditioned matrix, symmetric and positive definite."""
    return x @ x.mT + 2 * torch.eye(x.shape[-2], dtype=x.dtype)


def lopsided(x):
    return square(x) + x[..., :5]


ALGEBRA = {
    "mm": lambda x, b, v: x @ x.mT,
    "bmm": lambda x, b, v: b @ b.mT,
    "bmm broadcast": lambda x, b, v: x.mT @ b,
    "mv": lambda x, b, v: x @ v,
    "vm": lambda x, b, v: x[:, 0] @ x,
    "dot": lambda x, b, v: v @ v,
    "outer": lambda x, b, v: (torch.outer(v, v), torch.ger(v, v)),
    "addmm": lambda x, b, v: (torch.addmm(v[:5], x, x.mT), torch.addmm(v[0], x, x.mT, beta=2, alpha=0.5)),
    "addmv": lambda x, b, v: torch.addmv(x[:, 0], x, v),
    "addr": lambda x, b, v: torch.addr(x[:, :5], v[:5], v[:5]),
    "baddbmm": lambda x, b, v: torch.baddbmm(b[:, :, :5], b, b.mT, beta=0.5),
    "linear": lambda x, b, v: F.linear(b, x[:3], v[:3]),
    "einsum": lambda x, b, v: (torch.einsum("ij,kj->ik", x, x), torch.einsum("bij,bkj,j->bk", b, b, v), torch.einsum("ii->i", x[:, :5])),
    "tensordot": lambda x, b, v: torch.tensordot(b, x, 1 if b.shape[-1] == x.shape[0] else ([2], [1])),
    "matmul nothing": lambda x, b, v: (x[:0] @ x.mT, x[:, :0] @ x[:, :0].mT),
    "strided": lambda x, b, v: x[::2, 1:] @ x.flip(0)[:, 1:].mT,
    "chain": lambda x, b, v: torch.linalg.multi_dot([x, x.mT, x]),
    "integers": lambda x, b, v: (b > 0).long().sum(0).float(),
    "cholesky": lambda x, b, v: (torch.linalg.cholesky(square(x)), torch.linalg.cholesky(square(b)), torch.linalg.cholesky(square(x), upper=True)),
    "cholesky_ex": lambda x, b, v: torch.linalg.cholesky_ex(square(x)),
    "solve_triangular": lambda x, b, v: [
        torch.linalg.solve_triangular(torch.linalg.cholesky(square(x)), x, upper=False),
        torch.linalg.solve_triangular(torch.linalg.cholesky(square(x)).mT, x, upper=True),
        torch.linalg.solve_triangular(torch.linalg.cholesky(square(x)), x.mT, upper=False, left=False),
        torch.linalg.solve_triangular(torch.linalg.cholesky(square(b)), x, upper=False),
        torch.linalg.solve_triangular(square(x).tril(), x, upper=False, unitriangular=True),
    ],
    "triangular_solve": lambda x, b, v: torch.cholesky_solve(x, torch.linalg.cholesky(square(x))),
    "cholesky_inverse": lambda x, b, v: torch.cholesky_inverse(torch.linalg.cholesky(square(x))),
    "inverse": lambda x, b, v: (torch.linalg.inv(square(x)), torch.inverse(square(b))),
    "solve": lambda x, b, v: (torch.linalg.solve(square(x), x), torch.linalg.solve(square(b), x[:, 0]), torch.linalg.solve(square(x), x.mT, left=False)),
    "unsymmetric": lambda x, b, v: [
        torch.linalg.solve(lopsided(x), x), torch.linalg.inv(lopsided(b)), torch.linalg.slogdet(lopsided(b))[1],
        torch.linalg.solve(lopsided(x).mT, x), torch.func.grad(lambda z: torch.linalg.slogdet(lopsided(z))[1])(x),
    ],
    "det": lambda x, b, v: (torch.det(square(x)), torch.linalg.det(square(b)), torch.logdet(square(x)), torch.logdet(square(b))),
    "slogdet": lambda x, b, v: (*torch.linalg.slogdet(square(b)), *torch.linalg.slogdet(-square(x))),
    "eigh": lambda x, b, v: torch.linalg.eigh(square(x)).eigenvalues,
    "matrix_power": lambda x, b, v: torch.linalg.matrix_power(square(x) / 9, 3),
    "cdist": lambda x, b, v: (torch.cdist(x, x[:2]), torch.cdist(x, x[:3] + 1, p=1.0)),
    "cosine": lambda x, b, v: F.cosine_similarity(x, v[None], 1),
    "normalize": lambda x, b, v: F.normalize(x, dim=1),
    "bilinear": lambda x, b, v: torch.einsum("i,ij,j->", x[:, 0], x[:, :5], v[:5]),
    "layer_norm": lambda x, b, v: (F.layer_norm(x, (6,)), F.layer_norm(b, (5, 6)), F.layer_norm(x, (6,), v, v)),
    "cumulative_trapezoid": lambda x, b, v: torch.cumulative_trapezoid(x, dim=1),
    "trapz": lambda x, b, v: torch.trapezoid(x, v, dim=1),
}  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_linear_algebra_matches_torch(dtype):
    inputs = [numbers(dtype, 0, 5, 6), numbers(dtype, 1, 3, 5, 6), numbers(dtype, 2, 6)]
    check_cases(ALGEBRA, inputs, [inputs[0] * 1.1, inputs[1], inputs[2] + 1], scale=100)


IMPRECISE = {"hardsigmoid", "digamma", "digamma positive"}  # torch's derivatives have errors of 1e-9 to 1e-7 there
LOSSES = {
    "mse": F.mse_loss,
    "mse sum": lambda x, y: F.mse_loss(x, y, reduction="sum"),
    "l1": F.l1_loss,
    "huber": lambda x, y: F.huber_loss(x, y, delta=0.5),
    "smooth": lambda x, y: F.smooth_l1_loss(x, y, reduction="none"),
    "bce": lambda x, y: F.binary_cross_entropy(x.sigmoid(), y.sigmoid()),
    "bce logits": lambda x, y: F.binary_cross_entropy_with_logits(x, y.sigmoid()),
    "bce weights": lambda x, y: F.binary_cross_entropy_with_logits(x, y.sigmoid(), pos_weight=y[0].exp(), reduction="sum"),
    "cross_entropy": lambda x, y: F.cross_entropy(x, torch.tensor([0, 2, 1, 4])),
    "cross_entropy sum": lambda x, y: F.cross_entropy(x, torch.tensor([0, 2, 1, 4]), reduction="sum"),
    "cross_entropy none": lambda x, y: F.cross_entropy(x, torch.tensor([0, -100, 1, 4]), reduction="none"),
    "cross_entropy ignored": lambda x, y: F.cross_entropy(x, torch.tensor([0, -100, 1, 4])),
    "cross_entropy weight": lambda x, y: F.cross_entropy(x, torch.tensor([0, 2, 1, 4]), weight=torch.arange(1.0, 6.0, dtype=x.dtype)),
    "cross_entropy soft": lambda x, y: F.cross_entropy(x, y.softmax(1)),
    "cross_entropy smooth": lambda x, y: F.cross_entropy(x, torch.tensor([0, 2, 1, 4]), label_smoothing=0.1),
    "nll": lambda x, y: F.nll_loss(x.log_softmax(1), torch.tensor([0, 2, 1, 4])),
    "kl": lambda x, y: F.kl_div(x.log_softmax(1), y.softmax(1), reduction="batchmean"),
    "poisson": lambda x, y: F.poisson_nll_loss(x, y.exp()),
    "softmax": lambda x, y: F.softmax(x, 1) * y,
    "log_softmax": lambda x, y: F.log_softmax(x, 0) * y,
    "softmin": lambda x, y: F.softmin(x, 1) * y,
    "hinge": lambda x, y: F.hinge_embedding_loss(x, y.sign()),
    "margin": lambda x, y: F.margin_ranking_loss(x[0], y[0], y[1].sign()),
    "glu": lambda x, y: F.glu(torch.cat([x, y], 1), 1),
    "embedding": lambda x, y: F.embedding(torch.tensor([[0, 1], [3, 3]]), x),
    "layer_norm": lambda x, y: F.layer_norm(x, (5,), y[0], y[1]) * y,
    "prelu": lambda x, y: F.prelu(x, y[0, 0]),
    "rms_norm": lambda x, y: F.rms_norm(x, (5,), y[0]) * y,
    "logcumsumexp": lambda x, y: x.logcumsumexp(1) * y,
    "cumprod": lambda x, y: x.cumprod(1) * y,
    "cumsum": lambda x, y: x.cumsum(0) * y,
    "prod": lambda x, y: x.prod(1) * y[:, 0],
    "max": lambda x, y: x.max(1).values * y[:, 0],
    "max all": lambda x, y: x.max() * y,
    "amax": lambda x, y: x.amax((0, 1)) * y,
    "norm": lambda x, y: (x.norm() + x.norm(dim=1).sum() + torch.linalg.vector_norm(x, 1) + torch.linalg.vector_norm(x, 3)) * y,
    "matrix norm": lambda x, y: torch.linalg.matrix_norm(x) * y,
    "std": lambda x, y: (x.std(1) + x.var(1)) * y[:, 0],
    "logsumexp": lambda x, y: x.logsumexp(1) * y[:, 0] + torch.logsumexp(x, (0, 1)),
    "sort-free median": lambda x, y: torch.minimum(x, y) + torch.maximum(x, y) * torch.clamp(x, -1, 1),
    "cholesky": lambda x, y: torch.linalg.cholesky(square(x)) @ y,
    "solve_triangular": lambda x, y: torch.linalg.solve_triangular(torch.linalg.cholesky(square(x)), y, upper=False),
    "cholesky_solve": lambda x, y: torch.cholesky_solve(y, torch.linalg.cholesky(square(x))),
    "inverse": lambda x, y: torch.linalg.inv(square(x)) @ y,
    "solve": lambda x, y: torch.linalg.solve(square(x), y),
    "logdet": lambda x, y: (torch.logdet(square(x)) + torch.linalg.slogdet(square(x))[1]) * y,
    "eigvalsh": lambda x, y: torch.linalg.eigvalsh(square(x)) * y[:, 0],
    "cdist": lambda x, y: torch.cdist(x, y),
    "einsum": lambda x, y: torch.einsum("ij,kj->ik", x, y) @ y,
    "kron": lambda x, y: torch.kron(x[:2], y[:2]),
    "baddbmm": lambda x, y: torch.baddbmm(x[None, :, :4], x[None], y.mT[None]),
    "gather": lambda x, y: x.gather(1, torch.tensor([[0], [2], [2], [4]])) * y,
    "scatter": lambda x, y: x.scatter(1, torch.tensor([[0], [2], [2], [4]]), y[:, :1]) * y,
    "scatter_add": lambda x, y: x.scatter_add(1, torch.tensor([[0, 0], [2, 1], [2, 2], [4, 0]]), y[:, :2]) * y,
    "index": lambda x, y: x[torch.tensor([0, 0, 3])] * y[:3],
    "index_add": lambda x, y: x.index_add(0, torch.tensor([0, 0, 3]), y[:3]) * y,
    "index_put": lambda x, y: x.index_put((torch.tensor([0, 0, 3]),), y[0], accumulate=True) * y,
    "views": lambda x, y: x.mT.reshape(-1)[3:7] * y.flip(0)[0, :4] + x.diagonal() * y[0, :4],
    "pads": lambda x, y: F.pad(x, (1, 1)) @ F.pad(y, (2, 0)).mT,
    "stack": lambda x, y: torch.stack([x, y]).logsumexp(0),
    "tril": lambda x, y: x.tril(-1) @ y.triu().mT,
    "roll": lambda x, y: x.roll(1, 0) * y + x.repeat(2, 1)[2:6] * y + x.expand(2, 4, 5)[1],
    "in place": lambda x, y: x.clone().mul_(y).add_(x).exp_(),
    "trapezoid": lambda x, y: torch.trapezoid(x, dim=1) * y[:, 0],
    **{name: (lambda x, y, n=name: getattr(F, n)(x) * y) for name in ["silu", "softplus", "logsigmoid", "gelu", "elu", "selu", "celu", "leaky_relu", "hardtanh", "relu6", "softsign", "mish", "hardswish", "hardsigmoid", "softshrink", "hardshrink", "tanhshrink", "relu", "tanh", "sigmoid"]},
    "gelu tanh": lambda x, y: F.gelu(x, approximate="tanh") * y,
    **{name: (lambda x, y, n=name: getattr(torch, n)(x) * y) for name in ["exp", "exp2", "expm1", "sin", "cos", "tan", "asinh", "atan", "sinh", "cosh", "erf", "erfc", "abs", "square", "reciprocal", "ceil", "round", "sign", "digamma", "lgamma", "sinc", "nan_to_num"]},
    **{f"{name} positive": (lambda x, y, n=name: getattr(torch, n)(x.square() + 0.1) * y) for name in ["log", "log1p", "log2", "log10", "sqrt", "rsqrt", "lgamma", "digamma", "i0"]},
    **{f"{name} inside": (lambda x, y, n=name: getattr(torch, n)(x.tanh() * 0.9) * y) for name in ["asin", "acos", "atanh", "erfinv"]},
    **{name: (lambda x, y, n=name: getattr(torch.special, n)(x) * y) for name in ["ndtr", "i0e", "i1", "i1e"]},
    "ndtri": lambda x, y: torch.special.ndtri(x.sigmoid()) * y,
    "logit": lambda x, y: torch.logit(x.sigmoid()) * y,
    **{name: (lambda x, y, n=name: getattr(torch, n)(x, y)) for name in ["atan2", "hypot", "logaddexp", "maximum", "minimum", "fmax", "fmin"]},
    "xlogy": lambda x, y: torch.xlogy(x.exp(), y.exp()) + torch.special.xlog1py(x, y.exp()),
    "pow": lambda x, y: x.exp() ** y + x**3 + x**-2 + 1.5**y,
    "fmod": lambda x, y: torch.fmod(x, 0.7) * y + torch.remainder(x, 0.7),
    "lerp": lambda x, y: torch.lerp(x, y, 0.2) + torch.lerp(x, y, y.sigmoid()),
    "where": lambda x, y: torch.where(x > 0, x * y, y / (x - 1)),
    "clamp": lambda x, y: x.clamp(-0.5, 0.5) * y + torch.clamp(x, y, y + 1),
}  # fmt: skip


@pytest.mark.parametrize("part", range(3))
def test_gradients_of_functions_match_torch(part):
    """Backward operations, without and with `torch.func.vmap`."""
    names = [name for k, name in enumerate(LOSSES) if k % 3 == part]

    def gradients(case):
        def scalar(x, y):
            return case(x, y).sum()

        def both(x, y):
            found = torch.func.grad_and_value(scalar, (0, 1))(x[0], y[0])
            each = torch.func.vmap(torch.func.grad_and_value(scalar))(x, y)
            return [*found[0], found[1], *each]

        return both

    x, y = numbers(torch.float64, 4, 3, 4, 5), numbers(torch.float64, 5, 3, 4, 5)
    check_cases({name: gradients(LOSSES[name]) for name in names if name not in IMPRECISE}, [x, y], [y, x], scale=1000)
    check_cases({name: gradients(LOSSES[name]) for name in names if name in IMPRECISE}, [x, y], scale=1e7)
