"""Pictures: what they show, that nothing is covered or clipped, and that the user's matplotlib stays as it is."""

import itertools
import re
import subprocess
import sys

import matplotlib
import numpy as np
import pytest
from matplotlib.collections import PathCollection, PolyCollection, QuadMesh
from matplotlib.colors import to_rgba
from matplotlib.figure import Figure

import jaxcascade as jc
from jaxcascade import plotting
from jaxcascade.results import Study

THIRTEEN = [
    *("kl-pbd", "kl-pbd-plus", "greedy-bellman", "naive-bellman", "salmut-sf", "kl-ucb-4p", "kl-ucb-plus-4p"),
    *("fixed-confidence-threshold", "fixed-queue-threshold", "oracle", "accept-all", "defer-all", "random"),
]
PLANNERS = ("kl-pbd", "kl-pbd-plus", "greedy-bellman", "naive-bellman", "oracle")
RATES = {"service_rate": [0.2, 0.5, 1.0]}
GRID = {"num_levels": [2, 5, 10, 20], "gap": [0.02, 0.08]}


def make_study(policies=("kl-pbd",), axes=None, *, seeds=8, records=20, capacity=6, levels=4, **changes):
    """A study of made-up numbers: regret of order i sqrt(t), no threshold for policies that do not plan."""
    rng, axes = np.random.default_rng(3), axes or {}
    shape = (*(len(values) for values in axes.values()), seeds)
    steps = np.linspace(0, 200_000, records + 1)[1:].astype(int)
    curves, snapshots = {}, {}
    for place, name in enumerate(policies, 1):
        scale = place * rng.uniform(0.5, 1.5, (*shape, 1)) * np.arange(1, shape[0] + 1).reshape(-1, *[1] * len(shape))
        count = np.ones_like(scale) * steps
        curves[name] = {
            "regret": scale * np.sqrt(steps),
            "cost": -scale * steps,
            "threshold_mean": count * (1 if name in PLANNERS else np.nan),
            "arrivals": count,
            "deferrals": count / (1 + scale),
            "correct": count * 0.9,
            "accepted": count * scale / (1 + scale),
            "accepted_correct": count * 0.8 * scale / (1 + scale),
            "full_queue": 0 * count,
        } | {metric: change(scale, steps) for metric, change in changes.items()}
        if name in PLANNERS:
            threshold = 0.8 - 0.2 * np.arange(capacity + 1) + 0.01 * rng.normal(size=(*shape, 1))
            threshold[..., -1] = -np.inf
            accuracy = np.linspace(0.1, 0.9, levels)
            snapshots[name] = {"threshold": threshold, "decision": accuracy[:, None] < threshold[..., None, :]}
    return Study("deferral", steps, curves, axes, snapshots, {"snapshot": 100_000})


def figure_of(drawn):
    return drawn if isinstance(drawn, Figure) else drawn.figure


def legend_texts(ax):
    return [text.get_text().replace("\n", " ") for text in ax.get_legend().get_texts()]


def figure_legend_texts(figure):
    return [text.get_text() for text in figure.legends[0].get_texts()]


def legends_of(figure):
    return [*figure.legends, *(ax.get_legend() for ax in figure.axes if ax.get_legend())]


def mean_lines(ax):
    return [line for line in ax.lines if len(line.get_xdata()) > 1 and line.get_marker() not in ("none", "None")]


def assert_nothing_clipped(drawn):
    figure = figure_of(drawn)
    figure.draw_without_rendering()
    width, height = figure.get_size_inches()
    box = figure.get_tightbbox()
    assert box.x0 > -0.02 and box.y0 > -0.02 and box.x1 < width + 0.02 and box.y1 < height + 0.02, box
    for legend in legends_of(figure):
        extent = legend.get_window_extent()
        assert figure.bbox.x0 - 1 <= extent.x0 and extent.x1 <= figure.bbox.x1 + 1
        assert figure.bbox.y0 - 1 <= extent.y0 and extent.y1 <= figure.bbox.y1 + 1


def assert_legends_cover_nothing(drawn):
    """No legend stands in a frame or over the title of the figure."""
    figure = figure_of(drawn)
    figure.draw_without_rendering()
    for box in (legend.get_window_extent() for legend in legends_of(figure)):
        assert not any(box.overlaps(ax.get_window_extent()) for ax in figure.axes)
        assert figure._suptitle is None or not box.overlaps(figure._suptitle.get_window_extent())


# --- curves


def test_curves_draw_the_mean_and_its_band_for_every_policy():
    study = make_study(["kl-pbd", "oracle"])
    ax = plotting.plot_curves(study)
    assert ax.get_xlabel() == "round t"
    assert ax.get_ylabel() == "cumulative regret (cost units)"
    assert ax.get_title() == "Cumulative regret over 200,000 rounds"
    assert legend_texts(ax) == ["kl-pbd", "oracle"]
    assert ax.get_legend().get_title().get_text() == "mean of 8 seeds, 95 % band"
    bands = [band for band in ax.collections if isinstance(band, PolyCollection)]
    assert len(bands) == len(mean_lines(ax)) == 2
    for name, line, band in zip(study.policies, ax.lines, bands, strict=True):
        interval = study.interval(name, "regret")
        np.testing.assert_allclose(line.get_xdata(), study.steps)
        np.testing.assert_allclose(line.get_ydata(), interval.mean)
        top = band.get_paths()[0].vertices[:, 1].max()
        np.testing.assert_allclose(top, (interval.mean + interval.ci95).max())
    assert_nothing_clipped(ax)


def test_thirteen_policies_look_different_and_the_legend_stands_outside():
    ax = plotting.plot_curves(make_study(THIRTEEN))
    looks = {(line.get_color(), str(line.get_linestyle()), line.get_marker()) for line in ax.lines}
    assert len(looks) == len({line.get_marker() for line in ax.lines}) == 13
    assert_nothing_clipped(ax)
    assert ax.get_legend().get_window_extent().x0 > ax.get_window_extent().x1


def test_long_and_odd_names_fit():
    names = ["kl-pbd with " + "a very long name " * 6, "x" * 90, "_hidden", "cost $1 to $2", "unité λ=½"]
    ax = plotting.plot_curves(make_study(names), title="A title that goes on and on, longer than the frame " * 3)
    assert legend_texts(ax)[0] == names[0].strip()
    assert legend_texts(ax)[2].strip() == "_hidden"
    assert_nothing_clipped(ax)


def test_undefined_policies_are_named_in_the_legend():
    ax = plotting.plot_curves(make_study(["kl-pbd", "random"]), "threshold_mean")
    assert legend_texts(ax) == ["kl-pbd", "random (undefined)"]
    assert len(ax.lines) == 1
    with pytest.raises(ValueError, match=r"metric: .*'threshold_mean', which is undefined"):
        plotting.plot_curves(make_study(["random"]), "threshold_mean")


def test_log_scales_leave_out_what_they_cannot_show():
    study = make_study(["kl-pbd", "oracle"])
    study.curves["oracle"]["regret"] *= 0
    ax = plotting.plot_curves(study, xscale="log", yscale="log")
    assert ax.get_xscale() == ax.get_yscale() == "log"
    assert legend_texts(ax) == ["kl-pbd", "oracle (not above zero)"]
    assert_nothing_clipped(ax)
    with pytest.raises(ValueError, match="metric: expected numbers above zero"):
        plotting.plot_curves(make_study(), "cost", yscale="log")


def test_theory_is_dotted_at_the_recorded_rounds():
    study = make_study()
    ax = plotting.plot_curves(study, theory={"Theorem 1": np.log(study.steps) * 400, "floor": 10})
    assert legend_texts(ax) == ["kl-pbd", "Theorem 1", "floor"]
    np.testing.assert_allclose(ax.lines[1].get_ydata(), np.log(study.steps) * 400)
    np.testing.assert_allclose(ax.lines[2].get_ydata(), 10)
    assert ax.lines[1].get_marker() == "none"
    with pytest.raises(ValueError, match=r"theory: expected one number, 20 .*'bad', got shape \(3,\)"):
        plotting.plot_curves(study, theory={"bad": [1, 2, 3]})


def test_theory_of_a_grid_follows_its_axes():
    study = make_study(axes=RATES)
    bounds = np.array([1.0, 2.0, 3.0])[:, None] * np.sqrt(study.steps)
    ax = plotting.plot_curves(study, theory={"bound": bounds})
    dotted = [line for line in ax.lines if line.get_marker() == "none"]
    assert [line.get_ydata()[-1] for line in dotted] == pytest.approx(list(bounds[:, -1]))
    assert [line.get_color() for line in dotted] == [line.get_color() for line in mean_lines(ax)]
    assert legend_texts(ax)[-1] == "bound"


def test_reference_draws_paired_differences():
    study = make_study(["kl-pbd", "oracle", "random"])
    ax = plotting.plot_curves(study, reference="oracle")
    assert legend_texts(ax) == ["kl-pbd", "random"]
    np.testing.assert_allclose(ax.lines[0].get_ydata(), study.paired("kl-pbd", "oracle", "regret").mean)
    assert ax.get_ylabel().replace("\n", " ") == "cumulative regret (cost units), difference to oracle"
    assert ax.get_title().replace("\n", " ").endswith("difference to oracle")
    with pytest.raises(ValueError, match="reference: expected another policy"):
        plotting.plot_curves(study, policies=["oracle"], reference="oracle")


def test_ymax_lists_what_leaves_the_frame():
    study = make_study(["kl-pbd", "greedy-bellman"])
    study.curves["greedy-bellman"]["regret"][:] = study.steps * 0.5
    ax = plotting.plot_curves(study, ymax=2500)
    assert ax.get_ylim()[1] == 2500
    assert legend_texts(ax) == ["kl-pbd", "greedy-bellman (ends at 100,000)"]
    assert 0 < ax.get_ylim()[0] < 400
    assert_nothing_clipped(ax)
    assert all("ends at" in text for text in legend_texts(plotting.plot_curves(study, ymax=-5)))


def test_one_policy_on_an_axis_has_a_line_per_value():
    ax = plotting.plot_curves(make_study(axes=RATES))
    assert legend_texts(ax) == ["service rate = 0.2", "service rate = 0.5", "service rate = 1"]
    assert ax.get_legend().get_title().get_text() == "kl-pbd\nmean of 8 seeds, 95 % band"
    light = [0.299 * c[0] + 0.587 * c[1] + 0.114 * c[2] for c in (to_rgba(line.get_color()) for line in ax.lines)]
    assert light == sorted(light) and light[-1] - light[0] > 0.3
    assert len({line.get_marker() for line in ax.lines}) == 3


def test_policies_on_an_axis_have_a_panel_per_value():
    study = make_study(["kl-pbd", "oracle"], RATES)
    figure = plotting.plot_curves(study, ymax=1000)
    assert isinstance(figure, Figure)
    assert figure_legend_texts(figure) == ["kl-pbd", "oracle"]
    assert (figure.get_supxlabel(), figure.get_supylabel()) == ("round t", "cumulative regret (cost units)")
    mean = study.interval("oracle", "regret").mean
    np.testing.assert_allclose(figure.axes[1].lines[1].get_ydata(), mean[1])
    for ax, rate, last in zip(figure.axes, ("0.2", "0.5", "1"), mean[:, -1], strict=True):
        assert ax.get_title().split("\n")[0] == f"service rate = {rate}"
        assert (f"oracle: ends at {last:,.0f}" in ax.get_title().replace("\n", " ")) == (last > 1000)
    assert_nothing_clipped(figure)


def test_panels_of_two_axes_make_a_grid_which_must_not_be_too_large():
    figure = plotting.plot_curves(make_study(["kl-pbd", "oracle"], GRID, records=2))
    assert len(figure.axes) == 8
    assert figure.axes[3].get_title() == "num levels = 5, gap = 0.08"

    study = make_study(["kl-pbd", "oracle"], {"a": list(range(10)), "b": list(range(5))}, seeds=1, records=2)
    with pytest.raises(ValueError, match="expected at most 36 panels, got 10 of a, 5 of b"):
        plotting.plot_curves(study)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"metric": "regrt"}, r"metric: .*got 'regrt' \(did you mean 'regret'\?\)"),
        ({"policies": []}, "policies: expected some of kl-pbd, oracle, got none"),
        ({"xscale": "lin"}, "xscale: expected one of linear, log, got 'lin'"),
        ({"reference": "oracel"}, r"reference: .*did you mean 'oracle'"),
    ],
)
def test_curves_refuse_wrong_names(options, message):
    with pytest.raises(ValueError, match=message):
        plotting.plot_curves(make_study(["kl-pbd", "oracle"]), **options)


def test_given_axes_are_drawn_into():
    figure = Figure(figsize=(12, 4))
    left, right = figure.subplots(1, 2)
    assert plotting.plot_curves(make_study(), ax=left) is left
    study = make_study(THIRTEEN)
    plotting.plot_curves(study, ax=right)
    narrow = right.get_position().width
    plotting.plot_curves(study, ax=right)
    assert right.get_position().width == pytest.approx(narrow)
    figure.draw_without_rendering()
    assert right.get_legend().get_window_extent().x1 < figure.bbox.x1
    with pytest.raises(ValueError, match="ax: expected none for a picture of 3 panels"):
        plotting.plot_curves(make_study(["kl-pbd", "oracle"], RATES), ax=left)


# --- sweeps


def test_sweep_draws_final_means_in_order_of_the_axis():
    study = make_study(["kl-pbd", "oracle"], {"service_rate": [0.5, 0.2, 1.0]})
    ax = plotting.plot_sweep(study)
    assert ax.get_xlabel() == "service rate"
    assert ax.get_title() == "Cumulative regret after 200,000 rounds"
    assert legend_texts(ax) == ["kl-pbd", "oracle"]
    line = ax.containers[0].lines[0]
    np.testing.assert_allclose(line.get_xdata(), [0.2, 0.5, 1.0])
    np.testing.assert_allclose(line.get_ydata(), study.interval("kl-pbd", "regret").mean[[1, 0, 2], -1])
    bars = ax.containers[0].lines[2][0].get_segments()
    half = study.interval("kl-pbd", "regret").ci95[[1, 0, 2], -1]
    np.testing.assert_allclose([bar[1, 1] - bar[0, 1] for bar in bars], 2 * half)
    assert_nothing_clipped(ax)


def test_sweep_of_one_policy_has_a_line_per_value_of_the_second_axis():
    ax = plotting.plot_sweep(make_study(axes=GRID), xscale="log", yscale="log")
    assert legend_texts(ax) == ["gap = 0.02", "gap = 0.08"]
    ax.figure.draw_without_rendering()
    assert [tick.get_text() for tick in ax.get_xticklabels()] == ["2", "5", "10", "20"]
    assert legend_texts(plotting.plot_sweep(make_study(axes=GRID), axis="gap"))[0] == "num levels = 2"
    figure = plotting.plot_sweep(make_study(["kl-pbd", "oracle"], GRID))
    assert [panel.get_title() for panel in figure.axes] == ["gap = 0.02", "gap = 0.08"]
    assert_nothing_clipped(figure)


def test_sweep_over_words():
    study = make_study(["kl-pbd", "random"], {"model": ["Qwen3-0.6B", "Qwen3-4B Instruct 2507", None]}, seeds=1)
    ax = plotting.plot_sweep(study, ymax=1500)
    ax.figure.draw_without_rendering()
    labels = [tick.get_text().replace("\n", " ") for tick in ax.get_xticklabels()]
    assert labels == ["Qwen3-0.6B", "Qwen3-4B Instruct 2507", "None"]
    assert re.fullmatch(r"random \(ends at \d,\d\d\d\)", legend_texts(ax)[1])
    with pytest.raises(ValueError, match="xscale: expected numbers above zero on 'model'"):
        plotting.plot_sweep(study, xscale="log")


def test_heatmap_writes_the_means_into_its_cells():
    study = make_study(axes=GRID)
    study.curves["kl-pbd"]["regret"][0, 0] = np.nan
    ax = plotting.plot_heatmap(study)
    mean = study.interval("kl-pbd", "regret").mean[..., -1]
    assert [text.get_text() for text in ax.texts][:3] == ["–", f"{mean[0, 1]:,.0f}", f"{mean[1, 0]:,.0f}"]
    assert len(ax.texts) == mean.size
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("gap", "num levels")
    assert ax.get_title().replace("\n", " ") == "Cumulative regret of kl-pbd after 200,000 rounds"
    assert [tick.get_text() for tick in ax.get_yticklabels()] == ["2", "5", "10", "20"]
    for text in ax.texts:
        box = text.get_window_extent()
        assert box.width < ax.get_window_extent().width / 2
    assert_nothing_clipped(ax)


def test_heatmap_of_a_large_grid_stays_readable():
    axes = {"num_steps": [10_000 * i for i in range(1, 13)], "gap": list(np.linspace(-0.123456, 0.1, 12))}
    ax = plotting.plot_heatmap(make_study(axes=axes, seeds=1, records=1), "cost")
    assert_nothing_clipped(ax)
    boxes = [label.get_window_extent() for label in ax.get_xticklabels()]
    assert all(first.x1 <= second.x0 + 1 for first, second in itertools.pairwise(boxes))
    tiny = Figure(figsize=(3, 2)).subplots()
    assert not plotting.plot_heatmap(make_study(axes=axes, seeds=1, records=1), ax=tiny).texts


def test_heatmap_errors():
    with pytest.raises(ValueError, match="study: expected two axes, got service_rate"):
        plotting.plot_heatmap(make_study(axes=RATES))
    with pytest.raises(ValueError, match="policy: expected one of kl-pbd, oracle, got none"):
        plotting.plot_heatmap(make_study(["kl-pbd", "oracle"], GRID))


def test_scatter_has_a_point_a_seed_and_the_correlation():
    study = make_study(["kl-pbd", "oracle"])
    study.curves["oracle"]["regret"][:] = 5
    ax = plotting.plot_scatter(study)
    clouds = [cloud for cloud in ax.collections if isinstance(cloud, PathCollection)]
    x, y = study.final("kl-pbd", "deferral_rate"), study.final("kl-pbd", "regret")
    np.testing.assert_allclose(clouds[0].get_offsets(), np.stack([x, y], axis=1))
    expected = f"{np.corrcoef(x, y)[0, 1]:.2f}".replace("-", "−")
    assert legend_texts(ax) == [f"kl-pbd (r = {expected})", "oracle"]
    assert ax.get_xlabel() == "share of queries deferred"
    assert ax.get_legend().get_title().get_text() == "1 point a seed, 8 seeds"
    assert_nothing_clipped(ax)
    assert legend_texts(plotting.plot_scatter(make_study(seeds=2))) == ["kl-pbd"]
    figure = plotting.plot_scatter(make_study(["kl-pbd", "oracle"], RATES))
    assert all("kl-pbd: r = " in panel.get_title() for panel in figure.axes)


def test_thresholds_leave_out_the_full_queue_and_stop_at_zero():
    study = make_study(["kl-pbd", "random"])
    ax = plotting.plot_thresholds(study)
    line = ax.lines[0]
    expected = np.maximum(study.snapshots["kl-pbd"]["threshold"], 0).mean(axis=0)[:-1]
    assert np.isnan(line.get_ydata()[-1])
    np.testing.assert_allclose(line.get_ydata()[:-1], expected)
    assert legend_texts(ax) == ["kl-pbd"]
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("queue length (queries)", "accuracy threshold")
    assert ax.get_title() == "Accuracy threshold after round 100,000"
    assert len(ax.collections) == 1


def test_decisions_show_the_most_frequent_one():
    study = make_study(["kl-pbd", "oracle", "random"])
    decisions = study.snapshots["kl-pbd"]["decision"]
    decisions[:4], decisions[4:] = True, False
    decisions[4, 0, 0] = True
    figure = plotting.plot_decisions(study)
    assert [ax.get_title() for ax in figure.axes] == ["kl-pbd", "oracle"]
    mesh = next(artist for artist in figure.axes[0].collections if isinstance(artist, QuadMesh))
    shown = np.asarray(mesh.get_array()).reshape(decisions.shape[1:])
    assert shown[0, 0] == 1 and shown.sum() == 1
    assert figure_legend_texts(figure) == ["defer", "accept"]
    assert (figure.get_supxlabel(), figure.get_supylabel()) == ("queue length (queries)", "confidence level")
    colours = [np.dot(patch.get_facecolor()[:3], (0.299, 0.587, 0.114)) for patch in figure.legends[0].get_patches()]
    assert abs(colours[0] - colours[1]) > 0.4
    assert_nothing_clipped(figure)


def test_rules_must_have_been_recorded():
    for function, what in ((plotting.plot_thresholds, "threshold"), (plotting.plot_decisions, "decision")):
        with pytest.raises(ValueError, match=rf"study: expected a snapshot of {what}s"):
            function(make_study(["random"]))
        with pytest.raises(ValueError, match="policies: expected one of kl-pbd, got 'random'"):
            function(make_study(["kl-pbd", "random"]), policies=["random"])


def test_calibration_shows_accuracies_and_arrivals():
    instance = jc.deferral.make_instance([0.2, 0.9], [0.1, 0.3, 0.6])
    figure = plotting.plot_calibration(instance)
    left, right = figure.axes
    np.testing.assert_allclose(left.lines[0].get_xydata(), [[0, 0], [1, 1]])
    np.testing.assert_allclose(left.lines[1].get_ydata(), [0.2, 0.9], rtol=1e-6)
    assert [patch.get_height() for patch in right.patches] == pytest.approx([0.3, 0.6, 0.1])
    assert_nothing_clipped(figure)
    with pytest.raises(ValueError, match="instance: expected a deferral instance, got dict"):
        plotting.plot_calibration({})


# --- what holds for every picture

STUDY, SWEEP = make_study(THIRTEEN[:4]), make_study(THIRTEEN[:3], RATES)
PICTURES = {
    "curves": lambda: plotting.plot_curves(STUDY, theory={"bound": 900}),
    "many curves": lambda: plotting.plot_curves(make_study(THIRTEEN), ymax=1500),
    "curve panels": lambda: plotting.plot_curves(SWEEP, ymax=1200),
    "many lines in panels": lambda: plotting.plot_curves(make_study(THIRTEEN, RATES, records=3), ymax=900),
    "sweep": lambda: plotting.plot_sweep(make_study(axes=GRID), xscale="log", yscale="log"),
    "scatter": lambda: plotting.plot_scatter(make_study(THIRTEEN[:2])),
    "threshold panels": lambda: plotting.plot_thresholds(SWEEP),
    "decisions": lambda: plotting.plot_decisions(make_study()),
}


@pytest.mark.parametrize("name", PICTURES)
def test_pictures_keep_clear_show_themselves_and_change_no_settings(name):
    before = matplotlib.rcParams.copy()
    drawn = PICTURES[name]()
    assert drawn._repr_png_().startswith(b"\x89PNG")
    assert_nothing_clipped(drawn)
    assert_legends_cover_nothing(drawn)
    assert matplotlib.rcParams.copy() == before


def test_pyplot_is_not_imported_and_the_backend_not_chosen():
    code = """
import sys, matplotlib
before = {key: dict.__getitem__(matplotlib.rcParams, key) for key in matplotlib.rcParams}
import numpy as np, jaxcascade
study = jaxcascade.Study("deferral", np.arange(1, 4), {"a": {"regret": np.ones((2, 3))}})
study.plot()._repr_png_()
assert {key: dict.__getitem__(matplotlib.rcParams, key) for key in matplotlib.rcParams} == before
assert "matplotlib.pyplot" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


# --- draw


def test_draw_writes_the_files(tmp_path):
    figures = [
        {"kind": "curves", "metric": "regret", "ymax": 900},
        {"kind": "curves", "metric": "regret", "select": {"service_rate": 0.5}},
        {"kind": "sweep", "metric": "deferral_rate", "title": "Own title"},
        {"kind": "scatter", "select": {"service_rate": 1}, "file": "cloud.svg"},
    ]
    paths = plotting.draw(make_study(["kl-pbd", "oracle"], RATES), figures, tmp_path / "new", title="Two-point")
    names = ["curves_regret.png", "curves_regret_2.png", "sweep_deferral_rate.png", "cloud.svg"]
    assert [path.name for path in paths] == names
    assert sorted(path.name for path in (tmp_path / "new").iterdir()) == sorted(path.name for path in paths)
    from PIL import Image

    with Image.open(paths[1]) as image:
        assert image.info["dpi"] == pytest.approx((150, 150), abs=0.1)
    assert plotting.draw(make_study(axes=GRID), [{"kind": "heatmap"}], tmp_path)[0].name == "heatmap_regret.png"


def test_titles_name_the_study_and_the_selection_and_keep_clear_of_the_legend(tmp_path, monkeypatch):
    titles = []

    def record(figure, path, **options):
        assert_nothing_clipped(figure)
        assert_legends_cover_nothing(figure)
        titles.append((figure.get_suptitle() or figure.axes[0].get_title()).replace("\n", " "))
        path.touch()

    monkeypatch.setattr(plotting._style.ShownFigure, "savefig", record)
    kinds = ({"kind": "curves", "select": {"service_rate": 0.5}}, {"kind": "thresholds"}, {"kind": "decisions"})
    rates = {"service_rate": [0.5, 1.0]}
    long = "Oracle and learned thresholds and decisions (Figures 4, 8 and 15)"
    plotting.draw(make_study(["kl-pbd", "oracle"], rates, records=2), kinds[:1], tmp_path)
    for title in (long, f"{long}, {long}, {long}"):
        plotting.draw(make_study(["kl-pbd", "oracle"], rates, records=2), kinds, tmp_path, title=title)
    assert titles[0] == "Cumulative regret over 200,000 rounds (service rate = 0.5)"
    assert titles[1] == f"{long} {titles[0]}"
    assert titles[2:4] == [f"{long} Accuracy threshold after round 100,000", f"{long} Decisions after round 100,000"]


@pytest.mark.parametrize(
    ("figure", "message"),
    [
        ({"kind": "curve"}, r"figures\[1\]\.kind: .*got 'curve' \(did you mean 'curves'\?\)"),
        ({}, r"figures\[1\]\.kind: expected one of .*, got ''"),
        ({"kind": "curves", "metrc": "regret"}, r"figures\[1\]\.metrc: .*did you mean 'metric'"),
        ({"kind": "scatter", "x": "deferal_rate"}, r"figures\[1\]\.x: .*did you mean 'deferral_rate'"),
        ({"kind": "curves", "select": {"service_rate": 0.3}}, r"figures\[1\]\.service_rate: expected one of 0.2"),
        ({"kind": "curves", "file": "a.gif"}, r"figures\[1\]\.file: expected a plain file name"),
        ({"kind": "curves", "file": "first.png"}, r"figures\[1\]\.file: expected another name"),
    ],
)
def test_draw_writes_nothing_unless_all_can_be_drawn(tmp_path, figure, message):
    figures = [{"kind": "curves", "file": "first.png"}, figure]
    with pytest.raises(ValueError, match=message) as caught:
        plotting.draw(make_study(["kl-pbd", "oracle"], RATES), figures, tmp_path)
    assert "\n" not in str(caught.value)
    assert not list(tmp_path.iterdir())


def test_a_guide_grows_as_it_says_and_meets_the_middle_curve():
    study = make_study(("kl-pbd", "oracle", "random"))
    axes = plotting.plot_curves(study, guide="sqrt")
    guide = next(line for line in axes.lines if line.get_marker() in ("none", "None", "") and len(line.get_xdata()) > 2)
    values = np.asarray(guide.get_ydata())
    np.testing.assert_allclose(values / values[-1], np.sqrt(study.steps / study.steps[-1]))
    middle = np.median([study.interval(name, "regret").mean[-1] for name in study.policies])
    assert values[-1] == pytest.approx(middle)
    with pytest.raises(ValueError, match="guide: expected one of log, sqrt"):
        plotting.plot_curves(study, guide="square")
