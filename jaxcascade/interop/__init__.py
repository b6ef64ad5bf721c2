"""Ways out of the package: environments for reinforcement learners, studies as labelled arrays.

The packages on the other side are extras, ``gymnax`` and ``xarray``, and imported by the call that needs them.
"""

from jaxcascade.interop.interfaces import Interface, cascade_interface, deferral_interface, queueing_interface
from jaxcascade.interop.labelled import to_xarray
from jaxcascade.interop.reinforcement import to_gymnax

__all__ = [
    "Interface",
    "cascade_interface",
    "deferral_interface",
    "queueing_interface",
    "to_gymnax",
    "to_xarray",
]
