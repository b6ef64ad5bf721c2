"""Studies as labelled arrays."""

from typing import TYPE_CHECKING

import numpy as np

from jaxcascade.core import get_system
from jaxcascade.results import Study

if TYPE_CHECKING:
    import xarray


def to_xarray(study: Study) -> "xarray.Dataset":
    """A Dataset with one variable per metric over ``(policy, *axes, seed, step)``, float64.

    Coordinates are the policies' names, the values of the study's axes, the seeds' numbers from 0 and the recorded
    rounds; metrics that are ratios of others are there too, nan where nothing is below the line. Variables have
    their label with its unit as ``long_name``. What the study says of itself is in ``attrs``, as far as it is plain.

    Args:
      study: a study, or a grid of them.

    Raises:
      ImportError: if xarray is not installed.
    """
    try:
        import xarray
    except ImportError as error:
        raise ImportError("to_xarray needs xarray: pip install 'jaxcascade[xarray]'") from error
    dims = ("policy", *study.axes, "seed", "step")
    labels = get_system(study.system).labels
    variables = {
        metric: (
            dims,
            np.stack([study.curve(policy, metric) for policy in study.policies]),
            {"long_name": labels.get(metric, metric)},
        )
        for metric in study.metrics
    }
    coordinates = {"policy": study.policies, **study.axes, "seed": np.arange(study.num_seeds), "step": study.steps}
    plain = {name: value for name, value in study.meta.items() if isinstance(value, (str, int, float))}
    return xarray.Dataset(variables, coordinates, {"system": study.system, **plain})
