"""``model.generate(…, custom_generate=…)`` of transformers with this package's decoding.

    from entropix_mlx.bridges.torch_generate import FOLDER

    model.generate(**inputs, tokenizer=tokenizer, custom_generate=FOLDER, trust_remote_code=True)

`FOLDER` holds ``custom_generate/generate.py``, which transformers loads from a folder, or from a
repository of the Hub that has a copy of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from mlx_lm.tokenizer_utils import TokenizerWrapper
from transformers.utils import ModelOutput

from ..api.batch import BatchAnswer, batch_generate
from ..checkpoints.tokenizer import ModelTokenizer, end_tokens
from ..errors import PromptError, TokenizerError
from ..step import Step
from .torch_model import TorchModel

FOLDER = str(Path(__file__).parent)
"""For `custom_generate`."""


@dataclass
class GeneratedAnswers(ModelOutput):  # type: ignore[misc]  # transformers has no types
    """What `generate` returns with ``return_dict_in_generate``."""

    sequences: torch.Tensor | None = None
    """`(rows, longest)`: prompts and answers, padded on the right."""
    steps: tuple[tuple[Step, ...], ...] | None = None
    """Of each row, with metrics, forks and thoughts."""


def generate(
    model: Any,
    inputs: torch.Tensor | None = None,
    generation_config: Any = None,
    *,
    input_ids: torch.Tensor | None = None,
    attention_mask: torch.Tensor | None = None,
    tokenizer: Any = None,
    streamer: Any = None,
    max_new_tokens: int | None = None,
    return_dict_in_generate: bool = False,
    **options: Any,
) -> torch.Tensor | GeneratedAnswers:
    """Answer prompts with a model of transformers, by any sampler, with forks and thoughts.

    Args:
        model: of transformers, with a language modelling head.
        inputs, input_ids: the prompts, `(rows, length)`.
        generation_config: what ends and pads an answer, and its most new tokens; the model's own
            without one. Its sampling parameters are not read: give those of `Settings`.
        attention_mask: 0 where a prompt is padded.
        tokenizer: the model's, by which forks and thoughts find words and sentences.
        streamer: takes the tokens of a single answer as they come.
        max_new_tokens: as `max_tokens` of `Settings`.
        return_dict_in_generate: whether to return `GeneratedAnswers` in place of their sequences.
        **options: fields of `Settings`, such as ``profile``, ``sampler``, ``seed`` and ``changes``;
            None leaves one as it is.

    Raises:
        EntropixError: one of its kinds, saying what is wrong and what to do.
        TypeError: an option is unknown.
    """
    prompts = inputs if input_ids is None else input_ids
    if prompts is None:
        raise PromptError("there is no prompt: give input_ids")
    if tokenizer is None:
        raise TokenizerError("there is no tokenizer: give that of the model as tokenizer=…")
    config = generation_config or model.generation_config
    most = config.max_new_tokens if max_new_tokens is None else max_new_tokens
    given = options | {"max_tokens": most}
    given = {name: value for name, value in given.items() if value is not None}
    mask = torch.ones_like(prompts) if attention_mask is None else attention_mask
    rows = [row[kept.bool()].tolist() for row, kept in zip(prompts, mask, strict=True)]
    ends = end_tokens(config.eos_token_id, "the generation config")
    wrapped = ModelTokenizer.around(
        TokenizerWrapper(tokenizer, eos_token_ids=ends or None), "the model"
    )
    with closing(TorchModel(model)) as measured:
        answers = _answers(measured, wrapped, rows, streamer, given)
    padding = next((t for t in (config.pad_token_id, *ends) if t is not None), 0)
    answered = [
        torch.cat([row.cpu(), torch.tensor([step.token for step in answer.steps], dtype=row.dtype)])
        for row, answer in zip(prompts, answers, strict=True)
    ]
    sequences = torch.nn.utils.rnn.pad_sequence(
        answered, batch_first=True, padding_value=padding
    ).to(prompts.device)
    if not return_dict_in_generate:
        return sequences
    return GeneratedAnswers(sequences, tuple(tuple(answer.steps) for answer in answers))


def _answers(
    model: TorchModel,
    tokenizer: TokenizerWrapper,
    prompts: Sequence[Sequence[int]],
    streamer: Any,
    options: dict[str, Any],
) -> list[BatchAnswer]:
    batch = batch_generate(model, tokenizer, prompts, batch=len(prompts), **options)
    if streamer is not None:
        streamer.put(torch.tensor(prompts))
    for _, step in batch:
        if streamer is not None:
            streamer.put(torch.tensor([step.token]))
    if streamer is not None:
        streamer.end()
    for answer in batch.answers:
        if answer.error is not None:
            raise answer.error
    return batch.answers
