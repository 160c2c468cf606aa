"""Dataset type of texts that agents divide between them."""

from __future__ import annotations

from functools import partial

from marl_ray.data.convert import Conversion, text_task

TAGS = Conversion("tags", partial(text_task, "tags", "text"))
