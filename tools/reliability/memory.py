"""Memory abuses of the optimizers: tensors that are not what they were, or never were what a loop over memory needs.

Each case trains two steps, does something to parameters, gradients or state, and steps again, in its own process. The step must be
the right one, equal to that of plain copies by plain torch, or fail with an error that names the optimizer, the parameters, the
gradient or the state. A signal, or another result, is a failure.
"""

from __future__ import annotations

import copy
import io
import pickle
import re
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

import langevin as lv
from tools.reliability import isolate
from tools.reliability.page import Section

__all__ = ["ABUSES", "OPTIMIZERS", "run"]

TIMEOUT = 30.0
OPTIMIZERS: dict[str, tuple[type, dict[str, Any]]] = {
    "SGLD": (lv.optim.SGLD, {}),
    "SGHMC": (lv.optim.SGHMC, {"beta": 0.8}),
    "SGNHT": (lv.optim.SGNHT, {"beta": 0.8}),
    "MSGLD": (lv.optim.MSGLD, {"bias_factor": 2.0, "beta": 0.8}),
    "MSGLD, invariant": (lv.optim.MSGLD, {"bias_factor": 2.0, "beta": 0.8, "invariant": True}),
    "ASGLD": (lv.optim.ASGLD, {"bias_factor": 2.0, "betas": (0.8, 0.95)}),
    "ASGLD, invariant": (lv.optim.ASGLD, {"bias_factor": 2.0, "betas": (0.8, 0.95), "invariant": True, "adapt_steps": 5}),
}
NAMES = re.compile(r"\b(SGLD|SGHMC|SGNHT|MSGLD|ASGLD|params?|parameters?|gradients?|grad|state|state_dict|optimizer)\b")
RIGHT = "right"  # the step of plain copies, or an error
SHARED = "shared"  # the step of plain torch on tensors that share memory in the same way, or an error
ERROR = "error"  # an error, nothing else
FREE = "free"  # anything that is finite


class World:
    """Parameters and their optimizer, two steps old."""

    def __init__(self, kind: str, params: list[Tensor] | None = None, steps: int = 2) -> None:
        """Build and take the steps."""
        self.kind, self.abuse = kind, ""
        self.params = [nn.Parameter(values(40, 30)), nn.Parameter(values(30))] if params is None else params
        self.opt = build(kind, self.params)
        self.act: Callable[[], Any] = lambda: None
        self.closure: Callable[[], Any] | None = None
        self.untouched: list[tuple[Tensor, Tensor]] = []  # memory that no step may write to, and what it holds
        for step in range(steps + 1):
            for parameter in self.params:
                parameter.grad = 0.1 * values(*parameter.shape, at=step + 1).to(parameter.dtype)
            if step < steps:
                self.opt.step()

    @property
    def weight(self) -> Tensor:
        """The first parameter, a matrix."""
        return self.params[0]

    def memory(self, number: int = 0) -> tuple[dict[str, Any], str]:
        """Return a parameter's state and the name of one of its tensors."""
        state = self.opt.state[self.params[number]]
        names = [name for name, value in state.items() if isinstance(value, Tensor) and value.ndim]
        if not names:
            raise NoMemory
        return state, names[0]


class NoMemory(Exception):
    """This optimizer has no state, so the abuse does not exist."""


def values(*shape: int, at: int = 0) -> Tensor:
    """Return normals at an address."""
    return lv.random.normal(3, 0, at, int(np.prod(shape))).reshape(shape)


def build(kind: str, params: Any, **changes: Any) -> Any:
    cls, settings = OPTIMIZERS[kind]
    return cls(params, **{"lr": 0.02, "num_data": 50, "prior": lv.priors.gaussian(std=0.7), "seed": 5, **settings, **changes})


ABUSES: dict[str, Callable[[World], str]] = {}


def abuse(function: Callable[[World], str]) -> Callable[[World], str]:
    """Register an abuse under its name."""
    ABUSES[function.__name__.strip("_").replace("_", " ")] = function
    return function


# ---- sizes


@abuse
def _state_of_a_larger_architecture(world: World) -> str:
    other = World(world.kind, [nn.Parameter(values(400, 300)), nn.Parameter(values(300))])
    world.act = lambda: world.opt.load_state_dict(other.opt.state_dict())
    return ERROR if _state_tensors(other.opt) else RIGHT


@abuse
def _state_of_a_smaller_architecture(world: World) -> str:
    other = World(world.kind, [nn.Parameter(values(4, 3)), nn.Parameter(values(3))])
    world.act = lambda: world.opt.load_state_dict(other.opt.state_dict())
    return ERROR if _state_tensors(other.opt) else RIGHT


@abuse
def _state_of_more_parameters(world: World) -> str:
    other = World(world.kind, [nn.Parameter(values(40, 30)), nn.Parameter(values(30)), nn.Parameter(values(3))])
    world.act = lambda: world.opt.load_state_dict(other.opt.state_dict())
    return ERROR


@abuse
def _parameter_grown_with_its_gradient(world: World) -> str:
    world.weight.grad = None
    world.weight.data = values(400, 300)
    world.weight.grad = values(400, 300, at=9)
    return RIGHT


@abuse
def _parameter_grown_with_a_stale_gradient(world: World) -> str:
    world.weight.data = values(400, 300)
    return ERROR


@abuse
def _parameter_shrunk_with_a_stale_gradient(world: World) -> str:
    world.weight.data = values(4, 3)
    return ERROR


@abuse
def _parameter_transposed_with_a_stale_gradient(world: World) -> str:
    world.weight.data = world.weight.data.T.contiguous()
    return ERROR


@abuse
def _gradient_resized_in_place(world: World) -> str:
    world.weight.grad.resize_(4, 3)
    return ERROR


@abuse
def _gradient_hook_that_resizes(world: World) -> str:
    world.weight.grad = None
    world.weight.register_post_accumulate_grad_hook(lambda parameter: parameter.grad.resize_(2, 2))
    world.weight.square().sum().backward()
    return ERROR


@abuse
def _gradient_hook_that_replaces_the_parameter(world: World) -> str:
    def replace(parameter: Tensor) -> None:
        parameter.data = values(300, 100)

    world.weight.grad = None
    world.weight.register_post_accumulate_grad_hook(replace)
    world.act = lambda: world.weight.square().sum().backward()
    return ERROR


@abuse
def _closure_that_replaces_the_parameter(world: World) -> str:
    def closure() -> None:
        world.weight.data = values(300, 100)

    world.closure = closure
    return ERROR


@abuse
def _swapped_tensors(world: World) -> str:
    world.weight.grad = None
    torch.utils.swap_tensors(world.weight, nn.Parameter(values(400, 300)))
    world.weight.grad = values(400, 300, at=9)
    return RIGHT


@abuse
def _zero_size_parameter(world: World) -> str:
    world.__init__(world.kind, [nn.Parameter(torch.zeros(0, 3)), nn.Parameter(values(30))])  # type: ignore[misc]
    return RIGHT


@abuse
def _zero_dimensional_parameter(world: World) -> str:
    world.__init__(world.kind, [nn.Parameter(torch.tensor(0.5)), nn.Parameter(values(30))])  # type: ignore[misc]
    return RIGHT


# ---- storage


@abuse
def _storage_of_the_parameter_freed(world: World) -> str:
    world.weight.data.untyped_storage().resize_(0)
    return ERROR


@abuse
def _storage_of_the_gradient_freed(world: World) -> str:
    world.weight.grad.untyped_storage().resize_(0)
    return ERROR


@abuse
def _storage_of_the_state_freed(world: World) -> str:
    state, name = world.memory()
    state[name].untyped_storage().resize_(0)
    return ERROR


@abuse
def _storage_of_the_parameter_cut(world: World) -> str:
    world.weight.data.untyped_storage().resize_(64)
    return ERROR


@abuse
def _storage_of_the_gradient_cut(world: World) -> str:
    world.weight.grad.untyped_storage().resize_(64)
    return ERROR


@abuse
def _parameter_in_the_middle_of_a_buffer(world: World) -> str:
    buffer = values(3000, at=8)
    world.weight.data = buffer[900:2100].view(40, 30)
    world.untouched = [(buffer[:900], buffer[:900].clone()), (buffer[2100:], buffer[2100:].clone())]
    return RIGHT


@abuse
def _parameter_a_strided_view(world: World) -> str:
    buffer = values(80, 30, at=8)
    world.weight.data = buffer[::2]
    world.untouched = [(buffer[1::2], buffer[1::2].clone())]
    return RIGHT


@abuse
def _parameter_a_transposed_view(world: World) -> str:
    world.weight.data = values(30, 40, at=8).T
    return RIGHT


@abuse
def _parameter_channels_last(world: World) -> str:
    params = [nn.Parameter(values(4, 3, 5, 5).contiguous(memory_format=torch.channels_last)), nn.Parameter(values(30))]
    world.__init__(world.kind, params)  # type: ignore[misc]
    return RIGHT


@abuse
def _parameter_at_an_odd_address(world: World) -> str:
    raw = bytearray(1200 * 4 + 1)
    world.weight.data = torch.frombuffer(raw, dtype=torch.float32, count=1200, offset=1).view(40, 30).copy_(values(40, 30))
    return RIGHT


@abuse
def _parameter_in_shared_memory(world: World) -> str:
    world.weight.data.share_memory_()
    return RIGHT


@abuse
def _parameter_expanded(world: World) -> str:
    world.weight.data = torch.ones(1).expand(40, 30)
    return ERROR


@abuse
def _parameter_that_overlaps_itself(world: World) -> str:
    world.weight.data = values(69).as_strided((40, 30), (1, 1))
    return SHARED


@abuse
def _parameters_that_share_storage(world: World) -> str:
    buffer = values(40, 30)
    world.__init__(world.kind, [nn.Parameter(buffer), nn.Parameter(buffer)])  # type: ignore[misc]
    return SHARED


@abuse
def _parameters_that_overlap_in_part(world: World) -> str:
    buffer = values(100)
    world.__init__(world.kind, [nn.Parameter(buffer[:60]), nn.Parameter(buffer[40:])])  # type: ignore[misc]
    return SHARED


@abuse
def _the_same_parameter_twice(world: World) -> str:
    parameter = nn.Parameter(values(30))
    world.__init__(world.kind, [parameter, parameter])  # type: ignore[misc]
    return SHARED


# ---- gradients


@abuse
def _gradient_expanded(world: World) -> str:
    world.weight.grad = torch.ones(1).expand(40, 30)
    return RIGHT


@abuse
def _gradient_that_overlaps_itself(world: World) -> str:
    world.weight.grad = values(69).as_strided((40, 30), (1, 1))
    return RIGHT


@abuse
def _gradient_transposed(world: World) -> str:
    world.weight.grad = values(30, 40).T
    return RIGHT


@abuse
def _gradient_with_the_negative_bit(world: World) -> str:
    world.weight.grad = torch.complex(values(40, 30), values(40, 30, at=4)).conj().imag
    return RIGHT


@abuse
def _parameter_with_the_negative_bit(world: World) -> str:
    world.weight.data = torch.complex(values(40, 30), values(40, 30, at=4)).conj().imag
    return RIGHT


@abuse
def _gradient_an_efficient_zero(world: World) -> str:
    world.weight.grad = torch._efficientzerotensor((40, 30))
    return RIGHT


@abuse
def _gradient_of_another_dtype(world: World) -> str:
    world.weight.data = world.weight.data.double()
    return RIGHT


@abuse
def _parameter_made_half(world: World) -> str:
    world.weight.data = world.weight.data.half()
    return RIGHT


@abuse
def _parameter_made_an_integer(world: World) -> str:
    world.weight.data = torch.ones(40, 30, dtype=torch.int32)
    return ERROR


@abuse
def _parameter_made_complex(world: World) -> str:
    world.weight.data = torch.ones(40, 30, dtype=torch.complex64)
    return ERROR


@abuse
def _parameter_moved_to_meta(world: World) -> str:
    world.weight.data = torch.empty(40, 30, device="meta")
    return ERROR


@abuse
def _gradient_moved_to_meta(world: World) -> str:
    world.weight.grad = torch.empty(40, 30, device="meta")
    return ERROR


@abuse
def _gradient_sparse(world: World) -> str:
    world.weight.grad = torch.eye(40)[:, :30].to_sparse()
    return ERROR


@abuse
def _gradient_compressed_sparse(world: World) -> str:
    world.weight.grad = torch.eye(40)[:, :30].to_sparse_csr()
    return ERROR


@abuse
def _gradient_with_a_graph(world: World) -> str:
    world.weight.grad = torch.autograd.grad(world.weight.pow(3).sum(), world.weight, create_graph=True)[0]
    return RIGHT


@abuse
def _gradient_an_inference_tensor(world: World) -> str:
    with torch.inference_mode():
        gradient = values(40, 30, at=4) * 1.0
    world.weight.grad = gradient
    return RIGHT


@abuse
def _gradient_is_the_parameter(world: World) -> str:
    world.weight.grad = world.weight.data
    return RIGHT


@abuse
def _gradient_one_element_before_the_parameter(world: World) -> str:
    buffer = values(1201)
    world.weight.data, world.weight.grad = buffer[1:].view(40, 30), buffer[:-1].view(40, 30)
    return RIGHT


@abuse
def _gradient_one_element_after_the_parameter(world: World) -> str:
    buffer = values(1201)
    world.weight.data, world.weight.grad = buffer[:-1].view(40, 30), buffer[1:].view(40, 30)
    return RIGHT


@abuse
def _gradient_is_the_state(world: World) -> str:
    state, name = world.memory()
    world.weight.grad = state[name]
    return RIGHT


@abuse
def _gradient_of_one_parameter_is_another(world: World) -> str:
    world.__init__(world.kind, [nn.Parameter(values(30)), nn.Parameter(values(30, at=3))])  # type: ignore[misc]
    world.params[1].grad = world.params[0].data
    return SHARED


# ---- kinds of tensors


@abuse
def _subclass_without_a_wrapper(world: World) -> str:
    class Named(Tensor):
        pass

    world.weight.grad = values(40, 30, at=4).as_subclass(Named)
    return RIGHT


@abuse
def _wrapper_subclass_as_gradient(world: World) -> str:
    from torch.testing._internal.two_tensor import TwoTensor

    world.weight.grad = TwoTensor(values(40, 30, at=4), values(40, 30, at=4))
    return RIGHT


@abuse
def _wrapper_subclass_as_parameter(world: World) -> str:
    from torch.testing._internal.two_tensor import TwoTensor

    params = [nn.Parameter(TwoTensor(values(40, 30), values(40, 30)))]
    world.params, world.opt = params, build(world.kind, params)
    params[0].grad = TwoTensor(values(40, 30, at=1), values(40, 30, at=1))
    return RIGHT


@abuse
def _DTensor_on_one_rank(world: World) -> str:
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    mesh = init_device_mesh("cpu", (1,))
    params = [nn.Parameter(distribute_tensor(values(40, 30), mesh, [Shard(0)]))]
    world.params, world.opt = params, build(world.kind, params)
    params[0].grad = distribute_tensor(values(40, 30, at=1), mesh, [Shard(0)])
    return RIGHT


@abuse
def _fake_tensors(world: World) -> str:
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        params = [nn.Parameter(torch.ones(40, 30))]
        params[0].grad = torch.ones(40, 30)
    world.params, world.opt = params, build(world.kind, params)
    return ERROR


@abuse
def _lazy_parameter(world: World) -> str:
    params = [nn.UninitializedParameter()]
    world.act = lambda: setattr(world, "opt", build(world.kind, params))
    world.params = []
    return FREE  # it may be taken: it has no gradient yet


@abuse
def _nested_tensor_as_parameter(world: World) -> str:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        nested = torch.nested.nested_tensor([values(3), values(5)])
    parameter = nn.Parameter(nested)
    parameter.grad = nested.detach().clone()
    world.params = [parameter]
    world.act = lambda: setattr(world, "opt", build(world.kind, [parameter]))
    return ERROR


# ---- state


@abuse
def _state_of_another_size(world: World) -> str:
    state, name = world.memory()
    state[name] = values(2, 2)
    return ERROR


@abuse
def _state_of_one_element(world: World) -> str:
    state, name = world.memory()
    state[name] = torch.zeros(1)
    return ERROR


@abuse
def _state_transposed(world: World) -> str:
    state, name = world.memory()
    state[name] = state[name].T.contiguous()
    return ERROR


@abuse
def _state_not_contiguous(world: World) -> str:
    state, name = world.memory()
    state[name] = state[name].T.contiguous().T
    return RIGHT


@abuse
def _state_expanded(world: World) -> str:
    state, name = world.memory()
    state[name] = torch.zeros(1).expand(40, 30)
    return ERROR


@abuse
def _state_in_double(world: World) -> str:
    state, name = world.memory()
    state[name] = state[name].double()
    return RIGHT


@abuse
def _state_in_half(world: World) -> str:
    state, name = world.memory()
    state[name] = state[name].half()
    return RIGHT


@abuse
def _state_of_integers(world: World) -> str:
    state, name = world.memory()
    state[name] = state[name].long()
    return ERROR


@abuse
def _state_complex(world: World) -> str:
    state, name = world.memory()
    state[name] = state[name].to(torch.complex64)
    return ERROR


@abuse
def _state_on_meta(world: World) -> str:
    state, name = world.memory()
    state[name] = state[name].to("meta")
    return ERROR


@abuse
def _state_sparse(world: World) -> str:
    state, name = world.memory()
    state[name] = state[name].to_sparse()
    return ERROR


@abuse
def _state_a_number(world: World) -> str:
    state, name = world.memory()
    state[name] = 0.0
    return ERROR


@abuse
def _state_a_text(world: World) -> str:
    state, name = world.memory()
    state[name] = "zero"
    return ERROR


@abuse
def _state_with_a_name_missing(world: World) -> str:
    state, name = world.memory()
    del state[name]
    return ERROR


@abuse
def _state_cleared(world: World) -> str:
    world.opt.state.clear()
    return FREE  # torch's way to start afresh


@abuse
def _state_with_the_negative_bit(world: World) -> str:
    state, name = world.memory()
    state[name] = torch.complex(state[name], state[name]).conj().imag
    return RIGHT


@abuse
def _state_is_the_parameter(world: World) -> str:
    state, name = world.memory()
    state[name] = world.weight.data
    return SHARED


@abuse
def _state_shared_by_two_parameters(world: World) -> str:
    world.__init__(world.kind, [nn.Parameter(values(30)), nn.Parameter(values(30, at=3))])  # type: ignore[misc]
    state, name = world.memory()
    world.opt.state[world.params[1]][name] = state[name]
    return SHARED


@abuse
def _state_with_a_graph(world: World) -> str:
    state, name = world.memory()
    state[name] = state[name].requires_grad_() * 1.0
    return RIGHT


# ---- the optimizer as a whole


@abuse
def _pickled_and_unpickled(world: World) -> str:
    def again() -> None:
        world.opt = pickle.loads(pickle.dumps(world.opt))
        world.params = world.opt.param_groups[0]["params"]
        for parameter in world.params:
            parameter.grad = torch.full_like(parameter, 0.1)

    world.act = again
    return RIGHT


@abuse
def _deep_copied(world: World) -> str:
    def again() -> None:
        world.untouched = [(parameter.data, parameter.data.clone()) for parameter in world.params]
        world.untouched += [(value, value.clone()) for value in _state_tensors(world.opt)]
        world.opt = copy.deepcopy(world.opt)
        world.params = world.opt.param_groups[0]["params"]

    world.act = again
    return RIGHT


@abuse
def _saved_and_loaded_by_torch(world: World) -> str:
    def again() -> None:
        file = io.BytesIO()
        torch.save(world.opt.state_dict(), file)
        file.seek(0)
        world.opt.load_state_dict(torch.load(file, weights_only=True))

    world.act = again
    return RIGHT


@abuse
def _state_of_another_sampler(world: World) -> str:
    other = World("SGHMC" if world.kind != "SGHMC" else "ASGLD")
    world.act = lambda: world.opt.load_state_dict(other.opt.state_dict())
    return ERROR


@abuse
def _state_of_torch_Adam(world: World) -> str:
    other = torch.optim.Adam(world.params)
    other.step()
    world.act = lambda: world.opt.load_state_dict(other.state_dict())
    return ERROR


def _loads(change: Callable[[dict[str, Any]], None]) -> Callable[[World], str]:
    def case(world: World) -> str:
        state = copy.deepcopy(world.opt.state_dict())
        change(state)
        world.act = lambda: world.opt.load_state_dict(state)
        return FREE if "params" in change.__code__.co_names and not _state_tensors(world.opt) else ERROR

    return case


for _label, _change in {
    "a step of -1": lambda state: state["param_groups"][0].update(step=-1),
    "a step of 2**60": lambda state: state["param_groups"][0].update(step=2**60),
    "a step in words": lambda state: state["param_groups"][0].update(step="five"),
    "a step of NaN": lambda state: state["param_groups"][0].update(step=float("nan")),
    "no step": lambda state: state["param_groups"][0].pop("step"),
    "no lr": lambda state: state["param_groups"][0].pop("lr"),
    "no num_data": lambda state: state["param_groups"][0].pop("num_data"),
    "a seed of -1": lambda state: state["param_groups"][0].update(seed=-1),
    "no groups": lambda state: state.pop("param_groups"),
    "no state": lambda state: state.pop("state"),
    "groups that are text": lambda state: state.update(param_groups="text"),
    "parameters twice": lambda state: state["param_groups"][0].update(params=[0, 0]),
}.items():
    ABUSES[f"loaded with {_label}"] = _loads(_change)


# ---- what is right


class Values(NamedTuple):
    """Plain numbers of parameters and state."""

    params: list[Tensor]
    state: list[Tensor]


def _state_tensors(opt: Any) -> list[Tensor]:
    return [value for state in opt.state.values() for value in state.values() if isinstance(value, Tensor)]


def _plain(tensor: Tensor) -> Tensor:
    """Return a contiguous copy of a tensor's values."""
    tensor = tensor.detach()
    if hasattr(tensor, "full_tensor"):
        tensor = tensor.full_tensor()
    if type(tensor).__name__ == "TwoTensor":
        tensor = tensor.a
    return torch.empty(tensor.shape, dtype=tensor.dtype).copy_(tensor.as_subclass(Tensor))


def _values(params: list[Tensor], opt: Any) -> Values:
    return Values([_plain(parameter) for parameter in params], [_plain(value) for value in _state_tensors(opt)])


def _by_plain_copies(world: World) -> Values | None:
    """Return the step of plain copies in torch; None if sizes do not fit and only an error is right."""
    params = [nn.Parameter(_plain(parameter)) for parameter in world.params]
    for parameter, original in zip(params, world.params, strict=True):
        if original.grad is not None:
            if original.grad.shape != parameter.shape:
                return None
            parameter.grad = _plain(original.grad).to(parameter.dtype)
        sizes = {value.shape for value in world.opt.state[original].values() if isinstance(value, Tensor) and value.ndim}
        if sizes - {parameter.shape}:
            return None
    state = world.opt.state_dict()
    state = {
        "state": {
            index: {name: _plain(value) if isinstance(value, Tensor) else value for name, value in entry.items()}
            for index, entry in state["state"].items()
        },
        "param_groups": [{**group, "fused": False} for group in state["param_groups"]],
    }
    twin = build(world.kind, params, fused=False)
    twin.load_state_dict(state)
    twin.step()
    return _values(params, twin)


def _by_plain_torch(world: World) -> Values:
    """Return the step in torch after the same abuse, with memory still shared."""
    twin = World(world.kind)
    ABUSES[world.abuse](twin)
    twin.act()
    for group in twin.opt.param_groups:
        group["fused"] = False
    twin.opt.step()
    return _values(twin.params, twin.opt)


def _close(one: Values, other: Values) -> str | None:
    loose = 1e-2 if any(tensor.dtype == torch.float16 for tensor in (*one.params, *one.state)) else 1e-5
    for what, mine, theirs in (("parameter", one.params, other.params), ("state", one.state, other.state)):
        if len(mine) != len(theirs):
            return f"{len(mine)} {what} tensors instead of {len(theirs)}"
        for number, (a, b) in enumerate(zip(mine, theirs, strict=True)):
            if a.shape != b.shape or not torch.allclose(a.double(), b.double(), rtol=loose, atol=loose):
                off = (a.double() - b.double()).abs().max().item() if a.shape == b.shape else float("nan")
                return f"{what} {number} is off by up to {off:.3g}"
    return None


def attempt(kind: str, name: str) -> tuple[str, str]:
    """Abuse and step; return the verdict and a text."""
    warnings.simplefilter("ignore")
    try:
        world = World(kind)
        expected = ABUSES[name](world)
        world.abuse = name
    except NoMemory:
        return "does not exist", "the optimizer has no state"
    except Exception as error:
        return "torch refuses", f"{type(error).__name__}: {error}"
    try:
        world.act()
    except Exception as error:
        return _judge(error)
    try:
        oracle = {RIGHT: _by_plain_copies, SHARED: _by_plain_torch}.get(expected, lambda world: None)(world)
    except Exception as error:
        oracle, expected = None, f"{expected}, but plain torch fails: {type(error).__name__}: {error}"
    try:
        world.opt.step() if world.closure is None else world.opt.step(world.closure)
    except Exception as error:
        return _judge(error)
    for memory, before in world.untouched:
        if not torch.equal(memory, before):
            return "wrong", "the step wrote to memory that is not its own"
    if expected == FREE:
        finite = all(bool(torch.isfinite(parameter).all()) for parameter in world.params)
        return ("right", "") if finite else ("wrong", "the result is not finite")
    if oracle is None:
        return "wrong", f"the step went through; expected: {expected}"
    difference = _close(_values(world.params, world.opt), oracle)
    return ("wrong", difference) if difference else ("right", "")


def _judge(error: Exception) -> tuple[str, str]:
    text = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
    clear = isinstance(error, (ValueError, TypeError, RuntimeError)) and NAMES.search(str(error))
    return ("refused" if clear else "obscure error"), text


def run(quick: bool, seed: int = 0) -> Section:
    """Try every abuse with every optimizer."""
    section = Section("Abused memory of the optimizers", seed)
    kinds = ["MSGLD"] if quick else list(OPTIMIZERS)
    for kind in kinds:
        World(kind)  # the parent compiles, its children inherit the code
    cases = [(kind, name) for name in ABUSES for kind in kinds]
    for index, outcome in isolate.run([lambda case=case: attempt(*case) for case in cases], timeout=TIMEOUT, alone=True):
        kind, name = cases[index]
        verdict, text = outcome.value if outcome.fate is None else ("crash" if "died" in outcome.fate else "hang", outcome.fate)
        section.count(verdict)
        if verdict not in ("right", "refused", "does not exist", "torch refuses"):
            section.fail(verdict, f"{name} ({kind}): {text}", key=(name, verdict))
    section.notes.append(f"{len(ABUSES)} abuses, {len(kinds)} optimizers, a process each")
    return section


if __name__ == "__main__":
    found = run(quick=False)
    print(found.text())
    print(found.counts)
