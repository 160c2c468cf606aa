"""All episodes of a run as pages of a server."""

from __future__ import annotations

import json
import queue
import threading
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from marl_ray.plugins.report.live_report import serve_report
from marl_ray.storage.run_folder import RunFolder
from marl_ray.telemetry.episode_records import episode_record
from tests.factories import make_episode, make_node
from tests.plugins.report.report_runs import HOSTILE, write_run


def get(address: str) -> Any:
    with urllib.request.urlopen(address, timeout=60) as reply:
        return json.loads(reply.read())


def served(*runs: RunFolder) -> str:
    addresses: queue.Queue[str] = queue.Queue()
    threading.Thread(target=serve_report, args=(runs, 0, addresses.put), daemon=True).start()
    return addresses.get(timeout=60)


def test_every_episode_is_listed_found_and_whole(tmp_path: Path) -> None:
    run = RunFolder(write_run(tmp_path / "run", HOSTILE))
    address = served(run)
    first, second = get(f"{address}episodes")
    assert (first["task"], first["step"], second["reward"]) == (HOSTILE, 1, 0.5)
    assert get(f"{address}episodes?text=ANSWER%200.1") == [second["id"]]
    assert get(f"{address}episodes?text=onerror") == [first["id"]]
    assert get(f"{address}episodes?text=nothing+of+this") == []
    answer = get(f"{address}episode/{first['id']}")
    assert answer["episode"]["id"] == first["id"]
    assert HOSTILE in answer["texts"]

    long = {"step": 3, "kind": "train", **episode_record(make_episode(make_node(0, [1.0])))}
    long["nodes"][0]["responses"][0] = ["long " * 10_000]
    with run.episodes.open("a", encoding="utf-8") as file:
        file.write(json.dumps(long) + "\n")
    third = get(f"{address}episodes")[2]
    assert "long " * 10_000 in get(f"{address}episode/{third['id']}")["texts"]

    with pytest.raises(urllib.error.HTTPError) as caught:
        get(f"{address}episode/..%2f..%2fconfig.yaml")
    assert caught.value.code == 404


def test_episodes_of_a_listed_run_are_beside_its_page(tmp_path: Path) -> None:
    address = served(*(RunFolder(write_run(tmp_path / name)) for name in ("one", "two")))
    assert len(get(f"{address}runs/1/episodes")) == 2
