"""Write docs/tutorials/python_api.ipynb: the text and the code blocks of docs/tutorials/python_api.md, with outputs.

The code runs, which trains for about four minutes. Blocks of the page that show an output (```text) are left out,
because the notebook has the outputs themselves.
"""

from __future__ import annotations

import json
import os
import re
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "tutorials" / "python_api.md"
NOTEBOOK = PAGE.with_suffix(".ipynb")
CELL_TIMEOUT_S = 900


def notebook(page: str) -> dict[str, Any]:
    """Return the notebook of a page as plain data, without outputs."""
    page = re.sub(r"^```text\n.*?^```\n\n?", "", page, flags=re.M | re.S)
    parts = re.split(r"^```python\n(.*?)^```$", page, flags=re.M | re.S)
    cells: list[dict[str, Any]] = []
    for number, text in enumerate(part.strip("\n") for part in parts):
        if not text:
            continue
        cell: dict[str, Any] = {"id": f"cell-{number}", "metadata": {}, "source": text.splitlines(keepends=True)}
        if number % 2:
            cells.append(cell | {"cell_type": "code", "execution_count": None, "outputs": []})
        else:
            cells.append(cell | {"cell_type": "markdown"})
    kernel = {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}}
    return {"cells": cells, "metadata": kernel, "nbformat": 4, "nbformat_minor": 5}


def without_outputs(content: dict[str, Any]) -> dict[str, Any]:
    """Return a notebook as it was before it ran."""
    cells = []
    for cell in content["cells"]:
        if cell["cell_type"] == "code":
            cell = cell | {"execution_count": None, "outputs": []}
        cells.append(cell)
    return content | {"cells": cells}


def execute(content: dict[str, Any], folder: str) -> dict[str, Any]:
    """Return a notebook with the outputs of its code, which runs in a folder."""
    import nbformat
    from nbclient import NotebookClient

    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    resources = {"metadata": {"path": folder}}
    node = nbformat.reads(json.dumps(content), as_version=4)
    executed = NotebookClient(node, timeout=CELL_TIMEOUT_S, resources=resources, record_timing=False).execute()
    for cell in executed.cells:
        if cell.cell_type != "code":
            continue
        # Progress bars and messages with the time of this run go to stderr.
        cell.outputs = [output for output in cell.outputs if output.get("name") != "stderr"]
    text = nbformat.writes(executed, indent=1)
    found: dict[str, Any] = json.loads(text.replace(f"{folder}/", ""))
    return found | {"metadata": content["metadata"]}  # the version of this machine's Python is of no interest


def main() -> None:
    """Write the notebook."""
    content = notebook(PAGE.read_text(encoding="utf-8"))
    with tempfile.TemporaryDirectory() as folder:
        content = execute(content, folder)
    NOTEBOOK.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
