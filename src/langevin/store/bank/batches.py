"""Calls of a model on batches: averages over draws, and BatchNorm statistics.

The inputs of one call are a tensor, `model(x)`; a tuple or list, `model(*x)`; or a dict, `model(**x)`. A loader is anything that
can be iterated over again and again; of a batch that is a tuple or list the first entry is the inputs and the rest, labels, is
not looked at.
"""

import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from langevin.checks import needs
from langevin.store.bank.files import bytes_of, pieces

__all__ = ["average", "check_loader", "estimate_norms", "norms_of"]

_PREDICT = ("SampleBank.predict", "x")
_UPDATE = ("SampleBank.update_bn", "loader")
_KINDS = "a tensor, a tuple or dict of tensors, or a loader of them"


def check_loader(who: str, argument: str, loader: Any) -> None:
    """Fail for what cannot be read at all, or once only."""
    if isinstance(loader, Iterator):
        raise needs(who, argument, "to be read once per draw, no iterator", loader, TypeError)
    if isinstance(loader, type) or not (hasattr(loader, "__iter__") or hasattr(loader, "__getitem__")):
        raise needs(who, argument, _KINDS, loader, TypeError)
    if not isinstance(loader, Tensor) and getattr(loader, "ndim", 1) == 0:  # an array of one element says that it can be iterated
        raise needs(who, argument, _KINDS, loader, TypeError)


def norms_of(model: nn.Module) -> dict[str, _BatchNorm]:
    """Return the layers with BatchNorm statistics, by name."""
    return {name: m for name, m in model.named_modules() if isinstance(m, _BatchNorm) and m.running_mean is not None}


def estimate_norms(module: nn.Module, loader: Iterable[Any]) -> None:
    """Reset the BatchNorm statistics of a module in eval mode and average them over the loader's batches."""
    norms, batches = norms_of(module), 0
    for norm in norms.values():
        norm.reset_running_stats()
        norm.momentum = None  # cumulative average
        norm.train()
    if isinstance(loader, Tensor) and loader.ndim == 0:
        raise needs(*_UPDATE, "batches", loader, TypeError)
    for batch in loader:
        with torch.no_grad():
            _call(module, _with_values(_UPDATE, _inputs(_UPDATE, batch)))
        batches += 1
    if not batches:
        raise needs(*_UPDATE, "at least one batch", loader)
    for name, norm in norms.items():
        for value in (norm.running_mean, norm.running_var):
            if value is not None and not value.isfinite().all():
                raise needs(*_UPDATE, f"inputs with finite statistics ({name} has none)", value[~value.isfinite()][0].item())


def average(
    modules: Iterable[nn.Module], x: Any, transform: Callable[[Any], Tensor] | None, batch_size: int | None
) -> Tensor | None:
    """Average `transform(module(x))` over modules, in float32 or wider, batch by batch; None if there is no module."""
    total, first = torch.empty(0), list[int]()  # the sum, with room for more rows at its end; rows of the first batch
    seen: list[tuple[int, torch.Size]] = []  # of each batch: its checksum, and the shape of the output
    used = count = 0
    for module in modules:
        number = used = 0
        for mark, rows, output in _outputs(module, x, transform, batch_size):
            stop = used + (len(output) if output.ndim else 0)
            if count == 0:
                seen.append((mark, output.shape))
                if number == 0:
                    total, first = output.clone(), rows
                else:
                    if number == 1:
                        _check_rows(total, first, total.shape)
                    _check_rows(output, rows, total.shape)
                    total = _with_room(total, stop)
                    total[used:stop] = output
            elif seen[number : number + 1] != [(mark, output.shape)]:
                break
            else:
                (total[used:stop] if len(seen) > 1 else total).add_(output)
            number, used = number + 1, stop
        if not seen:
            raise needs(*_PREDICT, "at least one batch", x)
        if number != len(seen):
            raise needs(*_PREDICT, "the same batches in the same order each time it is read (shuffle=False)", type(x))
        count += 1
    if not count:
        return None
    return (total[:used] if len(seen) > 1 else total).div(count)


def _outputs(
    module: nn.Module, x: Any, transform: Callable[[Any], Tensor] | None, batch_size: int | None
) -> Iterator[tuple[int, list[int], Tensor]]:
    """Call the module on each batch; gives the batch's checksum, the rows of its tensors and the output."""
    one_call = isinstance(x, Tensor | Mapping | tuple) or (isinstance(x, list) and x and all(isinstance(v, Tensor) for v in x))
    for batch in [x] if one_call else x:
        inputs = _with_values(_PREDICT, batch if one_call else _inputs(_PREDICT, batch))
        mark = 0 if one_call else _checksum(inputs)
        for part in _split(inputs, batch_size):
            with torch.no_grad():
                output = _call(module, part)
                output = output if transform is None else transform(output)
            if not isinstance(output, Tensor):
                raise needs(_PREDICT[0], "transform", "to make the model's output a tensor", type(output), TypeError)
            yield mark, _rows(part), output.to(torch.promote_types(output.dtype, torch.float32))


def _inputs(who: tuple[str, str], batch: Any) -> Any:
    inputs = batch[0] if isinstance(batch, tuple | list) and batch else batch
    if not isinstance(inputs, Tensor | Mapping | tuple | list):
        raise needs(*who, _KINDS, type(inputs), TypeError)
    return inputs


def _with_values(who: tuple[str, str], inputs: Any) -> Any:
    for tensor in _tensors(inputs):
        if tensor.is_meta:
            raise needs(*who, "tensors with values", f"one of shape {tuple(tensor.shape)} on the meta device", TypeError)
    return inputs


def _call(module: nn.Module, inputs: Any) -> Any:
    device = next((tensor.device for tensor in chain(module.parameters(), module.buffers())), None)
    inputs = _each_tensor(inputs, lambda tensor: tensor if device is None else tensor.to(device))
    if isinstance(inputs, Tensor):
        return module(inputs)
    return module(**inputs) if isinstance(inputs, dict) else module(*inputs)


def _each_tensor(inputs: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """Apply a function to each tensor among the inputs of a call."""
    if isinstance(inputs, Tensor):
        return change(inputs)
    if isinstance(inputs, Mapping):
        return {name: change(value) if isinstance(value, Tensor) else value for name, value in inputs.items()}
    return tuple(change(value) if isinstance(value, Tensor) else value for value in inputs)


def _tensors(inputs: Any) -> list[Tensor]:
    values = [inputs] if isinstance(inputs, Tensor) else inputs.values() if isinstance(inputs, Mapping) else inputs
    return [value for value in values if isinstance(value, Tensor)]


def _rows(inputs: Any) -> list[int]:
    return [len(tensor) for tensor in _tensors(inputs) if tensor.ndim]


def _split(inputs: Any, batch_size: int | None) -> Iterator[Any]:
    rows = _rows(inputs)
    if batch_size is None or not rows:
        yield inputs
        return
    if len(set(rows)) > 1:
        raise needs(*_PREDICT, "tensors with as many rows each", rows)
    for start in range(0, max(rows[0], 1), batch_size):
        stop = start + batch_size
        yield _each_tensor(inputs, lambda tensor: tensor[start:stop] if tensor.ndim else tensor)  # noqa: B023 - used at once


def _checksum(inputs: Any) -> int:
    """Tell batches of different content apart; a loader that shuffles would average the outputs of different rows."""
    mark = 0
    for tensor in _tensors(inputs):
        if tensor.layout == torch.strided:
            for piece in pieces(tensor.detach()):
                mark = zlib.crc32(bytes_of(piece), mark)
    return mark


def _check_rows(output: Tensor, rows: list[int], like: torch.Size) -> None:
    """Fail unless the output of one batch among several has a row per input row, shaped like the rows before."""
    if not output.ndim or len(output) not in rows or output.shape[1:] != like[1:]:
        needed = f"outputs of several batches to have a row per row of the batch {rows}, all of one shape"
        raise needs(_PREDICT[0], "transform", needed, tuple(output.shape))


def _with_room(total: Tensor, rows: int) -> Tensor:
    """Make room for so many rows, and as many again; a list of small tensors would scatter itself over the memory."""
    return total if len(total) >= rows else torch.cat([total, total.new_empty(2 * rows - len(total), *total.shape[1:])])
