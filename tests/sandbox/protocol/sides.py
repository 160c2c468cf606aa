"""Two sides that share objects, for tests of the protocol."""

from __future__ import annotations

import json
from typing import Any

from marl_ray.sandbox.inside.protocol.shared_objects import SharedObjects


class Sides:
    """Two tables that exchange messages through JSON; `here` is the judge."""

    def __init__(self) -> None:
        self.here, self.there = SharedObjects(), SharedObjects()

    def send(self, *values: Any, back: bool = False) -> list[Any]:
        """Send pending changes and values to the guest (with `back`, to the judge); return the received values."""
        source, target = (self.there, self.here) if back else (self.here, self.there)
        news, wires = json.loads(json.dumps([source.pending_changes(), source.encode_values(*values)]))
        source.take_snapshot()
        target.apply_changes(news)
        received = [target.decode_value(wire) for wire in wires]
        target.take_snapshot()
        return received

    def collect(self) -> None:
        """Drop unreferenced objects on both sides, started by the judge."""
        self.there.drop(self.here.drop_unreferenced())
