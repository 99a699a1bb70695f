"""Writes docs/evidence.md from the records of `langevin-paper check --out FOLDER`.

langevin-paper check --out docs/evidence && python tools/evidence_page.py docs/evidence
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

PEERS = ("nuts", "peers")
PAGE = Path(__file__).parents[1] / "docs" / "evidence.md"
HEAD = """# Evidence

What `langevin-paper check` tests, by which command, and what came out; each part also runs samplers that are broken on purpose,
and fails when one of them passes. This page is made from the records (`tools/evidence_page.py`): [law](evidence/law.json),
[invariance](evidence/invariance.json), [sbc](evidence/sbc.json), [reference](evidence/reference.json).

```
langevin-paper check law         # exact laws of the samplers' recursions against runs
langevin-paper check invariance  # Gandy and Scott's exact test (2020), false rejections at most 1e-5 for all of it
langevin-paper check sbc         # simulation-based calibration (Talts et al. 2018), rank histograms with simultaneous bands
langevin-paper check reference   # the default call on posteriors of posteriordb, LANGEVIN_DATA for those that do not ship
langevin-paper check suite       # those, the targets of the Inference Gym with known moments, and exact ones
```
"""
REFERENCE = """## Posteriors with reference draws

`lv.sample(model, data=..., seed=0)` and nothing else: 8 chains, 1000 draws. *Right within 5 %* has one meaning
here: every mean and every standard deviation is within 5 % of a posterior standard deviation and 4 Monte Carlo errors. "off" is the
largest deviation over what is allowed.
*Gradients per effective draw* are those of the run, for the parameter with the smallest bulk ESS; those of the warm-up, for each
chain, stand apart. NUTS is numpyro's, measured by `benchmarks/nuts.py` ([record](evidence/nuts.json) with versions and seconds),
4 chains, 1000 draws after 1000 of warm-up; "not shrunk" leaves out the shrinkage of its covariance, which costs it on small
parameters (it was run on three posteriors only). Empty cells were not measured: runs of NUTS on arma11 and on the equations of
Lotka and Volterra were cut off after some minutes.

What it does not reach: **funnels that it cannot see through**. A prior such as
`"theta": lambda p: Normal(p["mu"], p["tau"])` tells it enough to remove the funnel ([hierarchies](benchmarks/hierarchies.txt)).
Where Neal's funnel is a bare log density, or a hierarchy is hidden in the likelihood, the step that the neck asks for is too
small for the rest. The run ends with a warning (chains disagree, temperature too low, energy excursions, clipped forces).
NUTS is exact but for chance; the default call has an error of its own. Its step
size is chosen for an error of 2.5 % of a standard deviation (5 % in the variance).
"""

SUITE = """## All targets with known moments

The same call on the posteriors above, on ten targets of the Inference Gym and on six with exact moments
([record](evidence/suite.json)). nutpie 0.16.8 (low-rank metric, 4 chains, 1000 draws after 1000 of warm-up) takes our
compiled density ([record](evidence/peers.json), by `benchmarks/peers.py`). It was not run on the Lorenz systems, the long
volatility series, diamonds and Lotka-Volterra; MCLMC, which the same script runs, was not run for lack of time. The
published moments of the Brownian motion with unknown scales are off, so quadrature replaces them (`tools/inference_gym.py`).
On arma11 nutpie's chains disagree, with 1,014 divergences.
"""
ORDER = {"reference": 0, "suite": 1}


def main() -> None:
    """Write the page."""
    records = [json.loads(path.read_text()) for path in sorted(Path(sys.argv[1]).glob("*.json")) if path.stem not in PEERS]
    parts = [HEAD]
    for record in sorted(records, key=lambda record: ORDER.get(record["part"], 2)):
        heads = {"reference": REFERENCE, "suite": SUITE}
        head = heads.get(record["part"])
        parts.append(summary(record) if head is None else reference(record, head))
    PAGE.write_text("\n".join(parts))
    print(PAGE)


def table(lines: list[list[object]]) -> str:
    """Return lines as a table of markdown."""
    lines = [lines[0], ["---"] * len(lines[0]), *lines[1:]]
    return "\n".join(f"| {' | '.join(cell(value) for value in line)} |" for line in lines)


def cell(value: object) -> str:
    """Return a number with three digits."""
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def reference(record: dict, head: str) -> str:
    """Return the part on posteriors."""
    columns = [name for name in record["rows"][0] if name not in ("name", "passed", "must_fail", "is_right", "first warning")]
    lines = [["posterior", *columns], *([row["name"], *(row[name] for name in columns)] for row in record["rows"])]
    words = [f"- {row['name']}: {row['first warning']}" for row in record["rows"] if row["first warning"] and not row["must_fail"]]
    said = ["What it said, the first sentence of each:", "", *words] if words else ["It said nothing."]
    return "\n".join([head, table(lines), "", *(f"{note}." for note in record["notes"]), "", *said, ""])


def summary(record: dict) -> str:
    """Return the part on one of the other checks."""
    twins = [row for row in record["rows"] if row["must_fail"]]
    good = [row for row in record["rows"] if not row["must_fail"]]
    verdict = "passed" if record["passed"] else "FAILED"
    lines = [
        f"## {record['part'].capitalize()}: {verdict}",
        "",
        f"{record['about']}. Seed {record['seed']}: {sum(row['passed'] for row in good)} of {len(good)} accepted, "
        f"{sum(not row['passed'] for row in twins)} of {len(twins)} broken samplers refused.",
    ]
    picture = f"evidence/{record['part']}.png"
    if (PAGE.parent / picture).exists():
        lines += ["", f"![{record['part']}]({picture})"]
    return "\n".join([*lines, "", *(f"{note}." for note in record["notes"]), ""])


if __name__ == "__main__":
    main()
