"""Steps of many chains: ours compiled and eager, blackjax and posteriors; ratios of one run.

    python benchmarks/sample.py            makes environments with the peers, measures, writes docs/benchmarks/sample.{md,png}
    python benchmarks/sample.py --quick    a smoke run of less than two minutes, written to out/benchmarks

Every contender is a process of its own that waits, without using a core, until a line on its standard input gives it the turn; so
contenders take turns, round after round, although they live in different environments. All run SGLD from the same start on the same
data; noise, choice of minibatches and storing of every position are part of the time. Ours is a single call of `langevin.sample`,
stopped and timed at the edges of its blocks.
"""

from __future__ import annotations

import argparse
import datetime
import importlib
import importlib.metadata
import itertools
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
import venv
import warnings
from pathlib import Path
from typing import NamedTuple

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
JAX_PEERS = ["blackjax==1.7.1", "jax", "jaxlib"]
SIZES = (36, 30, 30, 6)  # the paper's network for Landsat
OURS, EAGER, BLACKJAX, POSTERIORS = "langevin, compiled", "langevin, eager", "blackjax, jit and scan", "posteriors, vmap"
NOISE, MEMORY = LIMITS = "limit: our noise alone", "limit: positions written alone"
COLOURS = {OURS: "#c44e3b", EAGER: "#e3a79c", BLACKJAX: "#5f6b7a", POSTERIORS: "#b9c1ca"}
TITLES = {
    "gaussian": "Correlated Gaussian",
    "logistic": "Bayesian logistic regression",
    "mlp": f"MLP {'-'.join(map(str, SIZES))}, categorical",
}


class Problem(NamedTuple):
    """What is sampled, by how many chains."""

    kind: str
    chains: int
    dim: int
    num_data: int = 0
    batch_size: int = 0
    thin: int = 1
    sampler: str = "sgld"

    @property
    def title(self):
        """What is sampled, without the chains."""
        data = f", N = {self.num_data:,}, batch {self.batch_size}" if self.num_data else ""
        thin = f", every {self.thin}th kept" if self.thin > 1 else ""
        return f"{TITLES[self.kind]}, dim {self.dim:,}{data}{thin}" + (f", {self.sampler}" if self.sampler != "sgld" else "")

    @property
    def step_size(self):
        """Epsilon on the scale of the energy, small enough for every problem."""
        return {"gaussian": 0.05, "logistic": 0.1 / max(1, self.num_data), "mlp": 0.01 / max(1, self.num_data)}[self.kind]


def gaussian(chains, dim=2, thin=1, sampler="sgld"):
    return Problem("gaussian", chains, dim, thin=thin, sampler=sampler)


def logistic(chains, dim=50, num_data=100_000, sampler="sgld"):
    return Problem("logistic", chains, dim, num_data, 100, sampler=sampler)


def covariance(dim):
    """Return 0.9 ** |i - j|."""
    places = np.arange(dim)
    return 0.9 ** np.abs(places[:, None] - places)


def mlp(chains):
    weights = sum((fan_in + 1) * fan_out for fan_in, fan_out in itertools.pairwise(SIZES))
    return Problem("mlp", chains, weights, 4_435, 50)


def make_data(problem):
    """Return the start of one chain and the columns of the data, the same in every process."""
    random = np.random.default_rng(0)
    start = (0.1 * random.standard_normal(problem.dim)).astype(np.float32)
    if problem.kind == "gaussian":
        return start, ()
    if problem.kind == "logistic":
        x = random.standard_normal((problem.num_data, problem.dim), dtype=np.float32)
        return start, (x, (x[:, 0] + random.standard_normal(problem.num_data) > 0).astype(np.float32))
    x = random.random((problem.num_data, SIZES[0]), dtype=np.float32)
    return start, (x, x[:, : SIZES[-1]].argmax(1))


# Workers. Each runs a problem for ever and says at every edge of a block how many steps it has taken.


class Over(Exception):
    """No more turns."""


class Turns:
    """A worker's side of the conversation: requests in, steps and seconds out, one JSON object per line."""

    def __init__(self):
        """Take standard output for the answers."""
        self._answers = os.fdopen(os.dup(1), "w")
        os.dup2(2, 1)  # what libraries print goes to standard error

    def ask(self):
        """Wait for a request; end with the main process."""
        line = sys.stdin.readline()
        return json.loads(line) if line else sys.exit()

    def answer(self, **values):
        """Send an answer."""
        print(json.dumps(values), file=self._answers, flush=True)

    def reached(self, step):
        """Note an edge between blocks; when the turn is over, wait here for the next one. The first turn is one block."""
        now = time.perf_counter()
        if step == 0:
            self._seconds = 0.0
        else:
            if now - self._start < self._seconds:
                return
            self.answer(steps=step - self._step, seconds=now - self._start)
            request = self.ask()
            if "seconds" not in request:
                raise Over
            self._seconds = request["seconds"]
        self._step, self._start = step, time.perf_counter()


def run_ours(problem, turns, *, compile):
    """Run one call of `lv.sample`; its progress, told after every block of steps, takes the turns."""
    import torch
    from langevin_paper import models

    import langevin as lv

    start, columns = make_data(problem)
    init = torch.from_numpy(start).repeat(problem.chains, 1)
    prior = lv.priors.gaussian(std=1.0)
    if problem.kind == "gaussian":
        target = lv.targets.gaussian(torch.from_numpy(covariance(problem.dim)).to(init.dtype))
    elif problem.kind == "logistic":
        softplus = torch.nn.functional.softplus
        target = lv.targets.likelihood(lambda theta, x, y: y * (x @ theta) - softplus(x @ theta), prior=prior)
    else:
        target = lv.Posterior(models.mlp(*SIZES), "categorical", prior=prior, num_data=problem.num_data)
    data = {"data": tuple(map(torch.from_numpy, columns)), "batch_size": problem.batch_size} if columns else {}
    steps = problem.thin * min(2**22, 2**28 // init.numel())  # draws of one gigabyte
    known = torch.full((problem.dim,), float(problem.num_data**2 / max(1, problem.batch_size))), torch.ones(problem.dim)
    more = {"invariant": {}, "corrected": {"noise": known}}.get(problem.sampler)
    kernel = lv.sgld(problem.step_size) if more is None else lv.msgld(problem.step_size, bias_factor=10.0, invariant=True, **more)
    if problem.sampler == "corrected":
        data["batches"] = "white"
    turns.reached(0)

    def tell(done, _):
        turns.reached(done)

    lv.sample(target, sampler=kernel, init=init, num_steps=steps, compile=compile, progress=tell, thin=problem.thin, **data)


def run_noise(problem, turns):
    """Make the noise of the steps, in blocks, and nothing else."""
    import langevin as lv

    length = max(1, min(4096, 2**18 // (problem.chains * problem.dim)))
    for number in itertools.count():
        turns.reached(number * length)
        lv.random.normal(0, range(problem.chains), range(number * length, (number + 1) * length), problem.dim)


def run_memory(problem, turns):
    """Write what would be the positions of the kept steps into fresh memory, and nothing else."""
    import torch

    position = torch.from_numpy(make_data(problem)[0]).repeat(problem.chains, 1)
    length = max(1, min(1000, 2**22 // position.numel()))
    for number in itertools.count():
        turns.reached(number * length * problem.thin)
        kept = [position.expand(length, -1, -1).contiguous()]
        del kept


def run_posteriors(problem, turns):
    """Run `posteriors` as its documentation has it: the mean log posterior, temperature 1 / N; `torch.vmap` over chains."""
    import posteriors
    import torch
    from langevin_paper import models

    start, columns = make_data(problem)
    columns = tuple(map(torch.from_numpy, columns))
    num_data = max(1, problem.num_data)
    model = models.mlp(*SIZES) if problem.kind == "mlp" else None
    precision = torch.from_numpy(np.linalg.inv(covariance(problem.dim))).float() if problem.kind == "gaussian" else None

    def log_posterior(parameters, batch):
        if problem.kind == "gaussian":
            return -0.5 * parameters["theta"] @ precision @ parameters["theta"], torch.tensor([])
        prior = posteriors.diag_normal_log_prob(parameters, normalize=False) / num_data
        x, y = batch
        if problem.kind == "logistic":
            logits = x @ parameters["theta"]
            return -torch.nn.functional.binary_cross_entropy_with_logits(logits, y) + prior, torch.tensor([])
        logits = torch.func.functional_call(model, parameters, (x,))
        return -torch.nn.functional.cross_entropy(logits, y) + prior, torch.tensor([])

    theta = torch.from_numpy(start)
    parameters = {"theta": theta}
    if model is not None:
        named = dict(model.named_parameters())
        parts = theta.split([value.numel() for value in named.values()])
        parameters = {name: part.view_as(value) for (name, value), part in zip(named.items(), parts, strict=True)}
    transform = posteriors.sgmcmc.sgld.build(log_posterior, lr=problem.step_size * num_data, temperature=1 / num_data)

    def move(parameters, batch):  # the state around a dict of parameters does not come out of vmap whole: make it inside
        state, _ = transform.update(transform.init(parameters), batch)
        return state.params

    shape = ()
    if problem.chains > 1:
        shape = (problem.chains,)
        parameters = {name: value.repeat(*shape, *(1 for _ in value.shape)) for name, value in parameters.items()}
        move = torch.vmap(move, in_dims=(0, 0 if columns else None), randomness="different")
    kept = []
    for step in itertools.count():
        if step % 5 == 0:
            turns.reached(step)
        rows = torch.randint(num_data, (*shape, problem.batch_size)) if columns else None
        parameters = move(parameters, tuple(column[rows] for column in columns) if columns else None)
        kept.append(parameters)


def run_blackjax(problem, turns):
    """Run blackjax in its fastest shape: `jit` of a `scan` over steps, `vmap` over chains."""
    import blackjax
    import jax
    import jax.numpy as jnp
    from blackjax.sgmcmc.gradients import grad_estimator

    start, columns = make_data(problem)
    precision = jnp.array(np.linalg.inv(covariance(problem.dim)), dtype=jnp.float32) if problem.kind == "gaussian" else None
    position = jnp.array(start)
    if problem.kind == "gaussian":

        def gradient(position, batch):
            return jax.grad(lambda theta: -0.5 * theta @ precision @ theta)(position)

    elif problem.kind == "logistic":

        def log_likelihood(theta, datum):
            logit = datum[0] @ theta
            return datum[1] * logit - jax.nn.softplus(logit)

    else:
        layers = list(itertools.pairwise(SIZES))
        ends = np.cumsum([size for fan_in, fan_out in layers for size in (fan_in * fan_out, fan_out)])[:-1]
        parts = iter(jnp.split(position, ends))
        position = [(next(parts).reshape(fan_out, fan_in), next(parts)) for fan_in, fan_out in layers]

        def log_likelihood(weights, datum):
            hidden, label = datum
            for matrix, bias in weights[:-1]:
                hidden = jax.nn.relu(matrix @ hidden + bias)
            matrix, bias = weights[-1]
            return jax.nn.log_softmax(matrix @ hidden + bias)[label]

    def log_prior(position):
        return -0.5 * sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(position))

    if columns:
        gradient = grad_estimator(log_prior, log_likelihood, problem.num_data)
    sgld = blackjax.sgld(gradient)

    def move(position, key, columns):
        key, batch_key = jax.random.split(key)
        rows = jax.random.randint(batch_key, (problem.batch_size,), 0, problem.num_data) if columns else None
        return sgld.step(key, position, tuple(column[rows] for column in columns), problem.step_size)

    many = problem.chains > 1
    length = max(1, min(1000, 2**22 // (problem.chains * problem.dim)))

    @jax.jit
    def block(positions, key, columns):
        def step(positions, key):
            if many:
                keys = jax.random.split(key, problem.chains)
                positions = jax.vmap(move, in_axes=(0, 0, None))(positions, keys, columns)
            else:
                positions = move(positions, key, columns)
            return positions, None

        def body(positions, key):
            if problem.thin > 1:
                positions, _ = jax.lax.scan(step, positions, jax.random.split(key, problem.thin))
            else:
                positions, _ = step(positions, key)
            return positions, positions

        return jax.lax.scan(body, positions, jax.random.split(key, length))

    if many:
        position = jax.tree.map(lambda leaf: jnp.repeat(leaf[None], problem.chains, 0), position)
    columns, key, kept = tuple(map(jnp.array, columns)), jax.random.key(0), []
    for number in itertools.count():
        turns.reached(number * length * problem.thin)
        key, block_key = jax.random.split(key)
        position, positions = jax.block_until_ready(block(position, block_key, columns))
        kept.append(positions)


RUN = {
    OURS: lambda problem, turns: run_ours(problem, turns, compile=True),
    EAGER: lambda problem, turns: run_ours(problem, turns, compile=False),
    BLACKJAX: run_blackjax,
    POSTERIORS: run_posteriors,
    NOISE: run_noise,
    MEMORY: run_memory,
}


def work(name):
    """Be the process of one contender."""
    warnings.filterwarnings("ignore")
    warnings.filterwarnings("error", message=".*goes on uncompiled")
    turns = Turns()
    try:
        import jax.numpy  # noqa: F401 - is this the environment of JAX?
        import sgmcmcjax.samplers  # noqa: F401

        turns.answer(sgmcmcjax="runs")
    except ImportError as error:
        turns.answer(sgmcmcjax=f"{type(error).__name__}: {error}")
    while True:
        request = turns.ask()
        if "problem" not in request:
            turns.answer(error="has no more steps")
            continue
        try:
            RUN[name](Problem(*request["problem"]), turns)
            turns.answer(error="has no more steps")  # a turn was under way
        except Over:
            turns.answer(over=True)
        except Exception as error:
            turns.answer(error=f"{type(error).__name__}: {error}")


# The main process.


class Worker:
    """A contender's process, seen from outside."""

    def __init__(self, name, python, environment):
        """Start it."""
        command = [str(python), str(Path(__file__).resolve()), "--worker", name]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
        self.process = subprocess.Popen(command, text=True, env=environment, **pipes)
        self.name = name

    def greet(self):
        """Wait until it is there; return what it says of itself."""
        self.greeting = self._read()
        return self.greeting

    def _read(self):
        line = self.process.stdout.readline()
        return json.loads(line) if line else {"error": f"its process ended with {self.process.wait()}"}

    def ask(self, **request):
        """Send a request and wait for the answer; an answer with `error` means that it cannot go on."""
        if self.process.poll() is None:
            print(json.dumps(request), file=self.process.stdin, flush=True)
        return self._read()

    def close(self):
        """End it."""
        self.process.stdin.close()
        self.process.wait()


def make_jax_environment():
    """Return the Python of .venv-jax, which holds blackjax; made when it is missing."""
    folder = ROOT / ".venv-jax"
    python = folder / "bin" / "python"
    if not (folder / "installed").exists():
        print("installing blackjax and JAX into .venv-jax", flush=True)
        venv.create(folder, with_pip=True)
        (folder / ".gitignore").write_text("*\n")
        pip = [python, "-m", "pip", "install", "--quiet", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, *JAX_PEERS, "tqdm"], check=True)
        subprocess.run([*pip, "--no-deps", "sgmcmcjax==0.2.13"], check=True)  # its pins would change JAX
        (folder / "installed").touch()
    return python


def measure(problem, workers, rounds, seconds):
    """Return name -> (microseconds per step of each round, seconds of the first block beyond those of a later one)."""
    firsts, times = {}, {}
    if problem.chains * problem.dim >= 10_000:
        np.ones(
            2**30, dtype=np.float32
        )  # a virtual machine is given its memory page by page when it is first touched: touch it now
    for worker in workers:
        first = worker.ask(problem=problem)
        if worker.name in (OURS, EAGER) and "error" not in first and "steps" in first:
            second = worker.ask(seconds=0.0)  # the first block of ours is short and eager; the second waits for the code
            if "error" not in second:
                first = {"steps": first["steps"] + second["steps"], "seconds": first["seconds"] + second["seconds"]}
        if "error" in first:
            print(f"{worker.name} does not run {problem.title}: {first['error'][:300]}", flush=True)
        else:
            firsts[worker.name], times[worker.name] = first, []
    running = [worker for worker in workers if worker.name in firsts]
    for number in range(rounds + 1):
        for worker in list(running):
            turn = worker.ask(seconds=seconds if number else seconds / 2)
            if "error" in turn:
                running.remove(worker)
            elif number:  # the first round warms up
                times[worker.name].append(1e6 * turn["seconds"] / turn["steps"])
    for worker in running:
        worker.ask(stop=True)
    return {
        name: (times[name], max(0.0, first["seconds"] - 1e-6 * min(times[name]) * first["steps"]))
        for name, first in firsts.items()
        if times[name]
    }


def rows_of(problem, results):
    base = statistics.median(results[OURS][0]) if OURS in results else float("nan")
    rows = []
    for name, (times, compiling) in results.items():
        if name in LIMITS and problem.sampler != "sgld":
            continue
        middle = statistics.median(times)
        compiled = f"{compiling:.1f}" if name in (OURS, BLACKJAX) else ""
        each = f"{middle / problem.chains:.3g}" if problem.chains > 1 else ""
        rows.append(
            f"| {problem.chains:,} | {name} | {middle:.4g} | {min(times):.4g} | {each} | {middle / base:.2f} | {compiled} |"
        )
    return rows


def summary(chart):
    """Return a sentence on the peers' times relative to ours."""
    parts = []
    for name in (EAGER, BLACKJAX, POSTERIORS):
        ratios = [
            statistics.median(results[name][0]) / statistics.median(results[OURS][0])
            for results in chart.values()
            if name in results and OURS in results
        ]
        if ratios:
            parts.append(f"{name}: {min(ratios):.1f} to {max(ratios):.0f} times (median {statistics.median(ratios):.1f})")
    return "Time per step relative to ours, compiled, over the problems below: " + "; ".join(parts) + "."


def head(workers, jax_python):
    import torch

    ours = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("torch", "numpy", "posteriors"))
    script = "from importlib.metadata import version as v; print(', '.join(f'{n} {v(n)}' for n in ('blackjax', 'jax', 'jaxlib')))"
    theirs = subprocess.run([jax_python, "-c", script], check=True, capture_output=True, text=True).stdout.strip()
    cpuinfo = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    processor = next((line.split(":")[1].strip() for line in cpuinfo.splitlines() if "model name" in line), platform.machine())
    sgmcmcjax = next((worker.greeting["sgmcmcjax"] for worker in workers if worker.name == BLACKJAX), "not tried")
    return [
        "# Steps of many chains",
        "",
        f"{datetime.date.today()}, {processor}, Python {platform.python_version()}, {ours}; {theirs}. Made by "
        f"`python benchmarks/sample.py`. Every library has the threads it takes by default: torch {torch.get_num_threads()}, XLA "
        f"all of {os.cpu_count()} cores. SGLD everywhere, float32, the same start and data in memory; every chain has noise and "
        "minibatches of its own, and these, and storing every position, are part of the time. Ours also stores energies and "
        "gradient norms, judges its temperature, and takes minibatches without replacement; the peers choose rows with "
        "replacement, which is cheaper. "
        "The limits make our noise, or write the positions, and do nothing else. "
        "Medians over rounds in which contenders, each a process, take turns, then the minimum. Compiling is what the first "
        "block takes beyond a later one, with empty caches. Trust the ratios. "
        "How time grows with chains, dimension and data: [growth](growth.md).",
        "",
        f"SGMCMCJax 0.2.13 beside this JAX: `{sgmcmcjax.partition(' (/')[0]}`.",  # without the place of this machine
    ]


def report(quick, workers, jax_python):
    """Measure everything; return the lines of a Markdown page and the numbers for the chart."""
    rounds, seconds = (3, 0.1) if quick else (7, 0.25)
    families = (
        [[gaussian(1), gaussian(10_000)], [logistic(25)], [mlp(5)]]
        if quick
        else [
            [gaussian(c) for c in (1, 100, 1_000, 10_000)],
            [logistic(c) for c in (1, 25)],
            [mlp(c) for c in (1, 5, 25)],
            [gaussian(c, thin=100) for c in (1, 1_000)],
            [gaussian(1, dim=1_000)],
            [gaussian(c, sampler="invariant") for c in (1, 1_000)],
            [logistic(c, sampler="corrected") for c in (1, 25)],
        ]
    )
    lines, chart = [], {}
    for family in families:
        lines += ["", f"## {family[0].title}", "", "| chains | | µs per step | min | per step and chain | / ours | compiling, s |"]
        lines += ["| --- | --- | --- | --- | --- | --- | --- |"]
        print("\n".join(lines[-4:]), flush=True)
        for problem in family:
            fit = workers if problem.sampler == "sgld" else [worker for worker in workers if worker.name in (OURS, EAGER)]
            chart[problem] = measure(problem, fit, rounds, seconds)
            lines += rows_of(problem, chart[problem])
            print("\n".join(rows_of(problem, chart[problem])), flush=True)
    return [*head(workers, jax_python), "", summary(chart), *lines], chart


def draw(chart, path):
    """Draw bars of microseconds per step, one panel per kind of problem, one group per number of chains."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    plain = [problem for problem in chart if problem.thin == 1 and problem.sampler == "sgld" and problem.dim != 1_000]
    kinds = {kind: [problem for problem in plain if problem.kind == kind] for kind in TITLES}
    widths = [1 + len(problems) for problems in kinds.values()]
    figure, panels = plt.subplots(
        1, len(kinds), figsize=(14, 4.6), layout="constrained", sharey=True, gridspec_kw={"width_ratios": widths}
    )
    for axes, (kind, problems) in zip(panels, kinds.items(), strict=True):
        for k, (name, colour) in enumerate(COLOURS.items()):
            shown = [(place, problem) for place, problem in enumerate(problems) if name in chart[problem]]
            heights = [statistics.median(chart[problem][name][0]) for _, problem in shown]
            bars = axes.bar([place + 0.2 * (k - 1.5) for place, _ in shown], heights, 0.2, color=colour, label=name)
            axes.bar_label(bars, fmt="%.3g", padding=2, fontsize=7)
        axes.set_yscale("log")
        axes.set_xticks(range(len(problems)), [f"{problem.chains:,} chain{'s' * (problem.chains > 1)}" for problem in problems])
        axes.set_title(TITLES[kind], fontsize=10)
        axes.tick_params(labelsize=8)
        axes.spines[["top", "right"]].set_visible(False)
        axes.margins(y=0.1)
    panels[0].set_ylabel("µs per step of all chains", fontsize=8)
    panels[0].legend(fontsize=8, frameon=False, loc="upper left")
    figure.savefig(path, dpi=130)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a smoke run: fewer problems, short turns, pages in out/benchmarks")
    parser.add_argument("--worker", choices=list(RUN), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        work(arguments.worker)
        return
    from optim import enter_peer_environment

    enter_peer_environment()
    jax_python = make_jax_environment()
    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as cache:
        environment = {**os.environ, "PYTHONWARNINGS": "ignore", "TORCHINDUCTOR_CACHE_DIR": cache, "XDG_CACHE_HOME": cache}
        pythons = {name: jax_python if name == BLACKJAX else sys.executable for name in RUN}
        workers = [Worker(name, python, environment) for name, python in pythons.items()]
        for worker in workers:  # all start at once
            if "error" in worker.greet():
                sys.exit(f"{worker.name}: {worker.greeting['error']}")
        try:
            lines, chart = report(arguments.quick, workers, jax_python)
        finally:
            for worker in workers:
                worker.close()
    folder = ROOT / ("out" if arguments.quick else "docs") / "benchmarks"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "sample.md").write_text("\n".join([*lines, "", "![steps of many chains](sample.png)", ""]))
    draw(chart, folder / "sample.png")
    print(f"\n{time.perf_counter() - start:.0f} s; written: {folder / 'sample.md'} and sample.png")


if __name__ == "__main__":
    main()
