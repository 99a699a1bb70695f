"""Run tests of compiled programs under AddressSanitizer and UndefinedBehaviorSanitizer: `python tools/sanitize.py` (needs gcc).

The process starts itself again with the sanitizers' libraries preloaded. A bad access of generated C stops it with a report.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
FLAGS = ("-O1", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=undefined", "-fno-omit-frame-pointer")
LIBRARIES = ("libasan.so", "libubsan.so", "libstdc++.so.6")
TESTS = ("test_random_programs.py", "test_program_memory.py", "test_operations.py::test_views_and_copies_match_torch",
         "test_operations.py::test_indexing_matches_torch", "test_operations.py::test_mutations_match_torch",
         "test_operations.py::test_reductions_match_torch", "test_operations.py::test_linear_algebra_matches_torch")  # fmt: skip


def main() -> int:
    """Run the tests."""
    if "LD_PRELOAD" not in os.environ:
        found = [subprocess.check_output(["gcc", f"-print-file-name={name}"], text=True).strip() for name in LIBRARIES]
        options = {"LD_PRELOAD": " ".join(found), "ASAN_OPTIONS": "detect_leaks=0:protect_shadow_gap=0"}
        return subprocess.run([sys.executable, *sys.argv], env={**os.environ, **options}, check=False).returncode
    import pytest

    from langevin.compiler import program

    load = program.load

    def sanitized(text: str, flags: tuple[str, ...] = ()) -> Any:
        return load(text, (*flags, *FLAGS), keep=False)

    program.load = sanitized
    folder = ROOT / "tests" / "execution"
    return int(pytest.main(["-q", "-n", "0", "-p", "no:cacheprovider", *(str(folder / test) for test in TESTS)]))


if __name__ == "__main__":
    sys.exit(main())
