"""The plug-in registry: known names, `module:Attr`, and errors."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from marl_ray import registry as registry_module
from marl_ray.core.errors import UserError
from marl_ray.credit import ESTIMATORS
from marl_ray.data import DATASETS
from marl_ray.environments import ENVIRONMENTS
from marl_ray.external import MODES
from marl_ray.registry import PlugIn, Registry
from tests.factories import quickstart_config

REGISTRIES = (ENVIRONMENTS, DATASETS, MODES, ESTIMATORS)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [place for place in sys.path if place])
    return tmp_path


def error_of(registry: Registry, name: str) -> str:
    with pytest.raises(UserError) as caught:
        registry.get(name)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("registry", REGISTRIES, ids=lambda registry: registry.kind)
def test_every_entry_can_be_imported(registry: Registry) -> None:
    for name in registry.entries:
        registry.check(name)
        assert hasattr(registry.get(name), registry.member)


def test_unknown_names_are_rejected() -> None:
    assert error_of(ENVIRONMENTS, "code_generaton") == (
        "unknown environment 'code_generaton': did you mean code_generation? (or module:Attr of your own)"
    )
    assert error_of(MODES, "telepathy").startswith(
        "unknown external.mode 'telepathy': known: level_feedback, level_passed,"
    )
    for name in ("", "a:b:c", "a b:c", ":c", "a.:c", "a:", "1a:b", "../a:b"):
        with pytest.raises(UserError, match="unknown estimator"):
            ESTIMATORS.check(name)


def test_a_module_in_the_current_folder_is_found(here: Path) -> None:
    (here / "own_things.py").write_text("def doubled(returns):\n    return returns * 2\n")
    assert ESTIMATORS.get("own_things:doubled")(2) == 4
    assert sys.path[-1] == str(here)
    assert str(here) not in sys.path[:-1]


def test_a_console_script_finds_a_module_in_the_current_folder(here: Path) -> None:
    # Unlike `python -m`, a script does not have the current folder on its path.
    (here / "own_script_things.py").write_text("def task(row, number): ...\n")
    script = here / "bin" / "script"
    script.parent.mkdir()
    script.write_text(
        "import os, sys\n"
        "assert os.getcwd() not in sys.path and '' not in sys.path\n"
        "from marl_ray.data import DATASETS\n"
        "DATASETS.check('own_script_things:no_such_thing')\n"  # imports nothing, so it passes
        "DATASETS.get('own_script_things:no_such_thing')\n"
    )
    root = str(Path(__file__).parents[1])
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, timeout=60, env={"PYTHONPATH": root}
    )
    assert "UserError: dataset.type own_script_things:no_such_thing: module own_script_things has no" in done.stderr


def test_an_unusable_plugin_is_a_one_line_error(here: Path) -> None:
    (here / "own_faults.py").write_text("import no_such_package\n")
    (here / "own_kinds.py").write_text("number = 3\n")
    assert (
        error_of(MODES, "no_such_module:Mode") == "external.mode no_such_module:Mode: No module named 'no_such_module'"
    )
    assert "No module named 'no_such_package'" in error_of(MODES, "own_faults:Mode")
    assert error_of(MODES, "own_kinds:Mode") == "external.mode own_kinds:Mode: module own_kinds has no Mode"
    assert error_of(ESTIMATORS, "own_kinds:number") == (
        "own_kinds:number is not a plug-in for estimator: it has no __call__ (docs/how-to/extend.md)"
    )
    assert "it has no from_config" in error_of(ENVIRONMENTS, "own_kinds:number")


@pytest.mark.parametrize(
    ("name", "code", "line"),
    [
        ("own_syntax", "x = 1\ndef f(:\n", "SyntaxError: invalid syntax (FILE:2)"),
        ("own_bug", "\n{}.nothing\n", "AttributeError: 'dict' object has no attribute 'nothing' (FILE:2)"),
        ("own_end", "import sys\nsys.exit('no licence')\n", "SystemExit: no licence (FILE:2)"),
        ("own_lines", "raise RuntimeError('two\\nlines')\n", "RuntimeError: two lines (FILE:1)"),
    ],
)
def test_a_module_that_raises_is_a_one_line_error(here: Path, name: str, code: str, line: str) -> None:
    (here / f"{name}.py").write_text(code)
    expected = line.replace("FILE", str(here / f"{name}.py"))
    assert error_of(MODES, f"{name}:Mode") == f"external.mode {name}:Mode: {expected}"


def test_an_interrupt_during_an_import_propagates(here: Path) -> None:
    (here / "own_interrupt.py").write_text("raise KeyboardInterrupt\n")
    with pytest.raises(KeyboardInterrupt):
        MODES.get("own_interrupt:Mode")


def test_registries_import_no_heavy_packages() -> None:
    code = (
        "import sys\n"
        "from marl_ray.environments import ENVIRONMENTS\n"
        "from marl_ray.data import DATASETS, infer_type\n"
        "from marl_ray.external import MODES\n"
        "from marl_ray.credit import ESTIMATORS\n"
        "ENVIRONMENTS.check('code_generation'), DATASETS.check('mbpp'), MODES.check('a:B'), ESTIMATORS.check('grpo')\n"
        "heavy = {'ray', 'torch', 'yaml', 'openai', 'marl_ray.sandbox', 'marl_ray.config'}\n"
        "print(*heavy & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout.strip()) == (0, ""), done.stderr


def test_unusable_classes_are_rejected() -> None:
    assert error_of(ESTIMATORS, "decimal:Decimal") == (
        "estimator decimal:Decimal is a class: name a function or a callable object"
    )
    assert "is abstract: it does not define attempt, feedback, first_prompts" in error_of(
        ENVIRONMENTS, "marl_ray.environments.base:Environment"
    )


def test_a_plug_in_with_names_of_an_unknown_kind_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = PlugIn(names={"magrpo.estimator": {"mine": "module:Mine"}})
    monkeypatch.setattr(registry_module, "_named", [wrong])
    with pytest.raises(UserError, match=r"^PlugIn\.names of mine: .* 'magrpo\.estimator': did you mean 'estimator'\?$"):
        quickstart_config()
