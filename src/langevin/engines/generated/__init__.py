"""The update of an optimizer on a GPU: the formula and its noise as one kernel that `torch.compile` writes.

`code` turns the program that `fused.symbols` traced into a function of flat tensors, `compiled` runs it through the compiler, and
`places` says which tensors it may touch, and where their elements stand.
"""

from langevin.engines.generated.compiled import Generated, generate
from langevin.engines.generated.places import DEVICES, takes

__all__ = ["DEVICES", "Generated", "generate", "takes"]
