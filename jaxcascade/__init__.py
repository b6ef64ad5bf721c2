"""Batched simulation of three decision systems that put LLMs to work, in JAX.

* ``jaxcascade.cascade``: which APIs to query, in which order, and when to stop.
* ``jaxcascade.deferral``: answer, or defer to a congested expert whose labels come late.

``compare`` runs a study of policies on common random numbers, ``sweep`` a grid of them, ``simulate`` one
policy as a pure function for use inside other JAX code. ``jaxcascade.kernels`` holds the mathematics.
"""

from jaxcascade import cascade, data, deferral, kernels
from jaxcascade._version import __version__
from jaxcascade.core import Audit, Environment, Policy, System, get_system, register_system, systems
from jaxcascade.simulate import Trajectories, simulate
from jaxcascade.study import (
    Interval,
    Study,
    compare,
    load_instance,
    load_study,
    save_instance,
    sweep,
)

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
    "kernels",
    "load_instance",
    "load_study",
    "register_system",
    "save_instance",
    "simulate",
    "sweep",
    "systems",
]
