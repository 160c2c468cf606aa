"""The generated reference pages."""

from __future__ import annotations

import pytest

from marl_ray import registry
from tools.make_reference import FOLDER, PAGES


@pytest.mark.skipif(not registry.plug_ins(), reason="the pages describe the plug-ins of this package")
@pytest.mark.parametrize("name", PAGES)
def test_reference_pages_are_up_to_date(name: str) -> None:
    assert (FOLDER / name).read_text() == PAGES[name](), "run python -m tools.make_reference"
