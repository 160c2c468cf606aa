"""Exports of runs: equal logits with transformers alone, the description, the card, LoRA, and the upload."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import yaml
from huggingface_hub import ModelCard
from huggingface_hub.repocard import metadata_load
from transformers import AutoModelForCausalLM, GenerationConfig

from marl_ray.cli.main import main
from marl_ray.evaluation.evaluate import plan_evaluation
from marl_ray.evaluation.model_sources import find_model_sources
from marl_ray.evaluation.requests import EvaluationRequest
from marl_ray.storage.resume import SavedRun
from marl_ray.storage.run_folder import RunFolder
from tests.factories import ROOT
from tests.plugins.serve.export.hub_stub import TOKEN, hub_stub
from tests.plugins.serve.export.trained_run import make_run

PROMPT_IDS = [3, 4, 5, 6, 7, 8]
LOGITS = """
import json, sys
sys.modules["marl_ray"] = None  # any import of it fails
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
ids, result, *folders = sys.argv[1:]
logits = []
for folder in folders:
    model = AutoModelForCausalLM.from_pretrained(folder)
    AutoTokenizer.from_pretrained(folder)
    with torch.no_grad():
        logits.append(model(torch.tensor([json.loads(ids)])).logits)
torch.save(logits, result)
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    return make_run(tmp_path_factory.mktemp("runs") / "one")


def export(run: RunFolder, folder: Path, *arguments: str) -> Path:
    assert main(["export", str(run), "--to", str(folder), *arguments]) == 0
    return folder


def test_transformers_alone_computes_the_logits_of_the_run(run: RunFolder, tmp_path: Path) -> None:
    folder, result, agents = export(run, tmp_path / "team"), tmp_path / "logits.pt", ("agent_0", "agent_1")
    folders = [str(parent / agent) for agent in agents for parent in (run.models, folder / "models")]
    command = [sys.executable, "-I", "-c", LOGITS, json.dumps(PROMPT_IDS), str(result), *folders]
    subprocess.run(command, check=True, timeout=300)
    first, exported_first, second, exported_second = torch.load(result)
    assert torch.equal(first, exported_first)
    assert torch.equal(second, exported_second)
    with torch.no_grad():
        here = AutoModelForCausalLM.from_pretrained(run.models / "agent_0")(torch.tensor([PROMPT_IDS])).logits
    torch.testing.assert_close(here, exported_first, atol=1e-4, rtol=1e-4)


def test_an_export_is_evaluated_like_its_run(run: RunFolder, tmp_path: Path) -> None:
    folder = export(run, tmp_path / "team")
    config = SavedRun.read(folder).config()
    original = SavedRun.read(run.path).config()
    assert (config.training, config.external, config.model) == (original.training, original.external, original.model)
    (source,) = find_model_sources([str(folder)], config.agents)
    assert source.weights == tuple(str(folder / "models" / f"agent_{i}") for i in range(2))
    request = EvaluationRequest(models=[str(folder)], samples=1, folder=tmp_path / "out", split="eval[:2]")
    assert len(plan_evaluation(config, request).tasks) == 2


def test_the_description_has_everything_that_a_player_needs(run: RunFolder, tmp_path: Path) -> None:
    folder = export(run, tmp_path / "team")
    team = json.loads((folder / "team.json").read_text())
    assert [agent["role"] for agent in team["agents"]] == ["aux", "{entry_point}"]
    assert (team["turns"], team["external"], team["environment"]) == (2, "level_feedback", "code_generation")
    assert team["prompts"]["order"] == [[0, 1]]
    assert team["prompts"]["first_turn"][1].startswith("{prompt}\n\nWrite the function `{entry_point}`.")
    assert not {"output", "wandb"} & (
        team["config"].keys() | yaml.safe_load((folder / "config.yaml").read_text()).keys()
    )
    generation = GenerationConfig.from_pretrained(folder / "models" / "agent_0")
    assert (generation.temperature, generation.top_k, generation.max_new_tokens) == (1.0, 0, 48)
    assert generation.eos_token_id == GenerationConfig.from_pretrained(run.models / "agent_0").eos_token_id


def test_the_description_has_the_settings_of_conversations(tmp_path: Path) -> None:
    settings: dict[str, object] = {"model.system_prompt": "Be brief.", "model.stop": ["END"]}
    settings |= {"model.chat_template_kwargs": {"enable_thinking": False}, "external.composition": "chat"}
    run = make_run(tmp_path / "one", **settings, **{"magrpo.min_new_tokens": 3, "external.stop": "visible"})
    folder = export(run, tmp_path / "team")
    team = json.loads((folder / "team.json").read_text())
    for agent in team["agents"]:
        assert (agent["system_prompt"], agent["chat_template_kwargs"]) == ("Be brief.", {"enable_thinking": False})
        assert (agent["sampling"]["stop"], agent["sampling"]["min_new_tokens"]) == (["END"], 3)
    assert (team["between_turns"]["composition"], team["between_turns"]["stop"]) == ("chat", "visible")
    original, config = SavedRun.read(run.path).config(), SavedRun.read(folder).config()
    assert (config.agents, config.external) == (original.agents, original.external)
    assert GenerationConfig.from_pretrained(folder / "models" / "agent_0").min_new_tokens == 3


def test_passwords_in_addresses_are_left_out(tmp_path: Path) -> None:
    address = {"external.expert_base_url": "http://me:secret@localhost:8000/v1", "external.expert_model": "m"}
    folder = export(make_run(tmp_path / "one", **address), tmp_path / "team")
    assert not any(b"secret" in file.read_bytes() for file in folder.rglob("*") if file.is_file())


def test_the_card_has_valid_metadata(run: RunFolder, tmp_path: Path) -> None:
    """Check the metadata as huggingface_hub parses them; its own `validate` asks the hub."""
    folder = export(run, tmp_path / "team", "--license", "mit", "--name", "my-team")
    card = ModelCard.load(folder / "README.md")
    assert (card.data.license, card.data.model_name) == ("mit", "my-team")
    results = {result.metric_name: result.metric_value for result in card.data.eval_results or []}
    assert results == {"turn_1/reward_mean": 3.5, "turn_2/all_passed": 0.75}
    assert metadata_load(folder / "README.md") == card.data.to_dict()
    assert (folder / "curve.png").stat().st_size > 1000


def test_the_card_has_the_intervals_of_an_evaluation(run: RunFolder, tmp_path: Path) -> None:
    number = {"mean": 0.5, "low": 0.25, "high": 0.75, "tasks": 8}
    weights = [{"agent": i, "model": str(run.models / f"agent_{i}")} for i in range(2)]
    content = {"weights": {"one": weights}, "models": {"one": {"turn_2/pass@1": number, "turn_2/level/aux": number}}}
    (tmp_path / "evaluation.json").write_text(json.dumps(content))
    text = (export(run, tmp_path / "team", "--evaluation", str(tmp_path)) / "README.md").read_text()
    assert "| turn_2/pass@1 | 0.500 | [0.250, 0.750] |" in text
    assert "level/aux" not in text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--evaluation", "missing"], "is not the result of marl-ray eval"),
        (["--push", "team"], "is not a hub id: write owner/name"),
    ],
)
def test_mistakes_leave_no_folder(
    run: RunFolder, arguments: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["export", str(run), "--to", str(tmp_path / "team"), *arguments]) == 1
    assert message in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_folder_with_files_is_not_overwritten(
    run: RunFolder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    assert main(["export", str(run), "--to", str(tmp_path)]) == 1
    assert "is not empty: give another --to" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


def test_adapters_are_exported_as_they_are_or_merged(tmp_path: Path) -> None:
    pytest.importorskip("peft")
    run = make_run(tmp_path / "one", **{"lora.rank": 2, "lora.export": "adapter"})
    adapters, merged = export(run, tmp_path / "adapters"), export(run, tmp_path / "merged", "--merge")
    one, other = adapters / "models" / "agent_0", merged / "models" / "agent_0"
    assert (one / "adapter_model.safetensors").exists()
    assert not (one / "model.safetensors").exists()
    assert (other / "model.safetensors").exists()
    logits = []
    for folder in (one, other):
        with torch.no_grad():
            logits.append(AutoModelForCausalLM.from_pretrained(folder)(torch.tensor([PROMPT_IDS])).logits)
    torch.testing.assert_close(logits[0], logits[1], atol=1e-4, rtol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("token", [TOKEN, "wrong"])
def test_an_export_is_pushed_to_a_hub(run: RunFolder, token: str, tmp_path: Path) -> None:
    with hub_stub() as (address, state):
        environment = os.environ | {"HF_ENDPOINT": address, "HF_TOKEN": token, "HF_HUB_DISABLE_XET": "1"}
        arguments = ["export", str(run), "--to", str(tmp_path / "team"), "--push", "owner/team"]
        command = [sys.executable, "-m", "marl_ray", *arguments]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, cwd=ROOT)
    if token != TOKEN:
        assert (done.returncode, state.files) == (1, {})
        assert "the hub refused owner/team (HTTP status 401)" in done.stderr
        assert token not in done.stderr
        return
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == f"{address}/owner/team/commit/0"
    (created,) = state.created
    assert (created["name"], created["organization"], created["visibility"]) == ("team", "owner", "private")
    folder = tmp_path / "team"
    local = {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    assert state.files == local
    assert set(state.cards) == {local["README.md"].decode()}
