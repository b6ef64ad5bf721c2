"""Every notebook's .ipynb is what its .py says, without outputs or anything of the machine that wrote it."""

import json
import re
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[1] / "notebooks"
KERNEL = {"display_name": "Python 3", "language": "python", "name": "python3"}


def cells_of(text):
    """The cells of a notebook in percent format, as (type, source)."""
    header, *parts = re.split(r"(?m)^# %%(.*)\n", text)
    assert re.fullmatch(r"# ---\n(# .*\n)+# ---\n\n", header)
    cells = []
    for mark, body in zip(parts[::2], parts[1::2], strict=True):
        assert mark in ("", " [markdown]")
        if mark:
            body = re.sub(r"(?m)^# ?", "", body)
        cells.append(("markdown" if mark else "code", body.strip("\n")))
    return cells


def test_every_notebook_has_its_pair():
    scripts = {path.stem for path in FOLDER.glob("*.py")}
    assert scripts == {path.stem for path in FOLDER.glob("*.ipynb")}
    assert len(scripts) >= 7


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.ipynb")), ids=lambda path: path.stem)
def test_pair_has_the_same_cells(path):
    notebook = json.loads(path.read_text(encoding="utf-8"))
    cells = cells_of(path.with_suffix(".py").read_text(encoding="utf-8"))
    again = "to pair them again: python .ci/pair_notebooks.py"
    assert [(cell["cell_type"], "".join(cell["source"])) for cell in notebook["cells"]] == cells, again


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.ipynb")), ids=lambda path: path.stem)
def test_pair_is_bare_nbformat_4(path):
    notebook = json.loads(path.read_text(encoding="utf-8"))
    assert set(notebook) == {"cells", "metadata", "nbformat", "nbformat_minor"}
    assert (notebook["nbformat"], notebook["nbformat_minor"]) == (4, 5)
    assert notebook["metadata"] == {"kernelspec": KERNEL, "language_info": {"name": "python"}}
    for position, cell in enumerate(notebook["cells"]):
        bare = {"cell_type": cell["cell_type"], "id": f"{path.stem}-{position}", "metadata": {}}
        if cell["cell_type"] == "code":
            bare |= {"execution_count": None, "outputs": []}
        assert cell == bare | {"source": cell["source"]}
        assert all(isinstance(line, str) for line in cell["source"])
