"""Argument checks with one form of message: ``name(arg=...) needs <condition>, got <value>``."""

from __future__ import annotations

import difflib
import functools
import importlib
import inspect
import math
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar, cast

import numpy as np
import torch
from torch import Tensor, nn

__all__ = [
    "check_bool",
    "check_columns",
    "check_dense",
    "check_field",
    "check_finite",
    "check_function",
    "check_integer",
    "check_number",
    "check_path",
    "check_position",
    "check_tensor",
    "import_extra",
    "known_arguments",
    "level_of_caller",
    "lacks_memory",
    "needs",
    "takes",
]


def needs(
    who: str, argument: str, condition: str, value: object, error: type[Exception] = ValueError
) -> Exception:
    """Return the error of a bad argument, in the library's one form."""
    text = repr(value)
    text = text if len(text) <= 200 else text[:200] + "..."
    return error(f"{who}({argument}=...) needs {condition}, got {text}")


F = TypeVar("F", bound=Callable[..., Any])

# Names in other libraries, by name in this one.
_ALIASES = {
    "num_draws": "num_samples draws samples n_draws n_samples num_draw ndraws iterations iter"
    " iter_sampling num_results nsamples",
    "num_steps": "num_iterations n_steps steps num_iter max_steps",
    "seed": "random_seed random_state rng_seed rng key prng_key rng_key",
    "warmup": "tune num_warmup n_warmup warmup_steps burn_in burnin burn num_burn_in n_tune"
    " num_tune iter_warmup num_burnin_steps nburn num_adaptation_steps",
    "chains": "n_chains num_chains nchains num_particles n_walkers nwalkers",
    "thin": "thinning num_thin n_thin thin_by num_steps_between_results",
    "init": "initvals init_values inits initial_positions init_params start initial_params"
    " init_strategy initial_position initial_state initial_point p0",
    "progress": "progressbar progress_bar show_progress verbose show_progress_bar disable_progbar",
    "data": "loader dataloader train_loader dataset",
    "metric": "mass_matrix inverse_mass_matrix inv_metric dense_mass dense_e",
    "engine": "cores n_jobs jobs parallel_chains chain_method pool workers mp_ctx num_workers",
    "out": "output_dir trace backend store save_dir folder",
    "compile": "jit_compile jit jit_model_args compile_kwargs",
    "sampler": "kernel nuts_sampler algorithm method",
    "target": "model potential_fn log_prob logdensity_fn",
    "batch_size": "batchsize minibatch_size mini_batch_size",
    "blocking": "background",
}
_OF_SAMPLER = {"step_size": "step_size=...", "temperature": "step_size=..., temperature=..."}
_NO_ACCEPT = (
    "samplers here have no accept step: without sampler= the step size is found automatically, "
    "and sampler=lv.msgld(step_size=...) sets it"
)
_NO_PATHS = "samplers here have no trajectories: each step is a draw, thin= keeps every n-th one"
_NOT_STORED = "draws of the warm-up are not stored: run a sampler with warmup=0 to keep all draws"
# Arguments of other libraries that have no counterpart.
_HINTS = {
    ("sample", "target_accept target_accept_prob target_acceptance_rate adapt_delta"): _NO_ACCEPT,
    ("sample", "max_treedepth max_tree_depth num_leapfrog_steps trajectory_length"): _NO_PATHS,
    ("sample", "num_integration_steps path_length"): _NO_PATHS,
    ("sample", "return_inferencedata idata_kwargs"): "samples.to_arviz() converts the result",
    ("to_arviz", "include_warmup save_warmup discard_tuned_samples"): _NOT_STORED,
}


def known_arguments(who: str) -> Callable[[F], F]:
    """Decorate a function so that the error of an unknown keyword suggests the right one.

    Example:
        >>> @known_arguments("simulate")
        ... def simulate(*, num_draws=10, seed=0): ...
        >>> simulate(random_state=1)
        Traceback (most recent call last):
        TypeError: simulate(random_state=...) needs a known argument (did you mean seed=?), got 1
    """

    def decorate(function: F) -> F:
        kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
        parameters = inspect.signature(function).parameters.values()
        names = [parameter.name for parameter in parameters if parameter.kind in kinds]

        @functools.wraps(function)
        def checked(*args: Any, **given: Any) -> Any:
            for name, value in given.items():
                if name not in names:
                    raise needs(who, name, _meant(who, name, names), value, TypeError)
            return function(*args, **given)

        return cast(F, checked)

    return decorate


def _meant(who: str, name: str, names: Sequence[str]) -> str:
    """Return the condition that an unknown argument breaks, with a suggestion."""
    if who == "sample" and name in _OF_SAMPLER:
        call = f"sampler=lv.msgld({_OF_SAMPLER[name]}), init=init, num_steps=..."
        return f"a known argument ({name} is an argument of the sampler: lv.sample(target, {call}))"
    for (function, theirs), hint in _HINTS.items():
        if function == who and name in theirs.split():
            return f"a known argument ({hint})"
    close = [
        ours
        for ours, theirs in _ALIASES.items()
        if name.lower() in theirs.split() and ours in names
    ]
    close = close or difflib.get_close_matches(name.lower(), names, n=2)
    if close:
        return f"a known argument (did you mean {' or '.join(f'{ours}=' for ours in close)}?)"
    known = ", ".join(ours for ours in names if ours not in ("self", "cls"))
    return f"a known argument, one of {known}"


def import_extra(who: str, module: str, extra: str, *others: str) -> ModuleType:
    """Import an optional module, or the first of `others`; the error names the extra to install.

    Example:
        >>> import_extra("forecast()", "tarot_cards", "cards")
        Traceback (most recent call last):
        ImportError: forecast() needs tarot_cards: pip install 'langevin[cards]'
    """
    for name in (module, *others):
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name not in (name, name.partition(".")[0]):
                raise
    package = module.partition(".")[0]
    raise ImportError(f"{who} needs {package}: pip install 'langevin[{extra}]'")


def level_of_caller() -> int:
    """Return the `stacklevel` of the user's line, skipping this library and torch's wrappers."""
    frame, level, skipped = sys._getframe(1), 1, ("langevin", "torch", "contextlib")
    while frame.f_back and frame.f_globals.get("__name__", "").partition(".")[0] in skipped:
        frame, level = frame.f_back, level + 1
    return level


def check_number(
    who: str,
    argument: str,
    value: object,
    condition: str,
    holds: Callable[[float], bool] = lambda value: True,
) -> float:
    """Return a finite real number for which `holds` is true, as a float."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise needs(who, argument, f"a number with {condition}", value, TypeError)
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number) or not holds(number):
        raise needs(who, argument, condition, value)
    return number


def check_field(
    instance: object, who: str, name: str, condition: str, holds: Callable[[float], bool]
) -> None:
    """Check a number in a frozen dataclass and convert it to a float (large ints break tensors)."""
    value = check_number(who, name, getattr(instance, name), condition, holds)
    object.__setattr__(instance, name, value)


def check_bool(who: str, argument: str, value: object) -> bool:
    """Return a bool, and accept nothing else."""
    if not isinstance(value, bool):
        raise needs(who, argument, "True or False", value, TypeError)
    return value


def check_function(
    who: str, argument: str, value: Any, what: str, count: int | None = None
) -> None:
    """Check a function of `count` arguments; classes and modules on the meta device are errors."""
    is_function = callable(value) and not isinstance(value, type)
    if not is_function or (count is not None and not takes(value, count)):
        raise needs(who, argument, what, value, TypeError)
    tensors = (*value.parameters(), *value.buffers()) if isinstance(value, nn.Module) else ()
    if any(tensor.is_meta for tensor in tensors):
        found = f"{value} on the meta device, where tensors have no values"
        raise needs(who, argument, what, found, TypeError)


def check_integer(who: str, argument: str, value: Any, minimum: int, end: int = 2**63) -> int:
    """Return an int (no bool) in [minimum, end), where `end` is a power of two."""
    is_integer = isinstance(value, int) and not isinstance(value, bool)
    if is_integer and minimum <= value < end:
        return value
    condition = f"an int in [{minimum}, 2**{end.bit_length() - 1})"
    if end == 2**63 and not (is_integer and value >= end):
        condition = f"an int >= {minimum}"
    raise needs(who, argument, condition, value, ValueError if is_integer else TypeError)


def takes(function: Callable[..., Any], count: int) -> bool:
    """Whether a function can be called with `count` arguments; True where Python cannot tell."""
    try:
        inspect.signature(function).bind(*range(count))
    except TypeError:
        return False
    except ValueError:  # some functions written in C
        return True
    return True


def check_path(who: str, argument: str, value: object, what: str) -> Path:
    """Return a path that a file system could have."""
    path = os.fspath(value) if isinstance(value, str | os.PathLike) else value
    if not isinstance(path, str):
        raise needs(who, argument, what, value, TypeError)
    if not path or "\0" in path:
        raise needs(who, argument, what, value)
    return Path(path)


def check_dense(who: str, argument: str, tensor: Tensor) -> Tensor:
    """Return a dense tensor with values: neither sparse, nested nor on the meta device."""
    if tensor.layout != torch.strided or tensor.is_meta:
        found = f"{tensor.layout} on {tensor.device}"
        raise needs(who, argument, "a dense tensor with values", found, TypeError)
    return tensor


def check_finite(
    who: str, argument: str, tensor: Tensor, where: str = "", hint: str = ""
) -> Tensor:
    """Return a tensor of finite values; the error names the first element that is not."""
    values = tensor.detach()
    if bool(values.sum().isfinite()):  # one pass: NaN and infinity stay in a sum
        return tensor
    bad = ~torch.isfinite(values)
    if bad.any():
        index = bad.nonzero()[0].tolist()
        condition = f"finite values ({where}element {index} is not{hint})"
        raise needs(who, argument, condition, tensor[tuple(index)].item())
    return tensor


def check_position(who: str, argument: str, position: object) -> Tensor:
    """Return a finite floating-point tensor of shape (..., dim) with dim >= 1."""
    if not isinstance(position, Tensor):
        raise needs(who, argument, "a torch.Tensor of shape (chains, dim)", position, TypeError)
    if not position.is_floating_point():
        raise needs(who, argument, "a floating-point tensor", position.dtype, TypeError)
    check_dense(who, argument, position)
    if position.ndim == 0 or position.numel() == 0:
        condition = "shape (..., dim) with at least one element"
        raise needs(who, argument, condition, tuple(position.shape))
    return check_finite(who, argument, position)


def check_tensor(who: str, argument: str, value: object, *shape: int | str) -> Tensor:
    """Return a tensor, an array or nested lists as finite float64 values on the CPU.

    Args:
        who: name of the caller.
        argument: name of the argument.
        value: its value.
        shape: required axes, each a length, or a name for any length >= 1.
    """
    shown = f"({', '.join(map(str, shape))}{',' if len(shape) == 1 else ''})"
    if isinstance(value, Tensor):
        check_dense(who, argument, value)
    try:
        # torch would drop the imaginary part
        if isinstance(value, Tensor | np.ndarray) and "complex" in str(value.dtype):
            raise TypeError(f"{value.dtype} is not real")
        tensor = torch.as_tensor(value, dtype=torch.float64, device="cpu").detach()
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        raise needs(who, argument, f"numbers of shape {shown}", value, TypeError) from error
    fits = tensor.ndim == len(shape) and all(
        length > 0 if isinstance(axis, str) else length == axis
        for axis, length in zip(shape, tensor.shape, strict=True)
    )
    if not fits:
        raise needs(who, argument, f"shape {shown}", tuple(tensor.shape))
    return check_finite(who, argument, tensor)


def check_columns(who: str, data: object) -> tuple[Tensor, ...]:
    """Return the columns of a data set: finite tensors of one length >= 1."""
    if not isinstance(data, Tensor | Sequence) or isinstance(data, str | bytes):
        raise needs(who, "data", "tensors, one per column", data, TypeError)
    columns = (data,) if isinstance(data, Tensor) else tuple(data)
    if not columns or not all(isinstance(column, Tensor) for column in columns):
        types = [type(column).__name__ for column in columns]
        raise needs(who, "data", "tensors, one per column", types, TypeError)
    lengths = [len(column) if column.ndim else 0 for column in columns]
    if min(lengths) == 0:
        raise needs(who, "data", "at least one row", f"columns of {lengths} rows")
    if len(set(lengths)) > 1:
        raise needs(who, "data", "columns of the same length", f"{lengths} rows")
    for k, column in enumerate(columns):
        check_finite(who, "data", check_dense(who, "data", column), f"column {k}, ")
    return columns


def lacks_memory(tensor: Tensor) -> bool:
    """Whether the storage of a dense tensor is too small (was freed): torch would crash."""
    axes = zip(tensor.shape, tensor.stride(), strict=True)
    end = 1 + tensor.storage_offset() + sum((size - 1) * stride for size, stride in axes)
    return tensor.numel() > 0 and tensor.untyped_storage().nbytes() < end * tensor.element_size()
