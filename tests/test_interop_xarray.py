"""``interop.to_xarray``: the study's numbers under their names."""

import sys

import numpy as np
import pytest

import jaxcascade as jc
from jaxcascade import interop

pytest.importorskip("xarray")

POLICIES = {"accept-all": jc.deferral.accept_all(), "defer-all": jc.deferral.defer_all()}
SIZE = {"num_steps": 40, "num_seeds": 3, "record": [10, 40]}


def make(gap=0.1, cost_expert=0.5):
    return jc.deferral.two_point(num_levels=2, gap=gap, cost_expert=cost_expert), POLICIES


@pytest.fixture(scope="module")
def grid():
    return jc.sweep(make, {"gap": [0.1, 0.2], "cost_expert": [0.3, 0.5, 0.7]}, **SIZE)


def test_a_grid_has_a_dimension_per_axis(grid):
    data = interop.to_xarray(grid)
    assert dict(data.sizes) == {"policy": 2, "gap": 2, "cost_expert": 3, "seed": 3, "step": 2}
    assert set(data.data_vars) == set(grid.metrics) and "deferral_rate" in data.data_vars
    assert (
        data["regret"].dims == ("policy", "gap", "cost_expert", "seed", "step") and data["regret"].dtype == np.float64
    )
    here = data["cost"].sel(policy="defer-all", gap=0.2, cost_expert=0.7, step=40)
    np.testing.assert_array_equal(here, grid.select(gap=0.2, cost_expert=0.7).final("defer-all", "cost"))
    assert data["regret"].attrs["long_name"] == "cumulative regret (cost units)"
    assert data.attrs["system"] == "deferral" and data.attrs["num_steps"] == 40 and data.attrs["seed"] == 0
    np.testing.assert_allclose(
        data["cost"].mean("seed").sel(policy="accept-all", gap=0.1, cost_expert=0.3),
        grid.select(gap=0.1, cost_expert=0.3).interval("accept-all", "cost").mean,
    )


def test_one_instance_has_no_axes():
    study = jc.compare(make()[0], POLICIES, **SIZE)
    data = interop.to_xarray(study)
    assert data["cost"].dims == ("policy", "seed", "step") and list(data["policy"].values) == list(POLICIES)
    np.testing.assert_array_equal(data["step"], study.steps)
    for policy in POLICIES:
        for metric in study.metrics:
            np.testing.assert_array_equal(data[metric].sel(policy=policy), study.curve(policy, metric))


def test_without_xarray_the_extra_is_named(monkeypatch, grid):
    monkeypatch.setitem(sys.modules, "xarray", None)
    with pytest.raises(ImportError, match=r"pip install 'jaxcascade\[xarray\]'"):
        interop.to_xarray(grid)
