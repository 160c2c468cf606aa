"""A model whose architecture, tokenizer and vocabulary differ from the bundled model's."""

from __future__ import annotations

from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast

from marl_ray.toy import TASKS_PATH

SIZE = 400
"""Size of the tokenizer's vocabulary."""


def other_model(folder: Path) -> Path:
    """Save a random Llama and a byte-level BPE tokenizer, trained on the toy tasks, to `folder`; return the folder."""
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=SIZE, special_tokens=["<end>"], initial_alphabet=alphabet)
    bpe.train_from_iterator(TASKS_PATH.read_text().splitlines(), trainer)
    PreTrainedTokenizerFast(tokenizer_object=bpe, eos_token="<end>", pad_token="<end>").save_pretrained(folder)
    shape = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 2}
    ends = {"eos_token_id": 0, "pad_token_id": 0, "bos_token_id": None}
    torch.manual_seed(0)
    config = AutoConfig.for_model("llama", vocab_size=SIZE, max_position_embeddings=1024, **shape, **ends)
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    return folder
