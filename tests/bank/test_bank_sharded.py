"""The bank with sharded models: four real processes started by torchrun, every sharding of one- and two-dimensional meshes."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from bank_models import PRELUDE, SOURCE

from langevin.nn.bank import SampleBank

PAGE = Path(__file__).parents[2] / "docs" / "scale_bank.md"
EXAMPLE = PAGE.read_text().partition("```python\n")[2].partition("```")[0]
WORKER = (
    PRELUDE
    + """
import json, resource, signal, warnings
import torch.distributed as dist
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, fully_shard
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.distributed.tensor.placement_types import _StridedShard
from langevin.nn.bank import SampleBank

torch.set_num_threads(1)
warnings.simplefilter("always")
warnings.showwarning = lambda message, *about: "SampleBank" in str(message) and said.append(str(message))
said = []
dist.init_process_group("gloo")
rank, folder, found = dist.get_rank(), sys.argv[2], {}
line = dist.init_device_mesh("cpu", (4,))
grid = dist.init_device_mesh("cpu", (2, 2), mesh_dim_names=("outer", "inner"))


class Net(nn.Module):
    def __init__(self, seed=0):
        super().__init__()
        torch.manual_seed(seed)
        self.first, self.norm, self.last = nn.Linear(5, 7), nn.BatchNorm1d(7), nn.Linear(7, 6)
        self.tied = nn.Linear(5, 7, bias=False)
        self.tied.weight = self.first.weight
        self.one = nn.Parameter(torch.randn(1, 4))  # no element of it is on the ranks above 0
        self.short = nn.Linear(6, 4).bfloat16()
        self.norm.running_mean.normal_()

    def forward(self, x):
        return self.short(self.last(self.norm(self.first(x)).relu() + self.tied(x)).bfloat16()) * self.one


class Parts(nn.Module):  # any layout, by hand
    def __init__(self, *layouts):
        super().__init__()
        torch.manual_seed(1)
        for k, (shape, mesh, *placements) in enumerate(layouts):
            whole = torch.randn(shape)
            setattr(self, f"p{k}", nn.Parameter(distribute_tensor(whole, mesh, placements, src_data_rank=None) if mesh else whole))


def fsdp(model, **options):
    fully_shard(model.short, **options)
    fully_shard(model, **options)
    return model


def tensor_parallel(model, mesh):
    return parallelize_module(model, mesh, {"first": ColwiseParallel(), "last": RowwiseParallel()})


def untied(model=None):
    model = model or Net()
    del model.tied  # tensor parallel replaces parameters, so tied ones come apart
    model.tied = nn.Linear(5, 7, bias=False)
    return model


S, R, Strided = Shard, Replicate(), _StridedShard
layouts = [
    ((5, 3), grid, S(0), S(1)), ((9,), grid, S(0), S(0)), ((3, 5, 2), grid, S(1), R), ((3,), grid, R, R), ((), grid, R, R),
    ((0, 4), grid, S(0), R), ((7, 2), grid, Strided(0, split_factor=2), S(0)), ((2, 11), grid, Strided(1, split_factor=3), S(0)),
    ((1, 3), line, S(0)), ((1, 3), line, S(0)),  # on the ranks above 0 both are empty, and not the same tensor
    ((6, 4), line, S(1)), ((2, 2), line, S(0)), ((3,), grid["inner"], S(0)), ((4, 3), grid["outer"], S(0)), ((3, 2), None),
    ((1, 600_000), line, S(1)), ((200_000, 2), line, S(0)), ((3, 130_000), grid, S(1), S(0)),  # of more than one block
]
kinds = {
    "fsdp": lambda: fsdp(Net(), mesh=line),
    "offload": lambda: fsdp(Net(), mesh=line, offload_policy=CPUOffloadPolicy(pin_memory=False)),
    "columns": lambda: fsdp(Net(), mesh=line, shard_placement_fn=lambda p: Shard(p.ndim - 1 if p.shape[-1] % 4 == 0 else 0)),
    "hsdp": lambda: fsdp(Net(), mesh=grid),
    "tensor parallel": lambda: tensor_parallel(untied(), line),
    "fsdp and tensor parallel": lambda: fsdp(tensor_parallel(untied(), grid["inner"]), mesh=grid["outer"]),
    "by hand": lambda: Parts(*layouts),
}
plain = {"tensor parallel": untied, "fsdp and tensor parallel": untied}
plain["by hand"] = lambda: Parts(*((shape, None) for shape, *_ in layouts))


def locals_of(model):
    return {name: (v.to_local() if isinstance(v, DTensor) else v).clone() for name, v in model.state_dict().items()}


def whole(model):
    return {name: v.full_tensor() if isinstance(v, DTensor) else v for name, v in model.state_dict().items()}


def same(a, b):
    return list(a) == list(b) and all(torch.equal(a[k], b[k]) and a[k].dtype == b[k].dtype for k in b)


def draw_of(draw):
    return [draw.index, draw.step, draw.metrics, draw.calls, draw.time, draw.sha256, sorted(draw.aliases)]


found["kinds"] = {}
for kind, make in kinds.items():
    with torch.no_grad():
        expected = plain.get(kind, Net)().state_dict()
    model = make()
    before = locals_of(model)
    with SampleBank(f"{folder}/{kind}") as bank:
        draw = bank.add(model, step=4, loss=0.5)
        about = {"draw": draw_of(draw), "draws": len(bank), "whole": same(bank.state_dict(0), expected)}
        untouched = same(locals_of(model), before)
        for value in model.state_dict().values():
            (value.to_local() if isinstance(value, DTensor) else value).zero_()
        bank.load(model, 0)
        about["loaded"], about["untouched"] = same(locals_of(model), before), untouched
        about["placements"] = sorted({str(v.placements) for v in model.state_dict().values() if isinstance(v, DTensor)})
        about["parts"] = [v.to_local().numel() for v in model.state_dict().values() if isinstance(v, DTensor)]
    found["kinds"][kind] = about

# from one sharding to another, and training between draws
other, x = kinds["hsdp"](), torch.randn(8, 5)
SampleBank.open(f"{folder}/fsdp").load(other, 0)
found["resharded"] = same(whole(other), Net().state_dict())
with SampleBank(f"{folder}/fsdp", resume=True) as bank:  # goes on with another sharding
    steps = torch.optim.SGD(other.parameters(), lr=0.1)
    for _ in range(2):
        steps.zero_grad()
        other(x).square().mean().backward()
        steps.step()
    bank.add(other)
    now = whole(other)
    found["trained"] = same(bank.state_dict(1), now) and not torch.equal(now["last.weight"], bank.state_dict(0)["last.weight"])
    with torch.no_grad():
        other.eval()(x)  # afterwards fully_shard shows whole tensors
    bank.add(other)
    found["after forward"] = same(bank.state_dict(2), now)
    single = Net().eval()
    bank.load(single, 2)
    found["in a plain model"] = (single(x) - other(x)).abs().max().item()

# thinning: who talks when
messages = []
def counted(name):
    function = getattr(dist, name)
    def wrapper(*args, **kwargs):
        messages.append(name)
        return function(*args, **kwargs)
    setattr(dist, name, wrapper)
for name in ("all_gather_object", "send", "recv"):
    counted(name)
model = kinds["fsdp"]()
bank = SampleBank(f"{folder}/thin", thin=3, max_draws=2)
kept, talks = [], []
for step in range(13):
    messages.clear()
    draw = bank.add(model, step=step)
    kept.append(draw and draw.step)
    talks.append(len(messages))
found["thin"] = {"kept": kept, "talks": talks, "calls": bank.calls, "draws": [draw_of(d) for d in bank.draws]}
bank.close()
bank = SampleBank(f"{folder}/thin", thin=3, max_draws=2, resume=True)  # goes on in the middle of three calls
found["continued"] = [bank.add(model, step=step) is not None for step in range(13, 16)]
bank.rewind(12)
found["rewound"] = [bank.add(model, step=step) is not None for step in range(13, 16)] + [[d.step for d in bank.draws]]
bank.close()

# copies that are not the same
found["said"] = said
said = []
apart = Parts(((4, 2), grid, R, S(0)), ((3,), None), ((4,), line, S(0)), ((5,), grid["outer"], S(0)))
bank = SampleBank(f"{folder}/apart")
bank.add(apart)
with torch.no_grad():
    apart.p0.to_local().add_(rank // 2)  # ranks 0 and 2, 1 and 3 have the same rows
    apart.p1.add_(rank == 3)
bank.add(apart)
found["apart"] = [said, bank.state_dict(1)["p1"].tolist() == bank.state_dict(0)["p1"].tolist()]
bank.close()

# failures: on every rank, in words, and the next call is right
def fails(work):
    try:
        work()
    except Exception as error:
        return f"{type(error).__name__}: {error}"

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
big = Parts(((4000, 100), line, S(0)), ((3, 3), line, S(1)))
bank, failed = SampleBank(f"{folder}/failures"), {}
bank.add(big, step=0)
limits = resource.getrlimit(resource.RLIMIT_FSIZE)
if rank == 0:
    resource.setrlimit(resource.RLIMIT_FSIZE, (2**20, limits[1]))  # a full disk, in the middle of the first tensor
failed["disk"] = fails(lambda: bank.add(big, step=1))
if rank == 0:
    resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    failed["files"] = sorted(os.listdir(bank.path))
failed["metric"] = fails(lambda: bank.add(big, step=2, loss=object() if rank == 2 else 1.0))
with torch.no_grad():
    big.p0.to_local()[-1, -1] = float("nan") if rank == 3 else 0.0
failed["nan"] = fails(lambda: bank.add(big, step=3))
with torch.no_grad():
    big.p0.to_local()[-1, -1] = 0.0
failed["another model"] = fails(lambda: bank.add(Parts(((2, 2), line, S(0)))))
failed["locked"] = fails(lambda: SampleBank(f"{folder}/failures", resume=True).add(big))
failed["settings"] = fails(lambda: SampleBank(f"{folder}/settings", thin=1 + (rank == 1)).add(big))
failed["folders"] = fails(lambda: SampleBank(f"{folder}/folder{rank}").add(big))
partial = nn.Module()
partial.weight = nn.Parameter(DTensor.from_local(torch.ones(2), line, [Partial()]))
failed["partial"] = fails(lambda: SampleBank(f"{folder}/partial").add(partial))
odd = nn.Module()  # four rows on rank 0, one on each other rank: no layout of torch
rows = torch.ones(4 if rank == 0 else 1)
odd.weight = nn.Parameter(DTensor.from_local(rows, line, [S(0)], run_check=False, shape=(7,), stride=(1,)))
failed["odd"] = fails(lambda: SampleBank(f"{folder}/odd").add(odd))
failed["models"] = fails(lambda: SampleBank.open(f"{folder}/fsdp").models(model))
failed["update_bn"] = fails(lambda: SampleBank(f"{folder}/fsdp", resume=True).update_bn(model, [x]))
failed["unfit"] = fails(lambda: bank.load(Parts(((5, 3), grid, S(0), S(1)), ((3, 3), line, S(1))), 0))
failed["then"] = draw_of(bank.add(big, step=5))
failed["draws"] = [d.step for d in bank.draws], bank.calls
bank.close()
found["failed"] = failed
dist.barrier()
with SampleBank(f"{folder}/fsdp", resume=True) as bank:
    found["update_bn"] = bank.update_bn(Net(), [x])
dist.barrier()

# the page's example
sys.modules["langevin"].SampleBank = SampleBank
os.chdir(folder)
model = fsdp(Net(), mesh=line)
names = {"torch": torch, "model": model, "optimizer": torch.optim.SGD(model.parameters(), lr=0.01), "x_test": x}
names |= {"loss_fn": nn.functional.mse_loss, "batches": [(x, torch.zeros(8, 4).bfloat16())] * 20}
exec(sys.argv[3], names)
found["page"] = [len(names["outputs"]), torch.stack(names["outputs"]).tolist(), names["bank"].draws[-1].step]

with open(f"{folder}/found{rank}.json", "w") as file:
    json.dump(found, file)
leave()
"""
)


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    """What the four processes found, by rank, and their folder."""
    folder = tmp_path_factory.mktemp("sharded")
    (folder / "worker.py").write_text(WORKER)
    command = [sys.executable, "-W", "ignore", "-m", "torch.distributed.run", "--nproc-per-node", "4", "--standalone"]
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
    command += [str(folder / "worker.py"), SOURCE, str(folder), EXAMPLE]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=180)
    assert done.returncode == 0, done.stderr[-5000:]
    return folder, [json.loads((folder / f"found{rank}.json").read_text()) for rank in range(4)]


def test_a_draw_of_any_sharding_is_the_whole_state_and_loads_back_into_each_part(ranks):
    _, found = ranks
    assert len(found[0]["kinds"]) == 7
    for kind, about in found[0]["kinds"].items():
        for other in found:
            here = other["kinds"][kind]
            assert here["whole"], kind
            assert here["loaded"], kind
            assert here["untouched"], kind
            assert (here["draw"], here["draws"]) == (about["draw"], 1)  # the same on every rank
        assert about["draw"][:4] == [0, 4, {"loss": 0.5}, 1]


def test_the_shardings_are_what_they_are_called(ranks):
    _, found = ranks
    placements = {kind: " ".join(about["placements"]) for kind, about in found[0]["kinds"].items()}
    assert placements["fsdp"] == placements["offload"] == "(Shard(dim=0),)"
    assert "Shard(dim=1)" in placements["columns"]
    assert placements["hsdp"] == "(Replicate(), Shard(dim=0))"
    assert "(_StridedShard(dim=0, sf=2), Shard(dim=0))" in placements["fsdp and tensor parallel"]
    assert found[0]["kinds"]["fsdp"]["parts"] != found[3]["kinds"]["fsdp"]["parts"]  # uneven
    assert 0 in found[3]["kinds"]["fsdp"]["parts"]
    assert [about["draw"][-1] for about in found[0]["kinds"].values()] == [["tied.weight"]] * 4 + [[]] * 3


def test_draws_go_from_one_sharding_to_another_and_to_plain_models(ranks):
    for found in ranks[1]:
        assert found["resharded"]
        assert found["trained"]
        assert found["after forward"]
        assert found["in a plain model"] < 0.02  # outputs in bfloat16, of size 1
    assert [found["update_bn"] for found in ranks[1]] == [3, None, None, None]


def test_every_rank_counts_by_itself_and_only_kept_calls_send_messages(ranks):
    first = ranks[1][0]["thin"]
    for found in ranks[1]:
        thin = found["thin"]
        assert thin["kept"] == [None, None, 2, None, None, 5, None, None, 8, None, None, 11, None]
        assert [step for step, count in enumerate(thin["talks"]) if count] == [0, 2, 5, 8, 11]
        assert (thin["calls"], thin["draws"]) == (13, first["draws"])
        assert [draw[1] for draw in thin["draws"]] == [8, 11]
        assert found["continued"] == [False, True, False]
        assert found["rewound"] == [False, False, True, [11, 15]]


def test_copies_that_differ_are_said_by_rank_0_and_nothing_is_said_otherwise(ranks):
    for rank, found in enumerate(ranks[1]):
        assert found["said"] == []
        said, kept = found["apart"]
        assert kept
        assert len(said) == (rank == 0)
    (said,) = ranks[1][0]["apart"][0]
    assert (
        "copies of a parameter differ, the lowest rank's is kept: p0 (ranks 0 and 2), p0 (ranks 1 and 3), p1 (ranks 0 and 3)"
        in said
    )


FAILURES = {  # kind -> (the ranks that fail by themselves, what they say); the others name the first of them
    "disk": ([0], "OSError: [Errno 27] File too large: "),
    "metric": ([2], "TypeError: SampleBank.add(loss=...) needs a number or a JSON value, got <object"),
    "nan": ([0], "ValueError: SampleBank.add(model=...) needs finite parameters (p0 is not), got nan"),
    "another model": ([0], "another model than before: p0: expected float32[4000, 100], found float32[2, 2]"),
    "locked": ([0], "another writer holds the lock"),
    "settings": ([0, 1, 2, 3], "ValueError: SampleBank needs the same thin on every rank, got 1 on rank 0, 2 on 1"),
    "folders": ([0, 1, 2, 3], "ValueError: SampleBank needs the same path on every rank, got "),
    "partial": (
        [0, 1, 2, 3],
        "TypeError: SampleBank needs plain dense tensors, Module has weight: DTensor torch.float32 with placements (P",
    ),
    "odd": ([0, 1, 2, 3], "ValueError: SampleBank needs parts as torch cuts them, of shape ("),
    "models": (
        [0, 1, 2, 3],
        "TypeError: SampleBank.models(model=...) needs a module with whole tensors, got a sharded FSDPNet: pass an un",
    ),
    "update_bn": (
        [0, 1, 2, 3],
        "TypeError: SampleBank.update_bn(model=...) needs a module with whole tensors, got a sharded FSDPNet",
    ),
    "unfit": ([0, 1, 2, 3], "does not fit Parts: p0: expected [4000, 100], found [5, 3]"),
}


@pytest.mark.parametrize("kind", FAILURES)
def test_a_failure_is_one_on_every_rank(ranks, kind):
    own, text = FAILURES[kind]
    for rank, found in enumerate(ranks[1]):
        assert text in found["failed"][kind]
        if rank not in own:
            assert f"SampleBank.add failed on rank {own[0]}, so on every rank: " in found["failed"][kind]


def test_after_failures_the_earlier_draws_are_there_and_the_next_one_is_right(ranks):
    folder, found = ranks
    assert found[0]["failed"]["files"] == ["draw-00000000.safetensors", "lock", "manifest.jsonl"]
    for other in found:
        assert other["failed"]["then"] == found[0]["failed"]["then"]
        assert other["failed"]["draws"] == [[0, 5], 2]
    assert [draw.step for draw in SampleBank.open(folder / "failures").draws] == [0, 5]
    assert not (folder / "folder1").exists()


def test_the_example_of_the_page_runs_and_every_rank_predicts_the_same(ranks):
    first = ranks[1][0]["page"]
    assert (first[0], first[2]) == (2, 19)
    assert first[1][0] != first[1][1]
    assert all(found["page"] == first for found in ranks[1])
