"""The fused CPU engine: a kernel's `update`, traced once, becomes one pass over memory with its noise made in cache.

`symbols` records the formula, `generate` writes and compiles its loop, `table` says which tensors the loop may touch,
`known` says it again, faster, for tensors like those of the step before.
"""

from langevin.engines.fused.generate import Fused, fuse
from langevin.engines.fused.known import Known
from langevin.engines.fused.symbols import UntraceableError
from langevin.engines.fused.table import Row, clashing_rows, misfit, table_of, table_row

__all__ = ["Fused", "Known", "Row", "UntraceableError", "clashing_rows", "fuse", "misfit", "table_of", "table_row"]
