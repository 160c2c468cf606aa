"""Dataset types of posts and abstracts."""

from __future__ import annotations

from functools import partial

from marl_ray.data.convert import Conversion, text_task

TLDR = Conversion("writing_tldr", partial(text_task, "tldr", "prompt"))
ARXIV = Conversion("writing_arxiv", partial(text_task, "arxiv", "abstract_text"))
