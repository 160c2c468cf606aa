"""Metrics of a running training in Prometheus' text format, for scraping by a server or by curl."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from marl_ray.config.sections import OutputConfig
from marl_ray.http.page_server import PageServer
from marl_ray.http.request_guard import RequestGuard, ServerLimits
from marl_ray.telemetry.metrics import MetricRow
from marl_ray.telemetry.sinks import Sink

logger = logging.getLogger(__name__)


class Gauge(NamedTuple):
    """One value: the name without its prefix, the labels, the value and a description."""

    name: str
    labels: dict[str, str]
    value: float
    help: str


class PrometheusSink(Sink):
    """Serves the numbers of the last row of each kind, and live gauges of the actors, at `/metrics`.

    `actor_gauges` is called for each scrape, on a thread of the server.
    """

    sent_step = -1

    def __init__(self, output: OutputConfig, actor_gauges: Callable[[], Iterable[Gauge]]) -> None:
        from prometheus_client import CollectorRegistry

        self._actor_gauges = actor_gauges
        self._rows: dict[str, MetricRow] = {}
        self._registry = CollectorRegistry()
        self._registry.register(self)  # type: ignore[arg-type]
        assert output.prometheus_port is not None
        settings = "output.prometheus_host or output.prometheus_port"
        # Prometheus scrapes a host by any of its names, at any path. The run does not wait for a last scrape.
        guard = RequestGuard([Route("/{path:path}", self._scrape)], ServerLimits(drain_s=1.0), names=None)
        self.server = PageServer(guard, output.prometheus_host, output.prometheus_port, settings)
        logger.info(f"metrics are served at http://{output.prometheus_host}:{self.server.port}/metrics")

    def row(self, row: MetricRow, name: str) -> None:
        self._rows[name] = row

    def close(self) -> None:
        self.server.close()

    def _scrape(self, request: Request) -> Response:
        from prometheus_client.exposition import choose_encoder

        encode, kind = choose_encoder(request.headers.get("accept", ""))
        return Response(encode(self._registry), headers={"content-type": kind})  # type: ignore[arg-type]

    def collect(self) -> Iterator[Any]:
        """Yield the metric families of a scrape."""
        from prometheus_client.core import GaugeMetricFamily

        families: dict[str, Any] = {}
        for gauge in [*self._actor_gauges(), *self._row_gauges()]:
            labels = tuple(gauge.labels)
            family = families.setdefault(
                gauge.name, GaugeMetricFamily(f"marl_ray_{gauge.name}", gauge.help, labels=labels)
            )
            family.add_metric(tuple(gauge.labels.values()), gauge.value)
        yield from families.values()

    def _row_gauges(self) -> Iterator[Gauge]:
        """Yield the numbers of the last rows: the most important ones by name, and all as `metric`."""
        named = {
            "step": ("steps", "Training steps done"),
            "rollout/tokens_per_s": ("tokens_per_second", "Throughput of the last rollout"),
            "sandbox/executions_per_s": ("sandbox_executions_per_second", "Programs executed in the last rollout"),
            "time/step": ("step_seconds", "Duration of the last step"),
        }
        for row in list(self._rows.values()):
            for key, value in row.items():
                if not isinstance(value, int | float):
                    continue
                if key in named and "rollout/episodes" in row:
                    name, text = named[key]
                    yield Gauge(name, {}, value, text)
                elif key.endswith("/staleness_max"):
                    text = "Versions by which the sampling weights of the last batch were behind, maximum"
                    yield Gauge("staleness", {"agent": key.split("/")[0]}, value, text)
                if key != "step":
                    yield Gauge("metric", {"name": key}, value, "A value of the last row of metrics.jsonl")
