"""A pruned state in one safetensors file, without its zeros."""

from __future__ import annotations

import os
from typing import TypeVar

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor, nn

from langevin.checks import check_path, needs
from langevin.store.journal import write_atomic

__all__ = ["load", "save"]

_PLACES, _VALUES = ".places", ".values"  # after the name of a tensor: where it is not zero (flat, int32), and what it is there
_FORMAT = "langevin sparse 1"

Module = TypeVar("Module", bound=nn.Module)


def save(path: str | os.PathLike[str], model: nn.Module) -> int:
    """Write a model's state to a safetensors file; of tensors with many zeros only places and values that are not zero.

    Args:
        path: the file; it is replaced in one go.
        model: any module whose state is dense tensors.

    Returns:
        The size of the file in bytes.

    Example:
        >>> import tempfile
        >>> layer = nn.Linear(100, 100).requires_grad_(False)
        >>> _ = layer.weight[:, 1:].zero_()
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     size = save(f"{folder}/layer.safetensors", layer)
        ...     load(f"{folder}/layer.safetensors", nn.Linear(100, 100)).weight.equal(layer.weight), size < 2000
        (True, True)
    """
    target = check_path("save", "path", path, "the path of a file")
    if not isinstance(model, nn.Module):
        raise needs("save", "model", "an nn.Module", model, TypeError)
    tensors: dict[str, Tensor] = {}
    for name, value in model.state_dict().items():
        if not isinstance(value, Tensor) or value.layout != torch.strided:
            raise needs("save", "model", "a state of dense tensors", f"{name}: {type(value).__name__}", TypeError)
        flat = value.detach().cpu().reshape(-1)
        places = flat.nonzero()[:, 0]
        if len(places) * (4 + value.itemsize) < value.nbytes and len(flat) < 2**31:
            tensors |= {name + _PLACES: places.int(), name + _VALUES: flat[places]}
        else:
            tensors[name] = value.detach().cpu().clone().contiguous()  # a clone: safetensors refuses tensors that share memory
    data = safetensors.torch.save(tensors, {"format": _FORMAT})
    write_atomic(target, data)
    return len(data)


def load(path: str | os.PathLike[str], model: Module) -> Module:
    """Fill a module with a state that `save` wrote, and return it; a file that does not fit is refused, and nothing is changed.

    Example:
        >>> import tempfile
        >>> from torch import nn
        >>> path = tempfile.mkdtemp() + "/net.safetensors"
        >>> _ = save(path, nn.Linear(2, 1))
        >>> load(path, nn.Linear(2, 1))
        Linear(in_features=2, out_features=1, bias=True)
    """
    source = check_path("load", "path", path, "the path of a file")
    if not isinstance(model, nn.Module):
        raise needs("load", "model", "an nn.Module", model, TypeError)
    try:
        tensors = safetensors.torch.load(source.read_bytes())
    except SafetensorError as error:
        raise needs("load", "path", f"a file that save() wrote ({error})", str(source)) from error
    state: dict[str, Tensor] = {}
    for name, like in model.state_dict().items():
        if name in tensors:
            state[name] = tensors.pop(name)
        elif name + _PLACES in tensors and name + _VALUES in tensors:
            places, values = tensors.pop(name + _PLACES).long(), tensors.pop(name + _VALUES)
            if len(places) != len(values) or (len(places) and not 0 <= int(places.min()) <= int(places.max()) < like.numel()):
                raise needs("load", "path", f"places within the {like.numel()} elements of {name!r}", str(source))
            state[name] = values.new_zeros(like.numel()).index_put((places,), values).reshape(like.shape)
        else:
            raise needs("load", "path", f"a file with {name!r}", f"{source} with {sorted(tensors)}")
        if state[name].shape != like.shape:
            raise needs("load", "path", f"shape {tuple(like.shape)} for {name!r}", tuple(state[name].shape))
    if tensors:
        raise needs("load", "path", f"a file of a {type(model).__name__} like this one", f"{source} with {sorted(tensors)} too")
    model.load_state_dict(state)
    return model
