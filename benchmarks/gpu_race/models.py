"""Models with random weights in the geometry of Qwen2.5 and SmolLM2, so that a race needs no network."""

from __future__ import annotations

import time

from benchmarks.gpu_race.race import Race, torch_dtype

GEOMETRIES: dict[str, tuple[int, int, int, int, int, int]] = {
    "135M": (576, 1536, 30, 9, 3, 49_152),  # SmolLM2
    "0.5B": (896, 4864, 24, 14, 2, 151_936),
    "1.5B": (1536, 8960, 28, 12, 2, 151_936),
    "3B": (2048, 11008, 36, 16, 2, 151_936),
    "tiny": (64, 128, 2, 2, 2, 1024),
}
"""Hidden size, intermediate size, layers, attention heads, key-value heads and tokens of the models."""


def models(race: Race) -> None:
    """Write the models, made on the device, with the tokenizer of the bundled toy model.

    The tokenizer has fewer tokens than the models, also on a CPU. Token ids beyond it are decoded to nothing.
    """
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

    from marl_ray.toy import BASE_PATH

    tokenizer = AutoTokenizer.from_pretrained(BASE_PATH)
    for name in dict.fromkeys([*race.models, race.tags_model]):
        begun = time.perf_counter()
        hidden, intermediate, layers, heads, key_value_heads, tokens = GEOMETRIES[name]
        config = AutoConfig.for_model(
            "qwen2",
            hidden_size=hidden,
            intermediate_size=intermediate,
            num_hidden_layers=layers,
            num_attention_heads=heads,
            num_key_value_heads=key_value_heads,
            vocab_size=tokens,
            tie_word_embeddings=True,
            max_position_embeddings=32_768,
            bos_token_id=None,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
            dtype=torch_dtype(race),
        )
        torch.manual_seed(0)
        with torch.device(race.device):
            model = AutoModelForCausalLM.from_config(config, dtype=torch_dtype(race))
        folder = race.folder / "models" / name
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        parameters = sum(parameter.numel() for parameter in model.parameters())
        race.add("models", name, parameters=parameters, s=time.perf_counter() - begun)
        del model
