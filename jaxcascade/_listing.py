"""What there is to choose from in an experiment's TOML file, as text."""

import inspect
import textwrap
from collections.abc import Callable, Iterable

from jaxcascade.core import System, systems
from jaxcascade.data import level_counts

_WIDTH = 120


def listing() -> str:
    """All systems with their instances, policies and metrics, and the shipped log tables."""
    lines = []
    for system in systems().values():
        lines += _system(system)
    lines.append('log tables, for [instance] log = "NAME" (dataset, model, samples a question, questions)')
    tables = level_counts()
    width = max(map(len, tables))
    for name, table in tables.items():
        about = f"{table.dataset}, {table.model}, {table.num_samples}, {table.count.sum()}"
        lines.append(f"  {name:<{width}}  {about}")
    return "\n".join(lines)


def _system(system: System) -> Iterable[str]:
    yield f'system = "{system.name}"'
    for title, entries in (("[instance] kind", system.builders), ("[policies.NAME] kind", system.policies)):
        yield f"  {title}"
        for name, function in entries.items():
            yield textwrap.fill(
                f"{name}({_arguments(function)})", _WIDTH, initial_indent=" " * 4, subsequent_indent=" " * 8
            )
            yield textwrap.fill(_first_line(function), _WIDTH, initial_indent=" " * 6, subsequent_indent=" " * 6)
    yield "  metrics"
    width = max(map(len, system.labels))
    for metric, label in system.labels.items():
        yield f"    {metric:<{width}}  {label}"
    yield ""


def _arguments(function: Callable) -> str:
    parameters = inspect.signature(function).parameters.values()
    return ", ".join(p.name if p.default is p.empty else f"{p.name}={p.default!r}" for p in parameters)


def _first_line(function: Callable) -> str:
    return (inspect.getdoc(function) or "").partition("\n")[0].replace("``", "")
