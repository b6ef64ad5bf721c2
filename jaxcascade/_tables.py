"""Results as plain text tables of at most 120 columns."""

import math
import os
from collections.abc import Mapping, Sequence
from typing import Any

from jaxcascade._paper import PaperRow
from jaxcascade.config import Config, paper_table
from jaxcascade.core import get_system
from jaxcascade.results import Study

_WIDTH = 120
_GAP = "  "
_FIRST_METRICS = ("regret", "cost", "utility", "reward", "queue_gap")
_MOST_DECIMALS = 8
_LONGEST_VALUE = 30


def report(config: Config, study: Study) -> str:
    """All tables of a run under its title: results, differences to the baseline, published numbers."""
    parts = [f"{config.title or os.path.basename(config.path)}: round {study.steps[-1]}, {study.num_seeds} seeds"]
    parts.append(results_table(study))
    if config.baseline is not None:
        parts += [f"minus {config.baseline}, paired by seed", paired_table(study, config.baseline)]
    rows = paper_table(config, study)
    if rows:
        parts += ["beside the published numbers", paper_rows(rows)]
    if rows and not config.comparable:
        parts.append("no z: horizon, instance or policies are not those of the file")
    return "\n\n".join(parts)


def results_table(study: Study) -> str:
    """Mean and 95 % half width of the main metrics at the last recorded round, a row per grid point and policy."""
    metrics = main_metrics(study)
    rows = []
    for point, policy, part in _parts(study):
        rows.append([*map(_value, point.values()), policy, *(_final(part, policy, metric) for metric in metrics)])
    return text_table([*study.axes, "policy", *metrics], rows, len(study.axes) + 1)


def paired_table(study: Study, baseline: str) -> str:
    """Every other policy's final metrics minus the baseline's, paired by seed: mean and 95 % half width."""
    metrics, rows = main_metrics(study), []
    for point, policy, part in _parts(study):
        if policy != baseline:
            gaps = [part.paired(policy, baseline, metric) for metric in metrics]
            cells = [number(float(gap.mean[-1]), float(gap.ci95[-1])) for gap in gaps]
            rows.append([*map(_value, point.values()), policy, *cells])
    return text_table([*study.axes, "policy", *metrics], rows, len(study.axes) + 1)


def paper_rows(rows: Sequence[PaperRow]) -> str:
    """Our numbers beside the published ones; "-" for a z that says nothing."""
    axes = list(dict.fromkeys(axis for row in rows for axis in row.point))
    cells = [
        [
            *(_value(row.point[axis]) if axis in row.point else "-" for axis in axes),
            row.policy,
            row.metric,
            number(row.ours, row.ours_ci95),
            number(row.paper, row.paper_ci95),
            "-" if row.n is None else str(row.n),
            "-" if math.isnan(row.z) else f"{row.z:+.2f}",
        ]
        for row in rows
    ]
    return text_table([*axes, "policy", "metric", "ours", "paper", "n", "z"], cells, len(axes) + 2)


def comparison_table(studies: Mapping[str, Study]) -> str:
    """Final metrics of several runs side by side, a row per grid point, policy and metric of any of them."""
    axes = list(dict.fromkeys(axis for study in studies.values() for axis in study.axes))
    rows: dict[tuple[str, ...], dict[str, str]] = {}
    for run, study in studies.items():
        for point, policy, part in _parts(study):
            place = [_value(point[axis]) if axis in point else "-" for axis in axes]
            for metric in main_metrics(study):
                rows.setdefault((*place, policy, metric), {})[run] = _final(part, policy, metric)
    cells = [[*key, *(found.get(run, "-") for run in studies)] for key, found in rows.items()]
    return text_table([*axes, "policy", "metric", *studies], cells, len(axes) + 2)


def main_metrics(study: Study) -> list[str]:
    """The metrics worth a column: what the policies are judged by, time averages and ratios."""
    recorded = study.metrics
    ratios = get_system(study.system).ratios
    means = [metric for metric in recorded if metric.endswith("_mean")]
    return list(dict.fromkeys([*(metric for metric in _FIRST_METRICS if metric in recorded), *means, *ratios]))


def number(mean: float, half_width: float) -> str:
    """``mean ± half width``, the half width to two digits; "-" for nan, the mean alone if there is no spread."""
    if not math.isfinite(mean):
        return "-" if math.isnan(mean) else str(mean)
    if not math.isfinite(half_width):
        return f"{mean:.6g}"
    if half_width < 10.0**-_MOST_DECIMALS:  # no spread, or that of rounding
        return f"{round(mean, _MOST_DECIMALS) + 0.0:.6g} ± 0"
    decimals = min(max(1 - math.floor(math.log10(half_width)), 0), _MOST_DECIMALS)
    return f"{mean:.{decimals}f} ± {half_width:.{decimals}f}"


def text_table(header: Sequence[str], rows: Sequence[Sequence[str]], num_keys: int) -> str:
    """The rows under their header; columns that do not fit go into a second table, with the first
    ``num_keys`` columns repeated.
    """
    columns = [[title, *(row[i] for row in rows)] for i, title in enumerate(header)]
    widths = [max(map(len, column)) for column in columns]
    keys = list(range(num_keys))
    room = _WIDTH - sum(widths[i] + len(_GAP) for i in keys)
    blocks: list[list[int]] = [[]]
    for i in range(num_keys, len(header)):
        used = sum(widths[j] + len(_GAP) for j in blocks[-1])
        if blocks[-1] and used + widths[i] > room:
            blocks.append([])
        blocks[-1].append(i)

    def line(r: int, block: list[int]) -> str:
        texts = [columns[i][r].ljust(widths[i]) for i in keys] + [columns[i][r].rjust(widths[i]) for i in block]
        return _GAP.join(texts).rstrip()

    return "\n\n".join("\n".join(line(r, block) for r in range(len(rows) + 1)) for block in blocks)


def _parts(study):
    for point in study.points():
        part = study.select(**point)
        for policy in study.policies:
            yield point, policy, part


def _final(study, policy, metric):
    interval = study.interval(policy, metric)
    return number(float(interval.mean[-1]), float(interval.ci95[-1]))


def _value(value: Any) -> str:
    text = str(value)
    return text if len(text) <= _LONGEST_VALUE else text[: _LONGEST_VALUE - 3] + "..."
