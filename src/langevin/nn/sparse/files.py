"""Save a pruned state to one safetensors file, without its zeros."""

from __future__ import annotations

import os
from typing import TypeVar

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor, nn

from langevin.checks import check_path, needs
from langevin.storage.journal import write_atomic

__all__ = ["load", "save"]

# Suffixes of a tensor's name: flat int32 indices of its nonzero elements, and their values.
_INDICES, _VALUES = ".places", ".values"
_FORMAT = "langevin sparse 1"

Module = TypeVar("Module", bound=nn.Module)


def save(path: str | os.PathLike[str], model: nn.Module) -> int:
    """Write a model's state to a safetensors file, without the zeros of sparse tensors.

    Args:
        path: the file; it is replaced atomically.
        model: any module whose state is dense tensors.

    Returns:
        The size of the file in bytes.

    Example:
        >>> import tempfile
        >>> layer = nn.Linear(100, 100).requires_grad_(False)
        >>> _ = layer.weight[:, 1:].zero_()
        >>> path = tempfile.mkdtemp() + "/layer.safetensors"
        >>> save(path, layer) < 2000
        True
        >>> load(path, nn.Linear(100, 100)).weight.equal(layer.weight)
        True
    """
    target = check_path("save", "path", path, "the path of a file")
    if not isinstance(model, nn.Module):
        raise needs("save", "model", "an nn.Module", model, TypeError)
    tensors: dict[str, Tensor] = {}
    for name, value in model.state_dict().items():
        if not isinstance(value, Tensor) or value.layout != torch.strided:
            shown = f"{name}: {type(value).__name__}"
            raise needs("save", "model", "a state of dense tensors", shown, TypeError)
        value = value.detach().cpu()
        flat = value.reshape(-1)
        indices = flat.nonzero()[:, 0]
        if len(indices) * (4 + value.itemsize) < value.nbytes and len(flat) < 2**31:
            tensors |= {name + _INDICES: indices.int(), name + _VALUES: flat[indices]}
        else:
            tensors[name] = value.clone().contiguous()  # safetensors rejects shared storage
    data = safetensors.torch.save(tensors, {"format": _FORMAT})
    write_atomic(target, data)
    return len(data)


def load(path: str | os.PathLike[str], model: Module) -> Module:
    """Load a state that `save` wrote into a module, and return it.

    Raises:
        ValueError: the file does not fit the module, which is not changed.

    Example:
        >>> import tempfile
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
            value = tensors.pop(name)
        elif name + _INDICES in tensors and name + _VALUES in tensors:
            indices, values = tensors.pop(name + _INDICES).long(), tensors.pop(name + _VALUES)
            is_inside = ((indices >= 0) & (indices < like.numel())).all()
            if len(indices) != len(values) or not is_inside:
                what = f"indices of the {like.numel()} elements of {name!r}"
                raise needs("load", "path", what, str(source))
            value = values.new_zeros(like.numel()).index_put((indices,), values).reshape(like.shape)
        else:
            raise needs("load", "path", f"a file with {name!r}", f"{source} with {sorted(tensors)}")
        if value.shape != like.shape:
            what = f"shape {tuple(like.shape)} for {name!r}"
            raise needs("load", "path", what, tuple(value.shape))
        state[name] = value
    if tensors:
        what = f"a file of a {type(model).__name__} like this one"
        raise needs("load", "path", what, f"{source} with {sorted(tensors)} too")
    model.load_state_dict(state)
    return model
