"""A page of all experiments of a folder: what each asks, its tables and its figures."""

import html
import os
from collections.abc import Callable, Sequence
from typing import NamedTuple

from jaxcascade._run_folder import read_results
from jaxcascade._tables import report
from jaxcascade.config import Config

INDEX = "index.html"
_STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem; color: #222 }
pre { font-size: 12px; line-height: 1.35; overflow-x: auto; background: #f6f6f6; padding: .8rem }
img { max-width: 100%; display: block; margin: .8rem 0 }
section { border-top: 1px solid #ccc; margin-top: 2rem }
nav li { break-inside: avoid } nav ul { columns: 2 }
.error { color: #a00 }
"""


class Entry(NamedTuple):
    """One experiment of a page.

    Attributes:
      name: of its file, without the ending; its results are in the folder of that name beside the page.
      config: the experiment as run, or None if its file is wrong.
      error: why it could not be run, or None.
    """

    name: str
    config: Config | None
    error: str | None


def experiments(folder: str) -> list[str]:
    """The paths of the TOML files in a folder, sorted.

    Raises:
      FileNotFoundError: if there is no such folder.
      ValueError: if it has none.
    """
    if not os.path.isdir(folder):
        raise FileNotFoundError(f"{folder}: expected a folder of experiments, got none")
    names = sorted(name for name in os.listdir(folder) if name.endswith(".toml"))
    if not names:
        raise ValueError(f"{folder}: expected experiments (.toml), got none")
    return [os.path.join(folder, name) for name in names]


def run_all(paths: Sequence[str], run_one: Callable[[str, str], Config]) -> list[Entry]:
    """Runs every experiment and returns what became of it; one that fails does not stop the others.

    Args:
      paths: of the experiments.
      run_one: runs one, given its path and name, and returns its configuration.
    """
    entries = []
    for path in paths:
        name = os.path.splitext(os.path.basename(path))[0]
        try:
            entries.append(Entry(name, run_one(path, name), None))
        except (ValueError, OSError, FloatingPointError, ImportError) as error:
            entries.append(Entry(name, None, " ".join(str(error).split())))
    return entries


def write_index(out: str, entries: Sequence[Entry]) -> str:
    """Writes the page and returns its path; it opens from disk and refers to nothing outside the folder.

    Raises:
      OSError: if it cannot be written, or the results of an experiment are gone.
    """
    sections = [_section(out, entry) for entry in entries]
    links = "\n".join(f'<li><a href="#{entry.name}">{html.escape(_title(entry))}</a></li>' for entry in entries)
    page = f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>jaxcascade: experiments</title><style>{_STYLE}</style></head>
<body><h1>jaxcascade: experiments</h1>
<nav><ul>
{links}
</ul></nav>
{"".join(sections)}</body></html>
"""
    path = os.path.join(out, INDEX)
    with open(path, "w", encoding="utf-8") as file:
        file.write(page)
    return path


def _title(entry):
    return (entry.config.title if entry.config else None) or entry.name


def _section(out, entry):
    head = f'<section id="{entry.name}"><h2>{html.escape(_title(entry))}</h2>\n'
    if entry.config is None:
        return f'{head}<p class="error">Not run: {html.escape(entry.error or "")}</p></section>\n'
    study, manifest = read_results(os.path.join(out, entry.name))
    figures = "\n".join(
        f'<img src="{entry.name}/{html.escape(name)}" alt="{html.escape(name)}">' for name in manifest["figures"]
    )
    seconds = manifest["times"]["wall_seconds"]
    size = f"{study.num_seeds} seeds, {study.steps[-1]} rounds, {seconds:.0f} s, <code>{entry.name}.toml</code>"
    return (
        f"{head}<p>{html.escape(entry.config.description or '')}</p>\n<p>{size}</p>\n{figures}\n"
        f"<pre>{html.escape(report(entry.config, study))}</pre></section>\n"
    )
