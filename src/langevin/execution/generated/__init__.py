"""The update of an optimizer on a GPU: the formula and its noise, compiled by `torch.compile`.

`code` turns the program that `fused.trace` traced into a function of flat tensors, `compiled`
compiles and calls it, and `layout` checks the tensors and computes the addresses of their elements.
"""

from langevin.execution.generated.compiled import Generated, generate
from langevin.execution.generated.layout import DEVICES, takes

__all__ = ["DEVICES", "Generated", "generate", "takes"]
