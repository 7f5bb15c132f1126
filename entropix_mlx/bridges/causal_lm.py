"""A model of this package in the shape of transformers' causal language models, for tools of torch.

    from lm_polygraph import WhiteboxModel, estimate_uncertainty
    from lm_polygraph.estimators import RAUQ

    model = CausalLM(*entropix_mlx.load())
    whitebox = WhiteboxModel(model, model.tokenizer, "demo", instruct=True)
    estimate_uncertainty(whitebox, RAUQ(), "Name a river.")

MLX computes; what is returned are tensors of torch. Answers are generated as `Settings` say: by any
sampler, with forks and thoughts. Then each is read again for what was asked of it: the logits at
every token, the attention of every layer and head, the states of the last layer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from functools import cached_property
from typing import Any, NamedTuple

import mlx.core as mx
import numpy as np
import torch
from mlx_lm.tokenizer_utils import TokenizerWrapper
from transformers.generation import GenerateDecoderOnlyOutput
from transformers.modeling_outputs import CausalLMOutput

from ..api.attention import attention_rows
from ..api.batch import BatchAnswer, batch_generate
from ..engine.runner import check_tokens
from ..errors import SettingsError, UnsupportedModelError
from ..models.base import LanguageModel
from ..models.config import ModelShape
from ..models.memory import wired_memory
from ..settings import Settings

GREEDY = Settings(sampler="greedy")
SUPPRESSED = -100.0
"""What is added to the logits of suppressed tokens."""
UNCHANGED = {"num_beams": 1, "repetition_penalty": 1.0}
"""Values with which transformers passes options that do nothing."""
IGNORED = {"min_new_tokens", "output_logits", "output_scores", "pad_token_id", "use_cache"}


class CausalLM:
    """A model that generates and is called as one of transformers."""

    device = torch.device("cpu")
    """Where its tensors are."""

    def __init__(
        self, model: LanguageModel, tokenizer: TokenizerWrapper, settings: Settings = GREEDY
    ) -> None:
        """Take a model and its tokenizer from `load`, and how answers are generated."""
        self._model = model
        self._tokenizer = tokenizer
        self._settings = settings

    @cached_property
    def tokenizer(self) -> Any:
        """The tokenizer as one of transformers, which pads prompts on the left."""
        own = deepcopy(self._tokenizer._tokenizer)
        own.padding_side = "left"
        own.pad_token = own.pad_token or own.eos_token
        own.model_input_names = ["input_ids", "attention_mask"]
        return own

    @property
    def config(self) -> ModelShape:
        return self._model.config

    def __call__(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        output_attentions: bool = False,
    ) -> CausalLMOutput:
        """Return the logits of texts, `(rows, length, vocab)`; 0 where a text is padded.

        Args:
            input_ids: `(rows, length)`.
            attention_mask: 0 where a text is padded.
            output_attentions: whether to return attention weights as well: of each layer, `(rows,
                heads, length, length)`.

        Raises:
            PromptError: a text has a token that the model does not have.
            UnsupportedModelError: the attention of several tokens at once cannot be read.
        """
        rows, length = input_ids.shape
        logits = torch.zeros((rows, length, self.config.vocab_size))
        attentions: list[torch.Tensor] = []
        for row, kept in enumerate(_kept(input_ids, attention_mask)):
            places = kept.nonzero()[:, 0]
            tokens = input_ids[row, places].tolist()
            logits[row, places] = _to_torch(self._model.head(self._states(tokens))[0])
            weights = self._attention(tokens, 0) if output_attentions else []
            for number, layer in enumerate(weights):
                if number == len(attentions):
                    attentions.append(torch.zeros((rows, len(layer), length, length)))
                attentions[number][row, :, places[:, None], places] = layer
        return CausalLMOutput(logits=logits, attentions=tuple(attentions) or None)

    def generate(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        *,
        logits_processor: Any = None,
        num_return_sequences: int = 1,
        output_attentions: bool = False,
        output_hidden_states: bool = False,
        return_dict_in_generate: bool = False,
        **options: Any,
    ) -> torch.Tensor | GenerateDecoderOnlyOutput:
        """Answer prompts, and return what `generate` of transformers does.

        Args:
            input_ids: `(rows, length)`.
            attention_mask: 0 where a prompt is padded, on the left.
            logits_processor: called with the logits of each step, to look at them.
            num_return_sequences: answers to each prompt; they follow one another.
            output_attentions: whether to return the attention of each step.
            output_hidden_states: whether to return the states of the last layer.
            return_dict_in_generate: whether to return all this with the logits, or sequences alone.
            **options: `max_new_tokens`, `repetition_penalty`, `stopping_criteria` with strings,
                `suppress_tokens`, and `do_sample` with `temperature`, `top_k` and `top_p`, which
                replace the sampler of the settings.

        Raises:
            EntropixError: one of its kinds, saying what is wrong and what to do.
            SettingsError: an option that cannot be followed, such as beams.
        """
        prompts = input_ids.repeat_interleave(num_return_sequences, dim=0)
        kept = _kept(input_ids, attention_mask).repeat_interleave(num_return_sequences, dim=0)
        rows = [prompt[each].tolist() for prompt, each in zip(prompts, kept, strict=True)]
        batch = batch_generate(
            self._model,
            self._tokenizer,
            rows[::num_return_sequences],
            self._chosen(options),
            n=num_return_sequences,
        )
        answers = list(map(_tokens, batch.finish()))
        padding = self._tokenizer.eos_token_id
        steps = max(map(len, answers))
        padded = [[*answer, *[padding] * (steps - len(answer))] for answer in answers]
        sequences = torch.cat([prompts, torch.tensor(padded, dtype=prompts.dtype)], dim=1)
        if not return_dict_in_generate:
            return sequences
        read = self._reread(rows, answers, output_attentions, output_hidden_states)
        scores = read.logits.unbind(dim=1)
        if logits_processor is not None:
            for at, each in enumerate(scores, prompts.shape[1]):
                logits_processor(sequences[:, :at], each)
        return GenerateDecoderOnlyOutput(
            sequences=sequences,
            scores=scores,
            logits=scores,
            attentions=read.attentions_of_steps(),
            hidden_states=read.states_of_steps(),
        )

    def _chosen(self, options: Mapping[str, Any]) -> Settings:
        """Return the settings with what options of transformers' `generate` change."""
        given = {
            name: value
            for name, value in options.items()
            if name not in IGNORED and UNCHANGED.get(name) != value
        }
        changes: dict[str, Any] = {}
        if (most := given.pop("max_new_tokens", None)) is not None:
            changes["max_tokens"] = most
        if "repetition_penalty" in given:
            changes["repetition_penalty"] = given.pop("repetition_penalty")
        if suppressed := given.pop("suppress_tokens", None):
            changes["logit_bias"] = dict.fromkeys(suppressed, SUPPRESSED)
        criteria = given.pop("stopping_criteria", None) or ()
        if stops := [text for one in criteria for text in getattr(one, "stop_strings", ())]:
            changes["stop"] = tuple(stops)
        sampling = {name: given.pop(name, None) for name in ("temperature", "top_k", "top_p")}
        if given.pop("do_sample", False):
            changes |= {"sampler": "temperature", "min_p": None, **sampling}
        if unknown := [n for n, v in given.items() if v is not None and v is not False]:
            raise SettingsError(f"{', '.join(unknown)}: not available here; leave it out")
        return replace(self._settings, **changes)

    def _reread(
        self,
        prompts: Sequence[Sequence[int]],
        answers: Sequence[Sequence[int]],
        attentions: bool,
        states: bool,
    ) -> _Reread:
        """Return what the model computed at every step of the answers."""
        rows, steps = len(prompts), max(map(len, answers))
        length = max(map(len, prompts))
        config, keys = self.config, length + steps - 1
        logits = torch.full((rows, steps, config.vocab_size), -torch.inf)
        logits[..., self._tokenizer.eos_token_id] = 0.0  # all that follows the end
        layers: list[torch.Tensor] = []
        hidden = torch.zeros((rows, keys, config.hidden_size)) if states else None
        for row, (prompt, answer) in enumerate(zip(prompts, answers, strict=True)):
            tokens, begin = [*prompt, *answer[:-1]], length - len(prompt)
            place = slice(begin, begin + len(tokens))
            last = self._states(tokens)
            logits[row, : len(answer)] = _to_torch(self._model.head(last[:, len(prompt) - 1 :])[0])
            if hidden is not None:
                hidden[row, place] = self._hidden(last)
            weights = self._attention(tokens, len(prompt) - 1) if attentions else []
            for number, layer in enumerate(weights):
                if number == len(layers):
                    layers.append(torch.zeros((rows, len(layer), steps, keys)))
                layers[number][row, :, : len(answer), place] = layer
        return _Reread(logits, layers, hidden, length)

    def _states(self, tokens: Sequence[int]) -> mx.array:
        check_tokens(tokens, self.config.vocab_size)
        with wired_memory.raised():
            states, _ = self._model.states(mx.array([tokens]), self._model.make_cache(), "last")
            mx.eval(states)
        return states

    def _hidden(self, states: mx.array) -> torch.Tensor:
        if states.shape[-1] != self.config.hidden_size:
            raise UnsupportedModelError(
                f"mlx-lm's {self.config.model_type} does not hand out its states: leave"
                " output_hidden_states out"
            )
        return _to_torch(states[0])

    def _attention(self, tokens: Sequence[int], first: int) -> list[torch.Tensor]:
        """Return the attention of the tokens from `first` on: a layer's `(heads, queries,
        keys)`."""
        parts = [
            [_all_keys(np.array(layer), len(tokens)) for layer in layers]
            for layers in attention_rows(self._model, tokens, first)
        ]
        return [
            torch.from_numpy(np.concatenate(layer).swapaxes(0, 1))
            for layer in zip(*parts, strict=True)
        ]


class _Reread(NamedTuple):
    """What a model computed at every step of some answers, whose prompts are padded on the left."""

    logits: torch.Tensor
    """`(rows, steps, vocab)`"""
    layers: list[torch.Tensor]
    """The attention of each, `(rows, heads, steps, keys)`; empty where it was not asked for."""
    states: torch.Tensor | None
    """Of the last layer, `(rows, keys, hidden)`."""
    prompt: int
    """Tokens of a padded prompt."""

    def attentions_of_steps(self) -> tuple[tuple[torch.Tensor, ...], ...] | None:
        if not self.layers:
            return None
        return tuple(
            tuple(layer[:, :, step : step + 1, : self.prompt + step] for layer in self.layers)
            for step in range(self.logits.shape[1])
        )

    def states_of_steps(self) -> tuple[tuple[torch.Tensor, ...], ...] | None:
        """Return what each step added: the prompt, then a token."""
        if self.states is None:
            return None
        sizes = [self.prompt, *[1] * (self.states.shape[1] - self.prompt)]
        return tuple((part,) for part in self.states.split(sizes, dim=1))


def _to_torch(array: mx.array) -> torch.Tensor:
    return torch.from_numpy(np.array(array.astype(mx.float32)))


def _kept(tokens: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
    return torch.ones_like(tokens, dtype=torch.bool) if mask is None else mask.bool()


def _tokens(answer: BatchAnswer) -> list[int]:
    if answer.error is not None:
        raise answer.error
    return [step.token for step in answer.steps]


def _all_keys(weights: np.ndarray, keys: int) -> np.ndarray:
    """Return weights `(queries, heads, …)` with 0 for the keys of later tokens."""
    return np.pad(weights, ((0, 0), (0, 0), (0, keys - weights.shape[-1])))
