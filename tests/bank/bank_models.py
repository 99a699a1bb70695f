"""Models, helpers and child processes that the tests of the bank share."""

import hashlib
import json
import os
import pickle
import subprocess
import sys
from pathlib import Path

import torch
from torch import nn

import langevin.storage.journal
from langevin.nn.bank import SampleBank

SOURCE = str(Path(langevin.storage.journal.__file__).parents[1])

# The bank without the rest of the package: children start in half the time.
PRELUDE = """
import os, sys, torch, types
from torch import nn
sys.modules["langevin"] = types.ModuleType("langevin")
sys.modules["langevin"].__path__ = [sys.argv[1]]
from langevin.nn import bank

def leave():
    torch.distributed.destroy_process_group()
    sys.stdout.flush()
    os._exit(0)  # gloo's threads may still hold Python objects, and abort the process when the interpreter ends (pytorch#179291)
"""


def two_ranks(code, folder):
    """Run code in two processes that find each other in a folder; its arguments are SOURCE, the folder and the rank."""
    command = [sys.executable, "-W", "ignore", "-c", code, SOURCE, str(folder)]
    options = {
        "stdout": subprocess.PIPE,
        "stderr": subprocess.PIPE,
        "text": True,
        "env": {**os.environ, "GLOO_SOCKET_IFNAME": "lo"},
    }
    workers = [subprocess.Popen([*command, str(rank)], **options) for rank in range(2)]
    try:
        outputs = [worker.communicate(timeout=120) for worker in workers]
    finally:
        for worker in workers:
            worker.kill()
    return [(worker.returncode, *output) for worker, output in zip(workers, outputs, strict=True)]


def seeded(make, seed=0):
    """Build a module with the global generator put back afterwards: conftest checks that the bank never uses it."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return make()


def small(seed=0):
    parts = lambda: (nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 2))  # noqa: E731
    return nn.Sequential(*seeded(parts, seed))


def sealed(lines):
    """Return the text of a manifest with these lines, whose seals are made anew: a forgery, not damage."""
    entries, seal = [json.loads(line) for line in lines], ""
    for entry in entries:
        bare = {name: value for name, value in entry.items() if name != "seal"}
        seal = entry["seal"] = hashlib.sha256(f"{seal} {json.dumps(bare)}".encode()).hexdigest()[:32]
    return "".join(json.dumps(entry) + "\n" for entry in entries)


def linear(*shape):
    return seeded(lambda: nn.Linear(*shape))


def randn(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


def filled(path, count=3, **options):
    bank = SampleBank(path, **options)
    models = [small(seed) for seed in range(count)]
    for seed, model in enumerate(models):
        bank.add(model, step=seed, loss=seed / 2)
    return bank, models


def same(state, model):
    expected = model.state_dict()
    return list(state) == list(expected) and all(
        torch.equal(state[k], v) and state[k].dtype == v.dtype for k, v in expected.items()
    )


def whole(bank):
    """(step, content) of every draw; reading checks every file."""
    return [(draw.step, bank.state_dict(i)["0.weight"].tolist()) for i, draw in enumerate(bank.draws)]


def damage(path, how):
    data = bytearray(path.read_bytes())
    if how == "flip":
        data[-1] ^= 1
        path.write_bytes(data)
    elif how == "cut":
        path.write_bytes(data[:-7])
    elif how == "missing":
        path.unlink()
    elif how == "foreign":
        path.write_bytes(pickle.dumps({"a": 1}))
