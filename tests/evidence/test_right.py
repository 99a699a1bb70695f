"""There is one meaning of "right within 5 %": 5 % of a posterior standard deviation. Code, pages and checks share it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from langevin_paper.check.reference import compare
from langevin_paper.check.right import DEFINITION, ERRORS, TOLERANCE, allowed

ROOT = Path(__file__).parents[2]
PAGES = ("README.md", "docs/index.md", "docs/start.md", "docs/evidence.md", "docs/guides/statistician.md", "docs/concepts/law.md")


def text_of(page):
    return " ".join((ROOT / page).read_text().split())


@pytest.mark.parametrize("page", PAGES)
def test_each_page_that_promises_it_has_the_definition_in_the_same_words(page):
    assert DEFINITION in text_of(page)


def test_the_definition_has_the_numbers_of_the_code():
    assert f"{100 * TOLERANCE:.0f} % of a posterior standard deviation" in DEFINITION
    assert f"{ERRORS:.0f} Monte Carlo errors" in DEFINITION


PER_VARIANCE = re.compile(
    r"(within|off by) (some |about |at most |less than about )?5 (%|percent) of (a|the)( posterior)? variance"
)


def test_no_text_promises_five_percent_of_a_variance():
    folders = [ROOT / "docs" / part for part in ("", "guides", "concepts", "tutorials", "reference")]
    paths = [ROOT / "README.md", *(path for folder in folders for path in folder.glob("*.md"))]
    paths += [path for path in (ROOT / "src").rglob("*.py") if "tuning" not in path.parts]
    found = [str(path) for path in paths if PER_VARIANCE.search(" ".join(path.read_text().split()))]
    assert found == []


def test_five_percent_of_a_variance_is_two_and_a_half_of_a_standard_deviation():
    assert pytest.approx(0.025, abs=5e-4) == 1.05**0.5 - 1
    told = [page for page in PAGES if "2.5 % of a standard deviation" in text_of(page)]
    assert "docs/evidence.md" in told


class Known:
    """A reference without errors, whose numbers are the positions."""

    def __init__(self, mean, sd):
        self.mean, self.sd = torch.tensor([mean], dtype=torch.float64), torch.tensor([sd], dtype=torch.float64)
        self.mcse_mean = self.mcse_sd = torch.zeros(1, dtype=torch.float64)

    def report(self, positions):
        return positions


def draws(mean, sd):
    """Return 4 x 20,000 antithetic normals with this mean and sd, whose Monte Carlo errors are far below 5 %."""
    half = torch.randn(4, 10_000, 1, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    both = torch.cat([half, -half], 1)
    return mean + sd * both / both.std()


@pytest.mark.parametrize(
    ("mean", "sd", "is_right"),
    [(0.0, 1.0, True), (0.13, 3.0, True), (0.2, 3.0, False), (0.0, 1.035, True), (0.0, 1.075, False), (0.0, 0.93, False)],
)
def test_the_reference_check_measures_means_and_sds_in_posterior_standard_deviations(mean, sd, is_right):
    """An sd that is off by 3.5 % is right, though its variance is off by 7 %."""
    assert compare(Known(0.0, 3.0 if sd == 3.0 else 1.0), draws(mean, sd)).is_right == is_right


def test_what_is_allowed_is_a_share_of_the_sd_and_some_errors():
    assert float(allowed(torch.tensor(2.0), torch.tensor(0.1))) == pytest.approx(0.05 * 2.0 + 4 * 0.1)
