"""What may be done to parameters, gradients and states behind an optimizer's back; a script, each case in a process of its own.

A case gets a function that builds the optimizer; it returns the parameters whose values count. `survive` says what came of it:
"right" (the fused engine's result is that of plain torch, bit for bit), "error: ..." (a Python exception), or "signal 11".
"""

from __future__ import annotations

import contextlib
import copy
import json
import os
import pickle
import sys
import traceback

import torch
from torch import nn

SIZE = 300_000  # large enough for two threads


def parameter(size=SIZE, dtype=torch.float32):
    return nn.Parameter(torch.linspace(-1, 1, size, dtype=dtype))


def give_gradients(*parameters):
    for p in parameters:
        p.grad = p.detach().cos()


def steps(optimizer, *parameters, count=2):
    for _ in range(count):
        give_gradients(*parameters)
        optimizer.step()
    return parameters


def state_of_another_architecture(build):
    small, large = parameter(10), parameter()
    source, target = build([small]), build([large])
    steps(source, small)
    with contextlib.suppress(ValueError):
        target.load_state_dict(source.state_dict())
    return steps(target, large)


def state_of_a_larger_architecture(build):
    small, large = parameter(10), parameter()
    source, target = build([large]), build([small])
    steps(source, large)
    with contextlib.suppress(ValueError):
        target.load_state_dict(source.state_dict())
    return steps(target, small)


def data_grown_after_a_step(build):
    p = parameter(10)
    optimizer = build([p])
    steps(optimizer, p)
    p.data = torch.zeros(SIZE)
    p.grad = None
    return steps(optimizer, p)


def data_shrunk_after_a_step(build):
    p = parameter()
    optimizer = build([p])
    steps(optimizer, p)
    p.data = torch.zeros(10)
    p.grad = None
    return steps(optimizer, p)


def stale_gradient_of_another_size(build):
    p = parameter(10)
    optimizer = build([p])
    give_gradients(p)
    p.data = torch.zeros(SIZE)
    optimizer.step()
    return [p]


def stale_gradient_that_broadcasts(build):
    p = parameter(1)
    optimizer = build([p])
    give_gradients(p)
    p.data = torch.zeros(SIZE)
    optimizer.step()
    return [p]


def swapped_tensors(build):
    p = parameter(10)
    optimizer = build([p])
    steps(optimizer, p)
    torch.utils.swap_tensors(p, parameter())
    return steps(optimizer, p)


def freed_storage(build):
    p = parameter()
    optimizer = build([p])
    give_gradients(p)
    p.untyped_storage().resize_(0)
    optimizer.step()
    return [parameter()]


def freed_gradient(build):
    p = parameter()
    optimizer = build([p])
    give_gradients(p)
    p.grad.untyped_storage().resize_(0)
    optimizer.step()
    return [p]


def freed_memory(build):
    p = parameter()
    optimizer = build([p])
    steps(optimizer, p)
    for value in optimizer.state[p].values():
        if isinstance(value, torch.Tensor):
            value.untyped_storage().resize_(0)
    return steps(optimizer, p)


def gradient_of_virtual_zeros(build):
    p = parameter()
    optimizer = build([p])
    p.grad = torch._efficientzerotensor(SIZE)
    optimizer.step()
    return [p]


def gradient_with_the_neg_bit(build):
    p = parameter(2)
    optimizer = build([p])
    p.grad = torch.tensor([1 + 2j, 3 - 1j]).conj().imag
    assert p.grad.is_neg()
    optimizer.step()
    return [p]


def contiguous_gradient_with_the_neg_bit(build):
    p = parameter()
    optimizer = build([p])
    p.grad = torch._neg_view(p.detach().cos())
    optimizer.step()
    return [p]


def wrapper_subclass(build):
    from torch.testing._internal.two_tensor import TwoTensor

    p = nn.Parameter(TwoTensor(torch.zeros(100), torch.zeros(100)))
    optimizer = build([p])
    p.grad = TwoTensor(torch.ones(100), torch.ones(100))
    optimizer.step()
    return [p.a]


def wrapped_gradient(build):
    from torch.testing._internal.two_tensor import TwoTensor

    p = parameter(100)
    optimizer = build([p])
    p.grad = TwoTensor(torch.ones(100), torch.ones(100))
    optimizer.step()
    return [p]


def distributed_tensor(build):
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    p = nn.Parameter(distribute_tensor(torch.zeros(100), init_device_mesh("cpu", (1,)), [Shard(0)]))
    optimizer = build([p])
    p.grad = torch.ones_like(p)
    optimizer.step()
    return [p]


def expanded_gradient(build):
    p = parameter()
    optimizer = build([p])
    p.grad = torch.ones(1).expand(SIZE)
    optimizer.step()
    return [p]


def transposed_gradient(build):
    p = nn.Parameter(torch.zeros(300, 1000))
    optimizer = build([p])
    p.grad = torch.linspace(-1, 1, SIZE).view(1000, 300).T
    optimizer.step()
    return [p]


def transposed_parameter(build):
    p = nn.Parameter(torch.linspace(-1, 1, SIZE).view(1000, 300).T)
    return steps(build([p]), p)


def strided_parameter(build):
    p = nn.Parameter(torch.linspace(-1, 1, 2 * SIZE)[::2])
    return steps(build([p]), p)


def expanded_parameter(build):
    p = nn.Parameter(torch.zeros(1).expand(SIZE))
    return steps(build([p]), p)


def overlapping_parameters(build):
    base = torch.linspace(-1, 1, SIZE + 7)
    p, q = nn.Parameter(base[:SIZE]), nn.Parameter(base[7:])
    return steps(build([p, q]), p, q)


def tied_parameters(build):
    base = torch.linspace(-1, 1, SIZE)
    p, q = nn.Parameter(base), nn.Parameter(base)
    return steps(build([p, q]), p, q)


def gradient_in_the_memory_of_the_parameter(build):
    base = torch.linspace(-1, 1, SIZE + 1)
    p = nn.Parameter(base[1:])
    optimizer = build([p])
    p.grad = base[:SIZE]
    optimizer.step()
    return [p]


def shared_gradient(build):
    p, q = parameter(), parameter()
    optimizer = build([p, q])
    give_gradients(p)
    q.grad = p.grad
    optimizer.step()
    return [p, q]


def empty_and_zero_dimensional_parameters(build):
    parameters = [nn.Parameter(torch.zeros(0, 3)), nn.Parameter(torch.tensor(0.5)), parameter(5)]
    return steps(build(parameters), *parameters)


def memory_of_a_wrong_size(build):
    return changed_memory(build, lambda value: value[:10].clone())


def memory_of_a_wrong_dtype(build):
    return changed_memory(build, lambda value: value.double())


def memory_on_no_device(build):
    return changed_memory(build, lambda value: value.to("meta"))


def changed_memory(build, change):
    p = parameter()
    optimizer = build([p])
    steps(optimizer, p)
    optimizer.state[p].update({k: change(v) for k, v in optimizer.state[p].items() if isinstance(v, torch.Tensor)})
    return steps(optimizer, p)


def memory_of_whole_numbers(build):
    return changed_memory(build, lambda value: value.long())


def sparse_memory(build):
    return changed_memory(build, lambda value: value.to_sparse())


def expanded_memory(build):
    return changed_memory(build, lambda value: value[:1].expand(SIZE))


def complex_data(build):
    p = parameter()
    optimizer = build([p])
    steps(optimizer, p)
    p.data = p.data.to(torch.complex64)
    p.grad = None
    return steps(optimizer, p)


def memory_that_is_missing(build):
    p = parameter()
    optimizer = build([p])
    steps(optimizer, p)
    for name in [name for name, value in optimizer.state[p].items() if isinstance(value, torch.Tensor)][:1]:
        del optimizer.state[p][name]
    return steps(optimizer, p)


def memory_that_is_text(build):
    return changed_memory(build, lambda value: "0.5")


def dtype_changed_in_mid_run(build):
    p = parameter()
    optimizer = build([p])
    steps(optimizer, p)
    p.data = p.data.double()
    p.grad = None
    return steps(optimizer, p)


def parameter_on_no_device(build):
    p = nn.Parameter(torch.zeros(10, device="meta"))
    steps(build([p]), p)
    return []


def gradient_resized_in_place(build):
    p = parameter(10)
    optimizer = build([p])
    give_gradients(p)
    p.grad.resize_(3)
    optimizer.step()
    return [p]


def gradient_with_a_graph(build):
    p = parameter(10)
    optimizer = build([p])
    (p**3).sum().backward(create_graph=True)
    optimizer.step()
    result = p.detach().clone()
    p.grad = None  # breaks the cycle that create_graph makes
    return [result]


def pickled_optimizer(build):
    p = parameter()
    optimizer = build([p])
    steps(optimizer, p)
    again = pickle.loads(pickle.dumps(optimizer))
    return steps(again, again.param_groups[0]["params"][0])


def copied_optimizer(build):
    p = parameter()
    optimizer = build([p])
    steps(optimizer, p)
    again = copy.deepcopy(optimizer)
    del optimizer, p
    return steps(again, again.param_groups[0]["params"][0])


def channels_last_gradient_of_a_plain_weight(build):
    p = nn.Parameter(torch.linspace(-1, 1, 8 * 6 * 9).view(8, 6, 3, 3))
    optimizer = build([p])
    p.grad = p.detach().cos().contiguous(memory_format=torch.channels_last)
    optimizer.step()
    return [p]


def plain_gradient_of_a_channels_last_weight(build):
    p = nn.Parameter(torch.linspace(-1, 1, 8 * 6 * 9).view(8, 6, 3, 3).contiguous(memory_format=torch.channels_last))
    optimizer = build([p])
    p.grad = p.detach().cos().contiguous()
    optimizer.step()
    return [p]


CASES = {name: case for name, case in list(globals().items()) if callable(case) and getattr(case, "__code__", None) is not None}
CASES = {name: case for name, case in CASES.items() if case.__code__.co_varnames[: case.__code__.co_argcount] == ("build",)}


def survive(case, build):
    """Run a case on both engines in a forked child; return what came of it."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            fused = [p.detach().clone() for p in case(lambda params: build(params, fused=None))]
            plain = [p.detach().clone() for p in case(lambda params: build(params, fused=False))]
            same = len(fused) == len(plain) and all(torch.equal(a, b) for a, b in zip(fused, plain, strict=True))
            text = "right" if same else "wrong"
        except BaseException as error:
            where = traceback.extract_tb(error.__traceback__)[-1]
            text = f"error: {type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''} ({where.name})"
        os.write(write, text[:4000].encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        text = pipe.read().decode()
    _, status = os.waitpid(child, 0)
    return f"signal {os.WTERMSIG(status)}" if os.WIFSIGNALED(status) else text


if __name__ == "__main__":
    import warnings

    sys.path.insert(0, os.path.dirname(__file__))
    from catalogue import build as build_by_name

    warnings.simplefilter("ignore")
    name = sys.argv[1]
    # Code is compiled before the forks, so that a child spends no seconds on it.
    for prior_dtype in (torch.float32, torch.float64):
        first = nn.Parameter(torch.zeros(8, dtype=prior_dtype))
        steps(build_by_name(name, [first]), first)
    print(
        json.dumps({label: survive(case, lambda params, **kw: build_by_name(name, params, **kw)) for label, case in CASES.items()})
    )
