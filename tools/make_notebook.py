"""Write docs/tutorials/python_api.ipynb with the text and the code blocks of docs/tutorials/python_api.md."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

PAGE = Path(__file__).resolve().parent.parent / "docs" / "tutorials" / "python_api.md"
NOTEBOOK = PAGE.with_suffix(".ipynb")


def notebook(page: str) -> dict[str, Any]:
    """Return the notebook of a page as plain data."""
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


def main() -> None:
    NOTEBOOK.write_text(json.dumps(notebook(PAGE.read_text(encoding="utf-8")), indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
