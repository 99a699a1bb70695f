"""Plots run without a screen, hold what they should, and leave the global state alone."""

from __future__ import annotations

import matplotlib
import numpy as np
import pytest
import torch

matplotlib.use("Agg")
import matplotlib.pyplot as plt

import langevin as lv
from langevin import diagnostics as dg

TARGET = lv.targets.gaussian([[1.0, 0.9], [0.9, 1.0]])
START = torch.tensor([[0.5, -0.5], [1.0, 1.0], [-2.0, 0.0]], dtype=torch.float64)


@pytest.fixture(autouse=True)
def close_figures():
    assert plt.get_fignums() == []
    yield
    plt.close("all")


@pytest.fixture(scope="module")
def samples():
    return lv.sample(TARGET, sampler=lv.sgld(0.05), init=START, num_steps=60)


@pytest.fixture(scope="module")
def stopped():
    init = torch.tensor([[0.5], [30.0], [-0.5]], dtype=torch.float64)
    with pytest.warns(UserWarning, match="chain 1 stopped"):
        return lv.sample(lv.targets.energy(lambda theta: (theta**4).sum() / 4), sampler=lv.sgld(0.01), init=init, num_steps=60)


def draw(figure):
    figure.canvas.draw()
    return figure


def test_trace_has_a_panel_for_each_element_and_a_line_for_each_chain(samples):
    axes = dg.trace(samples)
    assert [panel.get_ylabel() for panel in axes] == [r"$\theta_{0}$", r"$\theta_{1}$"]
    for element, panel in enumerate(axes):
        assert len(panel.lines) == 3
        for chain, line in enumerate(panel.lines):
            np.testing.assert_array_equal(line.get_ydata(), samples.draws[chain, :, element])
    assert [text.get_text() for text in axes[0].get_legend().get_texts()] == ["chain 0", "chain 1", "chain 2"]
    draw(axes[0].figure)


def test_running_mean_ends_at_the_chains_means_and_shows_the_true_one(samples):
    (panel,) = dg.running_mean(samples, reference=[0.0, 0.25], elements=[1])
    truth, *chains = panel.lines
    assert set(truth.get_ydata()) == {0.25}
    assert truth.get_linestyle() == "--"
    np.testing.assert_allclose([line.get_ydata()[-1] for line in chains], samples.draws[:, :, 1].mean(1))
    assert list(chains[0].get_xdata()[[0, -1]]) == [1, 60]
    draw(panel.figure)


def test_autocorrelation_plot_starts_at_one_over_the_band_of_independence(samples):
    (panel,) = dg.autocorrelation_plot(samples, max_lag=20, elements=[0])
    _, *chains = panel.lines
    values = dg.autocorrelation(samples.draws, max_lag=20)
    for line, expected in zip(chains, values[..., 0], strict=True):
        np.testing.assert_allclose(line.get_ydata(), expected, atol=1e-12)
    (band,) = panel.patches
    assert (band.get_y(), band.get_y() + band.get_height()) == pytest.approx((-1.96 / 60**0.5, 1.96 / 60**0.5))
    draw(panel.figure)


def test_pair_shows_every_draw_over_contours_of_the_target(samples):
    panel = dg.pair(samples, TARGET)
    scatter, contours = panel.collections
    points = np.asarray(scatter.get_offsets())
    flat = samples.draws.reshape(-1, 2).numpy()
    np.testing.assert_array_equal(points[np.lexsort(points.T)], flat[np.lexsort(flat.T)])
    # The border of the p-region of a Gaussian in the plane has density exp(-U) = 1 - p.
    np.testing.assert_allclose(contours.levels, [0.05, 0.2, 0.5], atol=0.02)
    colours = {tuple(colour) for colour in scatter.get_facecolors()}
    assert len(colours) == 3
    draw(panel.figure)


def test_pair_shows_the_modes_that_draws_miss():
    target = lv.targets.mixture()
    samples = lv.sample(target, sampler=lv.sgld(0.01), init=torch.tensor([-3.0, -3.0]), num_steps=50)
    panel = dg.pair(samples, target)
    assert panel.get_xlim()[1] > 4
    assert panel.get_ylim()[1] > 4
    assert len(dg.pair(samples).collections) == 1


def test_plots_go_into_given_axes_and_open_no_figure(samples):
    figure, grid = plt.subplots(2, 2)
    assert dg.trace(samples, axes=grid[0]) == list(grid[0])
    assert dg.running_mean(samples, elements=[0], axes=[grid[1, 0]]) == [grid[1, 0]]
    assert dg.pair(samples, axes=grid[1, 1]) is grid[1, 1]
    assert len(plt.get_fignums()) == 1
    assert [panel.get_xlabel() for panel in grid[0]] == ["draw", "draw"]
    draw(figure)


def test_a_stopped_chain_has_a_cross_and_does_not_set_the_scale(stopped):
    for panel in (*dg.trace(stopped), *dg.running_mean(stopped)):
        (cross,) = [line for line in panel.lines if line.get_marker() == "x"]
        assert len(cross.get_xdata()) == 1
        low, high = panel.get_ylim()
        assert high - low < 6
        assert low <= cross.get_ydata()[0] <= high
        assert panel.get_legend().get_texts()[-1].get_text() == "stopped"
        draw(panel.figure)
    (panel,) = dg.autocorrelation_plot(stopped, max_lag=10)
    assert [text.get_text() for text in panel.get_legend().get_texts()] == ["chain 0", "chain 2"]
    draw(panel.figure)
    draw(dg.pair(stopped, elements=(0, 0)).figure)


def test_many_chains_share_one_colour_and_have_no_legend():
    samples = lv.sample(TARGET, sampler=lv.sgld(0.05), init=torch.zeros(40, 2), num_steps=20)
    axes = dg.trace(samples)
    assert {line.get_color() for line in axes[0].lines} == {axes[0].lines[0].get_color()}
    assert axes[0].get_legend() is None
    draw(axes[0].figure)


def test_long_chains_are_drawn_with_a_point_for_each_pixel_and_no_more():
    samples = lv.sample(lv.targets.gaussian([[1.0]]), sampler=lv.sgld(0.05), init=torch.zeros(1, 1), num_steps=5000)
    (panel,) = dg.trace(samples)
    (line,) = panel.lines
    assert len(line.get_xdata()) == 4000
    assert list(line.get_xdata()[[0, -1]]) == [0, 4999]
    assert panel.get_legend() is None


def test_bad_arguments_leave_no_figure_behind(samples):
    with pytest.raises(ValueError, match=r"trace\(elements=...\) needs elements below dim = 2, got 2"):
        dg.trace(samples, elements=[2])
    with pytest.raises(ValueError, match=r"pair\(target=...\) needs draws of two elements"):
        dg.pair(samples, TARGET, elements=(1, 0))
    assert plt.get_fignums() == []
