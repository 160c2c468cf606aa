"""A reward model: a causal language model whose head gives one number, the score of a text.

The files have the format of `AutoModelForSequenceClassification` with one label, so that reward models of other
programs load too. The score is linear in the last hidden state at the text's last token, as in Stiennon et al. (2020),
"Learning to summarize from human feedback".
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from threading import Lock
from typing import Any, Self

import torch

from marl_ray.core.errors import UserError
from marl_ray.core.text import excerpt
from marl_ray.learning.policy_model import remove_noise
from marl_ray.models.names import resolve_model
from marl_ray.models.tokenization import save_tokenizer

TOKENS = 8192
"""Maximum number of tokens, with padding, that are scored at once."""
HEAD = "ForSequenceClassification"


class RewardModel:
    """A model in float32 with its tokenizer. Texts of more than `max_length` tokens lose tokens at their start.
    `threads` is the number of CPU threads of a computation."""

    def __init__(self, model: Any, tokenizer: Any, max_length: int | None = None, threads: int = 1) -> None:
        self.model = model
        self.tokenizer = tokenizer
        self.threads = threads
        positions = getattr(model.config, "max_position_embeddings", None)
        limits = (max_length, positions, tokenizer.model_max_length)
        self.max_length = min(limit for limit in limits if limit)
        self._lock = Lock()

    @classmethod
    def load(cls, name: str, device: str = "cpu", max_length: int | None = None, threads: int = 1) -> Self:
        """Return the reward model of a folder or hub id. The score of a language model without a head for scores is 0
        until it is trained. Raises UserError."""
        from transformers import AutoConfig, AutoModelForSequenceClassification, AutoTokenizer
        from transformers.utils.logging import disable_progress_bar, get_verbosity, set_verbosity, set_verbosity_error

        disable_progress_bar()  # which it shows even for small files
        path = resolve_model(name)
        verbosity = get_verbosity()
        set_verbosity_error()  # transformers reports a new head as weights that are missing
        try:
            has_head = is_reward_model(name)
            config = AutoConfig.from_pretrained(path, num_labels=1)
            remove_noise(config)
            tokenizer = AutoTokenizer.from_pretrained(path)
            model = AutoModelForSequenceClassification.from_pretrained(path, config=config, dtype=torch.float32)
            model.to(device)
        except Exception as error:  # transformers, torch and the hub raise many types
            raise UserError(f"reward model {name} cannot be loaded: {excerpt(error)}") from None
        finally:
            set_verbosity(verbosity)
        if not has_head:
            torch.nn.init.zeros_(model.score.weight)
        # The model finds the last token of a text by its padding, which stands for the end of a text if it has a token.
        padding = tokenizer.pad_token_id
        if padding is None:
            padding = tokenizer.eos_token_id
        model.config.pad_token_id = padding or 0
        return cls(model.eval(), tokenizer, max_length, threads)

    def token_ids(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the token ids of each text that the model reads: the last `max_length`."""
        return [self.tokenizer(text).input_ids[-self.max_length :] for text in texts]

    def scores(self, rows: Sequence[Sequence[int]]) -> torch.Tensor:
        """Return the score of each row of token ids, [B], with a gradient."""
        torch.set_num_threads(self.threads)  # which holds for the calling thread only
        length = max(map(len, rows))
        padded_ids = []
        masks = []
        for row in rows:
            missing = length - len(row)
            padded_ids.append([*row, *[self.model.config.pad_token_id] * missing])
            masks.append([1] * len(row) + [0] * missing)
        input_ids = torch.tensor(padded_ids, device=self.model.device)
        mask = torch.tensor(masks, device=self.model.device)
        output = self.model(input_ids=input_ids, attention_mask=mask, use_cache=False)
        return output.logits.squeeze(-1).float()

    def score(self, texts: Sequence[str]) -> list[float]:
        """Return the score of each text. Calls from several threads take turns."""
        rows = self.token_ids(texts)
        scores = [0.0] * len(rows)
        with self._lock, torch.no_grad():
            for numbers in portions(rows):
                found = self.scores([rows[number] for number in numbers])
                for number, score in zip(numbers, found.tolist(), strict=True):
                    scores[number] = score
        return scores

    def save(self, folder: Path) -> None:
        """Write the model and its tokenizer to a folder."""
        self.model.save_pretrained(folder)
        save_tokenizer(self.tokenizer, folder)


def is_reward_model(name: str) -> bool:
    """Return whether a model has one score as its output. Raises UserError for a model that does not exist."""
    from transformers import AutoConfig

    config = AutoConfig.from_pretrained(resolve_model(name))
    classes = config.architectures or ()
    return config.num_labels == 1 and any(name.endswith(HEAD) for name in classes)


def portions(rows: Sequence[Sequence[int]], tokens: int = TOKENS) -> Iterator[list[int]]:
    """Yield the numbers of rows that are scored at once, long rows first.

    >>> list(portions([[1], [1, 2, 3], [1, 2]], tokens=6))
    [[1, 2], [0]]
    """
    part: list[int] = []
    for number in sorted(range(len(rows)), key=lambda number: -len(rows[number])):
        # All rows of a part are padded to the length of its first.
        if part and len(rows[part[0]]) * (len(part) + 1) > tokens:
            yield part
            part = []
        part.append(number)
    if part:
        yield part
