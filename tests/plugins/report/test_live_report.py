"""The report as a served page that follows a run."""

from __future__ import annotations

import re
import threading
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from marl_ray.core.errors import UserError
from marl_ray.plugins.report.live_report import LiveReport, serve_report
from marl_ray.storage.run_folder import RunFolder
from tests.plugins.report.report_runs import add_step


def make_run(path: Path) -> RunFolder:
    run = RunFolder(path)
    run.make()
    run.config.write_text("model: {name: bundled:toy-base}\ndataset: {name: 'bundled:toy'}\nmagrpo: {}\n")
    add_step(run, 1)
    return run


def get(address: str, host: str | None = None) -> str:
    request = urllib.request.Request(address, headers={} if host is None else {"Host": host})
    with urllib.request.urlopen(request, timeout=60) as reply:
        return reply.read().decode()


def test_the_page_and_its_version_follow_the_run(tmp_path: Path) -> None:
    run, addresses, ready = make_run(tmp_path / "one"), list[str](), threading.Event()

    def on_ready(address: str) -> None:
        addresses.append(address)
        ready.set()

    threading.Thread(target=serve_report, args=([run], 1, 0, on_ready), daemon=True).start()
    assert ready.wait(60)
    (address,) = addresses
    page, version = get(address), get(f"{address}version")
    assert "1 step" in page
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', page)
    assert policy is not None
    assert "connect-src" in policy[1]
    assert get(f"{address}version") == version
    add_step(run, 2)
    assert get(f"{address}version") != version
    assert "2 steps" in get(address)
    for path, host, status in (("../etc/passwd", None, 404), ("", "evil.example", 421)):
        with pytest.raises(urllib.error.HTTPError) as caught:
            get(address + path, host)
        assert caught.value.code == status


def test_a_folder_without_a_run_is_rejected_before_the_server_starts(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is not a run folder"):
        serve_report([RunFolder(tmp_path)], 1, 0, lambda address: None)


def test_a_page_is_rendered_once_per_version(tmp_path: Path) -> None:
    report = LiveReport([make_run(tmp_path / "one")], 1)
    assert report.page() is report.page()
