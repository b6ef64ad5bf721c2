"""Writes every notebooks/NAME.py as NAME.ipynb too, without outputs; the same text always gives the same file."""

from pathlib import Path

import jupytext
import nbformat

KERNEL = {"display_name": "Python 3", "language": "python", "name": "python3"}

for path in sorted((Path(__file__).resolve().parents[1] / "notebooks").glob("*.py")):
    notebook = jupytext.read(path)
    for position, cell in enumerate(notebook.cells):
        # The ids of jupytext are random.
        cell.update(id=f"{path.stem}-{position}", metadata={}, source=cell.source.strip("\n"))
    notebook.update(nbformat=4, nbformat_minor=5, metadata={"kernelspec": KERNEL, "language_info": {"name": "python"}})
    nbformat.validate(notebook)
    path.with_suffix(".ipynb").write_text(nbformat.writes(notebook) + "\n", encoding="utf-8")
