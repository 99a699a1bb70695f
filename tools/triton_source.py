"""Without a GPU: the Triton source of the generated update, run in Triton's interpreter and assembled for an A100.

    python tools/triton_source.py interpret FOLDER    runs it on CPU tensors against plain torch, and leaves the source there
    python tools/triton_source.py assemble FOLDER     makes PTX and machine code (sm_80) of what was left

Two processes, since Triton asks at its import whether it is to interpret. Needs the package triton: 3.9.0 was tried.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import re
import sys
from collections import Counter
from pathlib import Path

MODE, FOLDER = sys.argv[1], Path(sys.argv[2])
if MODE == "interpret":
    os.environ["TRITON_INTERPRET"] = "1"

import torch  # noqa: E402
import triton  # noqa: E402
import triton.language as tl  # noqa: E402
from triton.backends.compiler import GPUTarget  # noqa: E402

TARGET = GPUTarget("cuda", 80, 32)


class NoDriver:
    """Triton asks for a GPU's name even where it interprets."""

    def get_current_target(self):  # noqa: D102
        return TARGET

    def get_active_torch_device(self):  # noqa: D102
        return torch.device("cpu")


def interpret():
    """Run the kernels on CPU tensors, against plain torch."""
    from catalogue import build, network, train
    from torch._inductor.runtime import triton_helpers
    from torch._inductor.utils import run_and_get_code

    from langevin.execution.generated import compiled, layout
    from langevin.optim import update
    from langevin.random import KINDS, normal_reference

    triton.runtime.driver.set_active(NoDriver())
    for name in ("log", "sin", "cos", "sqrt", "rsqrt"):  # the interpreter knows none of a GPU's library
        setattr(triton_helpers.libdevice, name, lambda x, name=name: getattr(tl, name)(x))  # as it is when called
    compiled.compiler = functools.partial(torch.compile, dynamic=True, fullgraph=True, options={"cpu_backend": "triton"})
    layout.DEVICES, layout.SMALL, update.has_fused_engine, KINDS["normal"] = {"cpu"}, 10, lambda: False, normal_reference
    for name in ("SGLD", "ASGLD, invariant"):
        for dtype in (torch.float32, torch.float64):
            models = network(dtype), network(dtype)
            got, sources = run_and_get_code(lambda m=models[0], n=name, d=dtype: train(m, build(n, m.parameters()), 3, d))
            want = train(models[1], build(name, models[1].parameters(), fused=False), 3, dtype)
            kernels = sum(source.count("@triton.jit") for source in sources)
            error = float((got - want).abs().max() / torch.finfo(dtype).eps)
            print(f"{name}, {dtype}: {kernels} kernels in 2 functions, largest difference {error:.2g} eps")
            assert kernels == 2
            assert compiled._warned == set()
            assert error <= 8
            for number, source in enumerate(sources):
                (FOLDER / f"{name.split(',')[0]}-{str(dtype)[6:]}-{number}.txt").write_text(source)


def assemble():
    """Make machine code of the kernels that were left."""
    for path in sorted(FOLDER.glob("*.txt")):
        name, text = re.search(r"async_compile\.triton\('(\w+)', '''(.*?)''', device_str", path.read_text(), re.S).groups()
        types = eval(re.search(r"triton_meta=\{'signature': (\{.*?\})", text).group(1))
        head = "import triton, triton.language as tl\nfrom torch._inductor.runtime import triton_helpers\n"
        head += "from torch._inductor.runtime.triton_helpers import libdevice, math as tl_math\n"
        module = path.with_suffix(".py")
        module.write_text(head + text[text.index("@triton.jit") :])
        spec = importlib.util.spec_from_file_location(path.stem, module)
        found = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(found)
        aligned = {(k,): [["tt.divisibility", 16]] for k, kind in enumerate(types.values()) if kind.startswith("*")}
        source = triton.compiler.ASTSource(getattr(found, name), types, {"XBLOCK": 512}, aligned)
        made = triton.compile(source, target=TARGET, options={"num_warps": 4}).asm
        count = Counter(re.findall(r"^\s+(?:@%p\d+ )?([a-z]+)", made["ptx"], re.M))
        print(f"{path.stem}: {sum(count.values())} lines of PTX for 4 elements, {len(made['cubin'])} bytes of machine code")
        assert len(made["cubin"]) > 0


{"interpret": interpret, "assemble": assemble}[MODE]()
