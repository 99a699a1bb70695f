"""A folder of posterior draws of an `nn.Module` that survives being killed at any moment.

```
bank/
  manifest.jsonl                 a journal (see `langevin.store.journal`): the truth about the folder
  draw-00000000.safetensors      the full state_dict of one draw (parameters and buffers; a tied tensor is stored once)
  draw-00000001.1.safetensors    the same after `update_bn` (its first revision)
  lock                           held by the one process that writes; readers need no lock
```

The header of the manifest has the dtype and shape of every tensor (`["json"]` for extra state that is none). Then, by `kind`:

- `draw`: index, file, sha256, bytes, aliases (tied name -> stored name), calls (of `add`, so far), step, time, metrics;
- `update`: the draw `index` now lives in another file with another checksum;
- `drop`: the draw `index` is gone (`max_draws`); the line comes first, the file is deleted after it;
- `calls`: the counter of `add` calls is set; draws of later calls are gone (written by `close` and `rewind`).

So a kill leaves at most a temporary file, a draw without a line (later overwritten), a file whose line says it is gone, or
half a last line. Readers ignore all four; the next writer clears them away once it holds the lock. Reading is safetensors
and JSON only, so nothing in the folder can run code.
"""

from langevin.store.bank.contents import Draw
from langevin.store.bank.files import CorruptDrawError
from langevin.store.bank.samplebank import SampleBank

__all__ = ["CorruptDrawError", "Draw", "SampleBank"]
