"""The pages as a server that follows runs."""

from __future__ import annotations

import json
import queue
import threading
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from marl_ray.core.errors import UserError
from marl_ray.plugins.report.live_report import files_version, serve_report
from marl_ray.storage.run_folder import RunFolder
from marl_ray.storage.run_lock import hold_lock
from tests.plugins.report.report_runs import add_step, page_data


def make_run(path: Path) -> RunFolder:
    run = RunFolder(path)
    run.make()
    run.config.write_text("model: {name: bundled:toy-base}\ndataset: {name: 'bundled:toy'}\nmagrpo: {}\n")
    return run


def served(*runs: RunFolder) -> str:
    addresses: queue.Queue[str] = queue.Queue()
    threading.Thread(target=serve_report, args=(runs, 0, addresses.put), daemon=True).start()
    return addresses.get(timeout=60)


def get(address: str, host: str | None = None) -> str:
    request = urllib.request.Request(address, headers={} if host is None else {"Host": host})
    with urllib.request.urlopen(request, timeout=60) as reply:
        return reply.read().decode()


def test_the_page_and_its_data_follow_the_run(tmp_path: Path) -> None:
    run = make_run(tmp_path / "one")
    address = served(run)
    page = get(address)
    assert "connect-src 'self'" in page
    assert page_data(page)["training"]["step"] == [], "the run is starting"
    version = get(f"{address}version")
    assert get(f"{address}version") == version
    add_step(run, 1)
    assert get(f"{address}version") != version
    assert json.loads(get(f"{address}data"))["training"]["step"] == [1]
    for path, host, status in (("../etc/passwd", None, 404), ("", "evil.example", 421)):
        with pytest.raises(urllib.error.HTTPError) as caught:
            get(address + path, host)
        assert caught.value.code == status


def test_a_list_of_runs_serves_the_page_of_each(tmp_path: Path) -> None:
    runs = [make_run(tmp_path / name) for name in ("one", "two")]
    address = served(*runs)
    version = get(f"{address}version")
    add_step(runs[1], 1)
    assert get(f"{address}version") != version
    data = page_data(get(address))
    for run in data["runs"]:
        assert page_data(get(address + run["link"]))["name"] == run["name"]
    assert json.loads(get(f"{address}{data['runs'][1]['link']}data"))["training"]["step"] == [1]


def test_the_version_follows_state_errors_and_episodes(tmp_path: Path) -> None:
    run = make_run(tmp_path / "one")
    seen = {files_version(run)}
    run.log_file.write_text("a message of the start")
    seen.add(files_version(run))
    with hold_lock(run.lock):
        seen.add(files_version(run))
    run.error.write_text("Traceback")
    seen.add(files_version(run))
    run.episodes.write_text("{}")
    seen.add(files_version(run))
    assert len(seen) == 5
    assert files_version(run) in seen


def test_a_folder_without_a_run_is_rejected_before_the_server_starts(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is not a run folder"):
        serve_report([RunFolder(tmp_path)], 0, lambda address: None)
