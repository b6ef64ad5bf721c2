"""Batched simulation of three decision systems that put LLMs to work, in JAX.

* ``jaxcascade.cascade``: which APIs to query, in which order, and when to stop.
* ``jaxcascade.queueing``: which waiting query to serve next and with which LLMs, when unhappy users come back.
* ``jaxcascade.deferral``: answer, or defer to a congested expert whose labels come late.

``compare`` runs a study of policies on common random numbers, ``sweep`` a grid of them, ``simulate`` one
policy as a pure function for use inside other JAX code.

Where things are: builders of instances and factories of policies in the three systems; ``kernels`` the mathematics,
for use in other code; ``data`` readers of logs and tables; ``plotting`` figures of studies; ``testing`` checks for
policies and environments of one's own; ``interop`` gymnax and xarray; ``Policy`` and ``Environment`` the contract.
The command line is ``jaxcascade`` (``jaxcascade --help``).
"""

import importlib
from typing import Any

from jaxcascade import cascade, data, deferral, interop, kernels, queueing, testing
from jaxcascade._version import __version__
from jaxcascade.arrays import load_instance, save_instance
from jaxcascade.core import Audit, Environment, Policy, System, get_system, register_system, systems
from jaxcascade.results import Interval, Study, load_study
from jaxcascade.simulate import Trajectories, simulate
from jaxcascade.study import compare, sweep


def __getattr__(name: str) -> Any:
    # Matplotlib takes longer to import than all of the rest; whoever does not plot need not wait for it.
    if name == "plotting":
        return importlib.import_module("jaxcascade.plotting")
    raise AttributeError(f"module 'jaxcascade' has no attribute {name!r}")


__all__ = [
    "Audit",
    "Environment",
    "Interval",
    "Policy",
    "Study",
    "System",
    "Trajectories",
    "__version__",
    "cascade",
    "compare",
    "data",
    "deferral",
    "get_system",
    "interop",
    "kernels",
    "load_instance",
    "load_study",
    "plotting",
    "queueing",
    "register_system",
    "save_instance",
    "simulate",
    "sweep",
    "systems",
    "testing",
]
