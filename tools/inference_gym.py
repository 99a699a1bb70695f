"""Write the data and reference moments of the Inference Gym as JSON, in the form of tests/evidence/posteriordb.

    python tools/inference_gym.py PACKAGE     PACKAGE: the folder `inference_gym` of the package of that name (PyPI, 0.0.5)

Its modules of data and ground truth need numpy only and are loaded one by one, without TensorFlow. The ground truth has the Monte
Carlo error of each mean; that of a standard deviation is taken as `1 / sqrt(2)` of it, the value for a normal distribution.

The published moments of the Brownian motion with unknown scales are off: .1198 and .1011 for the means of the two scales, where
quadrature gives .1155 and .1127. Ours are from quadrature over the scales, given which everything is normal.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

OUT = Path(__file__).resolve().parents[1] / "tests" / "evidence" / "inference_gym"
SMALL = 100  # days of the short series


def load(path: Path) -> ModuleType:
    """Load one module by its path."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def moments(truth: ModuleType, parts: dict[str, str]) -> dict[str, object]:
    """Return the moments of the parts, by our names; each is a prefix of the module's constants."""
    mean, error, sd, dimensions, names = [], [], [], {}, []
    for name, prefix in parts.items():
        values = np.atleast_1d(getattr(truth, f"{prefix}_MEAN")).ravel()
        dimensions[name] = len(values)
        names += [name] if len(values) == 1 else [f"{name}[{i + 1}]" for i in range(len(values))]
        mean += values.tolist()
        error += np.atleast_1d(getattr(truth, f"{prefix}_MEAN_STANDARD_ERROR")).ravel().tolist()
        sd += np.atleast_1d(getattr(truth, f"{prefix}_STANDARD_DEVIATION")).ravel().tolist()
    return {
        "dimensions": dimensions,
        "parameters": names,
        "mean": mean,
        "sd": sd,
        "mcse_mean": error,
        "mcse_sd": [value / 2**0.5 for value in error],
    }


def walk_moments(y: list[float | None]) -> dict[str, object]:
    """Return the moments of a random walk with unknown scales, by quadrature over their logarithms."""
    times = np.array([index for index, value in enumerate(y) if value is not None])
    seen = np.array([value for value in y if value is not None])
    kernel = np.minimum.outer(np.arange(1, len(y) + 1), np.arange(1, len(y) + 1)).astype(float)
    across = kernel[:, times]
    widths, axes = np.linalg.eigh(kernel[np.ix_(times, times)])
    rotated, spread = axes.T @ seen, across @ axes
    a, b = (grid.ravel()[:, None] for grid in np.meshgrid(np.linspace(-7, 1, 300), np.linspace(-9, 1, 300), indexing="ij"))
    variances = np.exp(2 * a) * widths + np.exp(2 * b)  # of the rotated observations
    logs = -0.5 * (np.log(variances) + rotated**2 / variances).sum(-1) - ((a**2 + b**2) / 8)[:, 0]
    mass = np.exp(logs - logs.max())
    mass /= mass.sum()
    first = np.exp(2 * a) * ((rotated / variances) @ spread.T)
    second = np.exp(2 * a) * np.diag(kernel) - np.exp(4 * a) * ((1 / variances) @ (spread**2).T) + first**2
    values = np.concatenate([np.exp(a), np.exp(b), first], 1)
    mean = mass @ values
    square = mass @ np.concatenate([np.exp(2 * a), np.exp(2 * b), second], 1)
    sizes = {"innovation_noise_scale": 1, "observation_noise_scale": 1, "locs": len(y)}
    return {
        "dimensions": sizes,
        "parameters": [*list(sizes)[:2], *(f"locs[{index + 1}]" for index in range(len(y)))],
        "mean": mean.tolist(),
        "sd": np.sqrt(square - mean**2).tolist(),
        "mcse_mean": len(mean) * [1e-6],
        "mcse_sd": len(mean) * [1e-6],
    }


def optional(values: np.ndarray) -> list[float | None]:
    """Return numbers, None where they are NaN."""
    return [None if np.isnan(value) else float(value) for value in values]


def answers(module: ModuleType) -> list[str]:
    """Return a line of 0, 1 and . (not asked) for each student."""
    table = np.full((400, 100), ".")
    table[module.STUDENT_IDS, module.QUESTION_IDS] = np.where(module.CORRECT > 0, "1", "0")
    return ["".join(row) for row in table]


def collect(package: Path) -> dict[str, dict[str, object]]:
    """Return the content of each file."""

    def data(name: str) -> ModuleType:
        return load(package / "internal" / "datasets" / f"{name}.py")

    def truth(name: str) -> ModuleType:
        return load(package / "targets" / "ground_truth" / f"{name}.py")

    walk, lorenz = data("brownian_motion_missing_middle_observations"), data("convection_lorenz_bridge")
    prices, cox = data("sp500_closing_prices").CLOSING_PRICES, data("synthetic_log_gaussian_cox_process")
    path: dict[str, Any] = {
        "y": optional(walk.OBSERVED_LOC),
        "scales": [float(walk.INNOVATION_NOISE), float(walk.OBSERVATION_NOISE)],
    }
    bridge = {
        "y": optional(lorenz.OBSERVED_VALUES),
        "scales": [lorenz.INNOVATION_SCALE, lorenz.OBSERVATION_SCALE],
        "step": lorenz.STEP_SIZE,
    }
    order = np.arange(len(cox.LOCATIONS))
    np.random.RandomState(1337).shuffle(order)  # that of the Inference Gym
    process = {"x": cox.LOCATIONS[order].tolist(), "extent": cox.EXTENTS[order].tolist(), "count": cox.COUNTS[order].tolist()}

    def returns(series: np.ndarray) -> dict[str, object]:
        return {"y": (series - series.mean()).tolist()}

    volatility = {name: f"IDENTITY_{name.upper()}" for name in ("persistence_of_volatility", "mean_log_volatility")}
    volatility |= {name: f"IDENTITY_{name.upper()}" for name in ("white_noise_shock_scale", "log_volatility")}
    hidden = {name: f"IDENTITY_{name.upper()}" for name in ("innovation_scale", "observation_scale", "latents")}
    schools = {name: f"IDENTITY_{name.upper()}" for name in ("avg_effect", "log_stddev", "school_effects")}
    cox_parts = {name: f"IDENTITY_{name.upper()}" for name in ("amplitude", "length_scale", "log_intensity")}
    return {
        "brownian_motion": {"data": path, **moments(truth(walk.__name__), {"locs": "IDENTITY"})},
        "brownian_motion_unknown_scales": {"data": path, **walk_moments(path["y"])},
        "lorenz_bridge": {"data": bridge, **moments(truth("convection_lorenz_bridge"), {"latents": "IDENTITY"})},
        "lorenz_bridge_unknown_scales": {"data": bridge, **moments(truth("convection_lorenz_bridge_unknown_scales"), hidden)},
        "eight_schools": {
            "data": {"y": [28, 8, -3, 7, -1, 1, 18, 12], "sigma": [15, 10, 16, 11, 9, 11, 10, 18]},
            **moments(truth("eight_schools"), schools),
        },
        "item_response": {
            "data": {"answers": answers(data("synthetic_item_response_theory"))},
            **moments(truth("synthetic_item_response_theory"), item_parts(truth("synthetic_item_response_theory"))),
        },
        "cox_process": {"data": process, **moments(truth("synthetic_log_gaussian_cox_process"), cox_parts)},
        "volatility_small": {
            "data": returns(np.diff(prices)[-SMALL:]),
            **moments(truth("stochastic_volatility_sp500_small"), volatility),
        },
        "volatility_log_small": {
            "data": returns(np.diff(np.log(prices))[-SMALL:]),
            **moments(truth("stochastic_volatility_log_sp500_small"), volatility),
        },
        "volatility": {"data": returns(np.diff(prices)), **moments(truth("stochastic_volatility_sp500"), volatility)},
    }


def item_parts(module: ModuleType) -> dict[str, str]:
    """Return the parts of the item-response ground truth."""
    names = [name.removesuffix("_MEAN_STANDARD_ERROR") for name in vars(module) if name.endswith("_MEAN_STANDARD_ERROR")]
    return {name.removeprefix("IDENTITY_").lower(): name for name in names}


def main() -> None:
    """Write the files."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("package", type=Path)
    for name, content in collect(parser.parse_args().package).items():
        text = json.dumps(content)
        (OUT / f"{name}.json").write_text(text + "\n")
        print(f"{name}: {len(content['mean'])} quantities, {len(text):,} bytes")


if __name__ == "__main__":
    main()
