"""C expressions of elementwise operations.

In a template `{0}`, `{1}`, ... are the operands, cast to the type in which torch computes, `{T}` is
that type and `{f}` is "f" for float and empty for double. Python floats are parameters of the
program, so that other settings run the same code.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import torch

from langevin.compiler.graph import CTYPES, Access, Step, UncoveredError

Operand: TypeAlias = Callable[[Any, torch.dtype], str]  # the C expression of an argument, cast


def _calls(template: str, names: str) -> dict[str, str]:
    """Return templates of C functions, named after the operations."""
    return {name: template.format(name.removeprefix("special_")) for name in names.split()}


_ANY = {  # computed in the dtype of the result
    **_calls("{{0}}", "alias clone contiguous _to_copy detach lift_fresh lift_fresh_copy positive"),
    **{"copy": "{1}", "fill": "{1}", "neg": "-{0}", "square": "{0} * {0}"},
    **{"add": "{0} + {1}", "sub": "{0} - {1}", "rsub": "{1} - {0}"},
    **{"mul": "{0} * {1}", "div": "{0} / {1}"},
    **{"bitwise_and": "{0} & {1}", "bitwise_or": "{0} | {1}", "bitwise_xor": "{0} ^ {1}"},
    "abs": "({0} < 0 ? -{0} : {0})",
    "relu": "({0} <= 0 ? 0 : {0})",
    "threshold": "({0} <= {1} ? {2} : {0})",
}
_REAL = {  # for floating point only
    **_calls("lv_{}{{f}}({{0}})", "exp exp2 expm1 log log1p log2 log10 sigmoid special_expit tanh"),
    **_calls("lv_{}{{f}}({{0}})", "sin cos sinh cosh erf special_erf erfc erfinv lgamma digamma"),
    **_calls("lv_{}{{f}}({{0}})", "special_ndtr special_ndtri special_log_ndtr special_entr i0"),
    **_calls("lv_{}{{f}}({{0}})", "special_i0 special_i0e special_i1 special_i1e"),
    **_calls("lv_{}{{f}}({{0}}, {{1}})", "logaddexp xlogy special_xlog1py maximum minimum fmod"),
    **_calls("lv_{}{{f}}({{0}}, {{1}})", "remainder heaviside"),
    **_calls("{}{{f}}({{0}})", "sqrt tan asin acos atan asinh acosh atanh ceil floor trunc"),
    **_calls("{}{{f}}({{0}}, {{1}})", "atan2 hypot fmax fmin copysign"),
    "special_expit": "lv_sigmoid{f}({0})",
    "log_sigmoid_forward": "lv_log_sigmoid{f}({0})",
    "logaddexp2": "lv_logaddexp{f}({0} * ({T})M_LN2, {1} * ({T})M_LN2) / ({T})M_LN2",
    "rsqrt": "1 / sqrt{f}({0})",
    "reciprocal": "1 / {0}",
    "abs": "fabs{f}({0})",
    "frac": "{0} - trunc{f}({0})",
    "round": "rint{f}({0})",
    **dict.fromkeys(("sign", "sgn"), "(({0} > 0) - ({0} < 0))"),
    "deg2rad": "{0} * ({T})(M_PI / 180)",
    "rad2deg": "{0} * ({T})(180 / M_PI)",
    "silu": "{0} * lv_sigmoid{f}({0})",
    "sigmoid_backward": "{0} * (1 - {1}) * {1}",
    "tanh_backward": "{0} * (1 - {1} * {1})",
    "log_sigmoid_backward": "{0} * lv_sigmoid{f}(-{1})",
    "silu_backward": "{0} * lv_sigmoid{f}({1}) * (1 + {1} * (1 - lv_sigmoid{f}({1})))",
    "threshold_backward": "({1} <= {2} ? 0 : {0})",
    "hardtanh_backward": "({1} <= {2} || {1} >= {3} ? 0 : {0})",
    "softplus_backward": "({1} * {2} > {3} ? {0} : {0} * lv_sigmoid{f}({1} * {2}))",
    "leaky_relu_backward": "({1} > 0 ? {0} : {0} * {2})",
    "addcmul": "{0} + {value} * {1} * {2}",
    "addcdiv": "{0} + {value} * ({1} / {2})",
    "lerp": "({2} < ({T})0.5 ? {0} + {2} * ({1} - {0}) : {1} - ({1} - {0}) * (1 - {2}))",
}
_INTEGER = {
    **dict.fromkeys(("ceil", "floor", "trunc", "round"), "{0}"),
    "maximum": "({0} > {1} ? {0} : {1})",
    "minimum": "({0} < {1} ? {0} : {1})",
    "sign": "(({0} > 0) - ({0} < 0))",
    "hardtanh_backward": _REAL["hardtanh_backward"],
}
_COMPARE = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
_LOGIC = {
    "logical_and": "({0} != 0) & ({1} != 0)",
    "logical_or": "({0} != 0) | ({1} != 0)",
    "logical_xor": "({0} != 0) ^ ({1} != 0)",
    "logical_not": "!{0}",
    "isnan": "({0} != {0})",
    "isinf": "(fabs((double){0}) == INFINITY)",
    "isfinite": "(fabs((double){0}) <= DBL_MAX)",
    "signbit": "(signbit((double){0}) != 0)",
    "isposinf": "((double){0} == INFINITY)",
    "isneginf": "((double){0} == -INFINITY)",
}
_FILLS = {
    **dict.fromkeys(("zeros", "new_zeros", "zeros_like", "zero"), "0"),
    **dict.fromkeys(("ones", "new_ones", "ones_like"), "1"),
    **dict.fromkeys(("empty", "new_empty", "empty_like", "empty_strided"), "0"),
    **dict.fromkeys(("new_empty_strided", "empty_permuted"), "0"),
    "_new_zeros_with_same_feature_meta": "0",
}
_FILLED = {"full": 1, "new_full": 2, "full_like": 1, "scalar_tensor": 0}  # the value's position
_KEEPS_DTYPE = ("copy", "fill", "masked_fill", "zero", "where")  # in place
_POWERS: dict[float, str] = {
    **{0: "1", 1: "{0}", 2: "{0} * {0}", 3: "{0} * {0} * {0}"},
    **{0.5: "sqrt{f}({0})", -0.5: "1 / sqrt{f}({0})", -1: "1 / {0}", -2: "1 / ({0} * {0})"},
}
_DIVISIONS = {"floor": "lv_floor_divide{f}({0}, {1})", "trunc": "trunc{f}({0} / {1})"}
_INTEGER_DIVISIONS = {
    "fmod": "{0} % {1}",
    "trunc": "{0} / {1}",
    "remainder": "({0} % {1} + {1}) % {1}",
    "floor": "{0} / {1} - (({0} % {1} != 0) & (({0} < 0) != ({1} < 0)))",
}


def is_pointwise(step: Step) -> bool:
    """Return whether an operation is elementwise."""
    tables = _ANY, _REAL, _COMPARE, _LOGIC, _FILLS, _FILLED, _SPECIAL
    return any(step.base in table for table in tables)


def operands(step: Step) -> list[Access]:
    """Return the arguments whose elements an operation reads."""
    if step.base in _FILLS:
        return []
    if step.base in _FILLED:
        value = step.get(_FILLED[step.base], "fill_value")
        return [value] if isinstance(value, Access) else []
    return step.reads


def expression(step: Step, operand: Operand) -> str:
    """Return the C expression of a pointwise operation.

    Args:
        step: the operation.
        operand: returns the C expression of an argument, cast to a dtype.

    Raises:
        UncoveredError: one of its options is not covered.
    """
    name, arguments, dtype = step.base, list(step.arguments), step.out().dtype
    if step.mutates and name not in _KEEPS_DTYPE:
        dtype = _wider(dtype, arguments)
    fill = Fill(operand, dtype)
    if name in _FILLS:
        return _FILLS[name]
    if name in _FILLED:
        return operand(arguments[_FILLED[name]], dtype)
    if name in _COMPARE:
        common = _common(arguments[:2])
        left, right = (operand(value, common) for value in arguments[:2])
        return f"({left} {_COMPARE[name]} {right})"
    if name in _LOGIC:
        given = [x for x in arguments if isinstance(x, Access)]
        return _LOGIC[name].format(*(operand(x, x.dtype) for x in given))
    if name in _SPECIAL and (found := _SPECIAL[name](step, fill)) is not None:
        return found
    if dtype == torch.bool and name in ("add", "mul"):
        return fill({"add": "{0} | {1}", "mul": "{0} & {1}"}[name], *arguments[:2])
    template = (_REAL if dtype.is_floating_point else _INTEGER).get(name) or _ANY.get(name)
    if template is None:
        raise UncoveredError(f"aten.{step.name} of {dtype}")
    return fill(template, *(x for x in arguments if isinstance(x, (Access, int, float))))


class Fill:
    """Fills templates for an operation computed in a dtype."""

    def __init__(self, operand: Operand, dtype: torch.dtype) -> None:
        """Keep the operands' expressions and the dtype."""
        self.operand, self.dtype, self.is_real = operand, dtype, dtype.is_floating_point
        self.kind = {"f": "f" if dtype == torch.float32 else "", "T": CTYPES[dtype]}

    def __call__(self, template: str, *values: Any, **more: str) -> str:
        """Return a template with expressions of values."""
        return template.format(*(self.operand(x, self.dtype) for x in values), **self.kind, **more)


def _common(values: list[Any]) -> torch.dtype:
    """Return the dtype in which torch compares two values."""

    def like(x: Any) -> Any:
        is_access = isinstance(x, Access)
        return torch.empty((1,) * bool(x.shape), dtype=x.dtype) if is_access else x

    return torch.result_type(like(values[0]), like(values[1]))


def _wider(dtype: torch.dtype, arguments: list[Any]) -> torch.dtype:
    """Return the dtype in which torch computes a result that it stores as `dtype`."""
    for argument in arguments:
        if isinstance(argument, Access) and argument.shape:
            dtype = torch.promote_types(dtype, argument.dtype)
    return dtype


# Operations beyond a template; None means the template of the tables above.


def _where(step: Step, fill: Fill) -> str:
    condition, *values = step.arguments
    return f"({fill.operand(condition, condition.dtype)} ? " + fill("{0} : {1})", *values)


def _masked_fill(step: Step, fill: Fill) -> str:
    tensor, mask, value = step.arguments
    return f"({fill.operand(mask, torch.bool)} ? " + fill("{0} : {1})", value, tensor)


def _scaled(step: Step, fill: Fill) -> str | None:
    alpha = step.get(2, "alpha", 1)
    if alpha == 1:
        return None
    scaled = {"add": "{0} + {2} * {1}", "sub": "{0} - {2} * {1}", "rsub": "{1} - {2} * {0}"}
    return fill(scaled[step.base], *step.arguments[:2], alpha)


def _with_value(step: Step, fill: Fill) -> str:
    value = fill.operand(step.options.get("value", 1), fill.dtype)
    return fill(_REAL[step.base], *step.arguments[:3], value=value)


def _divided(step: Step, fill: Fill) -> str | None:
    name, two = step.base, step.arguments[:2]
    kind = step.options.get("rounding_mode", "floor" if name == "floor_divide" else None)
    kind = name if name in ("fmod", "remainder") else kind
    if kind is None or (fill.is_real and kind == name):
        return None
    if fill.is_real:
        return fill(_DIVISIONS[kind], *two)
    if not isinstance(two[1], int) or two[1] in (0, -1):  # division by 0 ends the process
        raise UncoveredError(f"aten.{step.name} of integers by {two[1]!r}")
    return fill(_INTEGER_DIVISIONS[kind], *two)


def _round(step: Step, fill: Fill) -> None:
    if step.options.get("decimals"):
        raise UncoveredError("aten.round with decimals")


def _power(step: Step, fill: Fill) -> str:
    base, power = step.arguments[:2]
    is_number = isinstance(power, (int, float)) and power in _POWERS
    if is_number and (fill.is_real or power in (1, 2, 3)):
        return fill(_POWERS[power], base)
    _check_real(step, fill)
    return fill("pow{f}({0}, {1})", base, power)


def _bitwise_not(step: Step, fill: Fill) -> str:
    return fill("!{0}" if fill.dtype == torch.bool else "~{0}", step.arguments[0])


def _clamp(step: Step, fill: Fill) -> str:
    if step.base == "clamp_max":
        low, high = None, step.get(1, "max")
    else:
        default = (-1.0, 1.0) if step.base == "hardtanh" else (None, None)
        low, high = (step.get(1 + k, name, default[k]) for k, name in enumerate(("min", "max")))
    text = fill("{0}", step.arguments[0])
    for limit, sign in ((low, "<"), (high, ">")):
        if limit is not None:
            bound = fill("{0}", limit)
            text = f"({text} {sign} {bound} ? {bound} : {text})"
            if isinstance(limit, (Access, float)):
                text = f"({bound} != {bound} ? {bound} : {text})"
    return text


def _triangle(step: Step, fill: Fill) -> str:
    sign = "<=" if step.base == "tril" else ">="
    diagonal = step.get(1, "diagonal", 0)
    return fill(f"(LV_COL {sign} LV_ROW + {diagonal} ? {{0}} : 0)", step.arguments[0])


def _softplus(step: Step, fill: Fill) -> str:
    _check_real(step, fill)
    template = "({0} * {1} > {2} ? {0} : lv_softplus{f}({0} * {1}) / {1})"
    return fill(template, step.arguments[0], step.get(1, "beta", 1), step.get(2, "threshold", 20))


def _nan_to_num(step: Step, fill: Fill) -> str | None:
    if not fill.is_real:
        return fill("{0}", step.arguments[0])
    largest = torch.finfo(fill.dtype).max
    nan, high, low = (step.get(1 + k, name) for k, name in enumerate(("nan", "posinf", "neginf")))
    high, low = largest if high is None else high, -largest if low is None else low
    template = "({0} != {0} ? {1} : {0} == INFINITY ? {2} : {0} == -INFINITY ? {3} : {0})"
    return fill(template, step.arguments[0], nan or 0.0, high, low)


def _gelu(step: Step, fill: Fill) -> str:
    _check_real(step, fill)
    by_tanh = step.options.get("approximate", "none") != "none"
    k, cube = "({T})(M_SQRT2 * M_2_SQRTPI * 0.5)", "({T})0.044715 * {x} * {x} * {x}"
    if step.base == "gelu":
        if by_tanh:
            inner = f"{k} * ({{0}} + {cube})".replace("{x}", "{0}")
            return fill(f"({{T}})0.5 * {{0}} * (1 + lv_tanh{{f}}({inner}))", step.arguments[0])
        text = "{0} * ({T})0.5 * (1 + lv_erf{f}({0} * ({T})M_SQRT1_2))"
        return fill(text, step.arguments[0])
    if by_tanh:
        t = f"lv_tanh{{f}}({k} * ({{1}} + {cube}))".replace("{x}", "{1}")
        slope = f"(1 - {t} * {t}) * {k} * (1 + 3 * ({{T}})0.044715 * {{1}} * {{1}})"
        text = f"{{0}} * (({{T}})0.5 * (1 + {t}) + ({{T}})0.5 * {{1}} * {slope})"
    else:
        density = "lv_exp{f}(({T})-0.5 * {1} * {1}) * ({T})(M_2_SQRTPI * M_SQRT1_2 * 0.5)"
        text = "{0} * (({T})0.5 * (1 + lv_erf{f}({1} * ({T})M_SQRT1_2)) + {1} * " + density + ")"
    return fill(text, *step.arguments[:2])


def _elu(step: Step, fill: Fill) -> str:
    _check_real(step, fill)
    if step.base == "elu":
        numbers = (*step.arguments[1:], 1.0, 1.0, 1.0)[:3]
        template = "({0} > 0 ? {0} * {2} : lv_expm1{f}({0} * {3}) * {1} * {2})"
        return fill(template, step.arguments[0], *numbers)
    gradient, alpha, scale, inner, is_result, value = step.arguments
    slope = "{3} * ({4} + {1} * {2})" if is_result else "{3} * {1} * {2} * lv_exp{f}({4} * {3})"
    template = "({4} <= 0 ? {0} * " + slope + " : {0} * {2})"
    return fill(template, gradient, alpha, scale, inner, value)


def _leaky_relu(step: Step, fill: Fill) -> str:
    _check_real(step, fill)
    return fill("({0} > 0 ? {0} : {0} * {1})", step.arguments[0], [*step.arguments, 0.01][1])


def _polygamma(step: Step, fill: Fill) -> str:
    _check_real(step, fill)
    order, x = step.arguments
    if order not in (0, 1):
        raise UncoveredError(f"aten.polygamma of order {order}")
    return fill("lv_trigamma{f}({0})" if order else "lv_digamma{f}({0})", x)


def _check_real(step: Step, fill: Fill) -> None:
    if not fill.is_real:
        raise UncoveredError(f"aten.{step.name} of {fill.dtype}")


_SPECIAL: dict[str, Callable[[Step, Fill], str | None]] = {
    **{"where": _where, "masked_fill": _masked_fill, "pow": _power, "bitwise_not": _bitwise_not},
    **dict.fromkeys(("add", "sub", "rsub"), _scaled),
    **dict.fromkeys(("addcmul", "addcdiv"), _with_value),
    **dict.fromkeys(("div", "floor_divide", "remainder", "fmod"), _divided),
    **dict.fromkeys(("clamp", "clamp_min", "clamp_max", "hardtanh"), _clamp),
    **dict.fromkeys(("tril", "triu"), _triangle),
    **dict.fromkeys(("gelu", "gelu_backward"), _gelu),
    **dict.fromkeys(("elu", "elu_backward"), _elu),
    **{"round": _round, "softplus": _softplus, "nan_to_num": _nan_to_num},
    **{"leaky_relu": _leaky_relu, "polygamma": _polygamma},
}
