"""The page of a run as a file: its contents, and that text of models stays inert."""

from __future__ import annotations

import base64
import hashlib
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from marl_ray.cli.main import main
from marl_ray.plugins.report.run_page import data_text
from tests.plugins.report.report_runs import HOSTILE, page_data, write_run

VOID = ("br", "input", "meta")
"""HTML elements without an end tag."""


class Reader(HTMLParser):
    """The elements of a page with their attributes, and the text outside scripts and styles."""

    def __init__(self, page: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.text = ""
        self.feed(page)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if not {"script", "style"} & set(self.open):
            self.text += data


def make_report(arguments: list[str]) -> str:
    assert main(["report", *arguments]) == 0
    return Path(arguments[-1] if "--output" in arguments else f"{arguments[0]}/report.html").read_text()


def test_hostile_text_is_data_only(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", HOSTILE)
    (run / "error.txt").write_text(HOSTILE, encoding="utf-8", errors="replace")
    page = make_report([str(run)])
    reader = Reader(page)
    assert [tag for tag, _ in reader.elements].count("script") == 2
    assert not {"img", "svg", "iframe", "object", "embed", "base", "form"} & {tag for tag, _ in reader.elements}
    assert not [name for _, attributes in reader.elements for name in attributes if name.startswith("on")]
    assert "<img" not in page
    assert "onerror=alert" in page_data(page)["state"]["cause"], "it is in the data"


def test_text_cannot_end_the_element_of_the_data() -> None:
    text = data_text({"text": HOSTILE})
    assert "<" not in text
    assert "\ud800" not in text
    assert "\x00" not in text


def test_the_page_loads_nothing_and_runs_only_its_own_script(tmp_path: Path) -> None:
    page = make_report([str(write_run(tmp_path / "run"))])
    reader = Reader(page)
    loading = {"src", "srcset", "data", "action", "formaction", "poster", "background", "xlink:href"}
    assert [name for _, attributes in reader.elements for name in attributes if name in loading] == []
    assert all((attributes.get("href") or "#").startswith("#") for _, attributes in reader.elements)
    style = page[page.index("<style>") : page.index("</style>")]
    assert "url(" not in style
    assert "@import" not in style
    policy = next(a["content"] for tag, a in reader.elements if a.get("http-equiv") == "Content-Security-Policy")
    assert policy is not None
    assert policy.startswith("default-src 'none'; ")
    assert "connect-src" not in policy, "a file asks no server"
    for tag in ("script", "style"):
        inside = re.findall(rf"<{tag}>(.*?)</{tag}>", page, re.DOTALL)
        assert len(inside) == 1
        digest = base64.b64encode(hashlib.sha256(inside[0].encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}'" in policy


def test_scripts_write_no_markup() -> None:
    folder = Path("marl_ray/plugins/report/page")
    for script in folder.glob("*.js"):
        text = script.read_text(encoding="utf-8")
        for name in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "DOMParser"):
            assert name not in text, script


def test_without_scripts_the_rewards_remain(tmp_path: Path) -> None:
    page = make_report([str(write_run(tmp_path / "run"))])
    noscript = page[page.index("<noscript>") : page.index("</noscript>")]
    assert "step     2        16 joint samples  training reward 2.00" in noscript


def test_contents_of_the_data(tmp_path: Path) -> None:
    data = page_data(make_report([str(write_run(tmp_path / "run"))]))
    assert data["name"] == "run"
    assert data["training"]["metrics"]["agent_0/loss"] == [0.25, 0.5]
    assert data["evaluations"]["metrics"]["turn_1/reward_mean"] == 1
    assert data["evaluations"]["intervals"]["turn_1/reward_mean"] == [[0.804, 1.196]]
    assert data["overview"]["warning"] is None, "step 2 is too early"
    assert {group["section"] for group in data["charts"]} >= {"Rewards", "Reward levels", "Agents"}


def test_a_starting_run_has_a_page(tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    (run / "config.yaml").write_text("magrpo: {}\nmodel: {name: 'bundled:toy-base'}\ndataset: {name: 'bundled:toy'}\n")
    (run / "run.log").write_text("2026-01-02 03:04:05,678 INFO marl_ray.launch: starting 2 generators\n")
    data = page_data(make_report([str(run)]))
    assert data["state"]["log"] == ["03:04:05 starting 2 generators"]
    assert data["training"]["step"] == []
    assert data["setup"]["agents"] == 2


def test_episodes_can_be_left_out(tmp_path: Path) -> None:
    assert page_data(make_report([str(write_run(tmp_path / "run")), "--episodes", "0"]))["episodes"] is None


def test_a_negative_number_of_episodes_is_rejected(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(tmp_path), "--episodes", "-1"]) == 1
    assert "--episodes should be at least 0" in capsys.readouterr().err
