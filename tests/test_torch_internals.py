"""The private names of torch that `src` uses, each with what breaks when it is gone, and a test that it still works."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

SOURCE = Path(__file__).parents[1] / "src" / "langevin"
PATTERNS = (
    r"torch\._[A-Za-z]\w*(?:\.\w+)*",
    r"torch\.\w+(?:\.\w+)*\._\w+",
    r"(?<=torch\.distributed\.)distributed_c10d\.\w+",
    r"\._(?:version|is_zerotensor|schema|typed_storage|cdata|should_skip_dynamo|_storage)\b",
    r"def (_should_skip_dynamo)",
)
BREAKS = {
    "torch._disable_dynamo": "optimizers: `step` would be traced by a user's torch.compile (torch.optim uses the same name)",
    "torch.distributed.distributed_c10d._get_default_store": "ranks: replicas can no longer compare their settings",
    "distributed_c10d._get_default_store": "the same",
    "torch._C._distributed_c10d": "langevin.distributed.join: TCPStore and PrefixStore are imported from here",
    "torch._inductor": "langevin doctor: where torch.compile keeps its code",
    "torch._inductor.runtime.cache_dir_utils": "langevin doctor: the same",
    "torch._foreach_add": "optimizers on a GPU: counters move to the device one by one",
    "torch._foreach_copy_": "optimizers on a GPU: small parameters are copied back one by one",
    "torch.utils._python_dispatch": "recording: TorchDispatchMode, documented for extensions, lives here",
    "torch.utils._pytree": "recording: lists of tensors in arguments",
    "torch._ops.OpOverload": "recording: the type of an operation",
    "torch.ops.aten._to_copy": "recording: a constant in another dtype is converted at every step",
    "torch.ops.aten._unsafe_index": "recording: indices of `torch._unsafe_index` are rejected",
    "._schema": "recording: which arguments an operation mutates",
    "._is_zerotensor": "recording and optimizers: a tensor whose zeros are a flag and not in memory",
    "._version": "recording: a constant that was changed in place during a run is no longer reported",
    "_should_skip_dynamo": "recording: the import of torch's compiler is no longer avoided, which costs seconds",
}


def found():
    names = set()
    for path in SOURCE.rglob("*.py"):
        text = "\n".join(line.split("  # ")[0] for line in path.read_text().splitlines())
        for pattern in PATTERNS:
            names |= {match.group(match.lastindex or 0) for match in re.finditer(pattern, text)}
    return names


def test_the_list_of_private_names_is_whole():
    assert found() - set(BREAKS) == set()
    assert set(BREAKS) - found() == set()


@pytest.mark.parametrize("name", sorted(name for name in BREAKS if name.startswith("torch.")))
def test_modules_and_functions_are_there(name):
    parts = name.split(".")
    if "distributed" in name and not torch.distributed.is_available():
        pytest.skip("torch without torch.distributed")
    if name.startswith(("torch._inductor", "torch.utils._", "torch.distributed")):
        __import__(".".join(parts[:-1]) if parts[-1].startswith("_get") else name)
    at = torch
    for part in parts[1:]:
        at = getattr(at, part)


def test_tensors_tell_zeros_in_a_flag_and_changes_in_place():
    assert torch._efficientzerotensor(2)._is_zerotensor()
    x = torch.zeros(2)
    before = x._version
    x.add_(1.0)
    assert x._version == before + 1


def test_schemas_tell_what_an_operation_mutates():
    schemas = {name: getattr(torch.ops.aten, name).default._schema for name in ("relu", "relu_")}
    assert [schemas[name].is_mutable for name in ("relu", "relu_")] == [False, True]
    assert schemas["relu_"].arguments[0].alias_info.is_write


def test_a_dispatch_mode_sees_operations():
    from torch.utils._python_dispatch import TorchDispatchMode

    class Mode(TorchDispatchMode):
        seen = ()

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            self.seen += (func,)
            return func(*args, **(kwargs or {}))

    with Mode() as mode:
        torch.zeros(2).exp()
    assert mode.seen[-1] is torch.ops.aten.exp.default
    assert isinstance(mode.seen[-1], torch._ops.OpOverload)
    assert hasattr(TorchDispatchMode, "_should_skip_dynamo")
