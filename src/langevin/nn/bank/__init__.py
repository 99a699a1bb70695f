"""Posterior draws of an `nn.Module` in a folder that survives a kill at any moment.

```
bank/
  manifest.jsonl                  a journal (see `langevin.storage.journal`) that lists the draws
  draw-00000000.safetensors       the state_dict of one draw, tied tensors once, without frozen
                                  parameters beside trained ones
  draw-00000001.1.safetensors     the same after `update_bn` (its first revision)
  lock                            held by the process that writes; readers need no lock
```

The header of the manifest has the dtype and shape of every tensor (`["json"]` for extra state that
is not a tensor) and, under `frozen`, the names of parameters that draws do not hold, with a few of
their values. Then, by `kind`:

- `draw`: index, file, sha256, bytes, aliases (tied name -> stored name), calls (of `add`, so far),
  step, time, metrics;
- `update`: the draw `index` is now in another file with another checksum;
- `drop`: the draw `index` is gone (`max_draws`); the line is written before the file is deleted;
- `calls`: the counter of `add` calls is set; draws of later calls are gone (written by `close` and
  `rewind`).

So a kill leaves at most a temporary file, a draw without a line (later overwritten), a file whose
line marks it as gone, or half a last line. Readers ignore all four; the next writer removes them
once it holds the lock. Reading is safetensors and JSON only, so nothing in the folder can run code.
Symbolic links in the folder are refused (`langevin.storage.safe_io`).
"""

from langevin.nn.bank.files import CorruptDrawError, Draw
from langevin.nn.bank.samplebank import SampleBank

__all__ = ["CorruptDrawError", "Draw", "SampleBank"]
