"""Measure the parts of a decoding step, each of which is run alone and waited for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mlx.core as mx

from ...models.llama.attention import KeysValues, attend
from ...models.llama.cache import trim
from ...samplers.draw import draw, uniforms
from ...samplers.position import measure
from ...samplers.registry import make_sampler
from .decoding import PROMPT
from .pair import SEED, Pair, copies, made_up_cache
from .records import Effort, Figure
from .timing import in_turns, seconds, to_figures

STEP = "step"
StepParts = dict[str, Callable[[], object]]
"""By name, a function that computes a part and returns its arrays."""


def measure_steps(pair: Pair, effort: Effort) -> list[Figure]:
    """Return the figures of the smallest and the largest context that the model holds.

    The parts do not add up to a step. Each is waited for here, while in a step the device works on
    without a pause; and norms, rotary embeddings and the growing of the cache are in none of the
    parts of the forward pass.
    """
    limit = pair.model.config.max_position_embeddings
    held = [context for context in effort.contexts if context + len(PROMPT) <= limit]
    figures = []
    for context in sorted({*held[:1], *held[-1:]}):
        parts = _forward_parts(pair, context) | _sampler_parts(pair, context)
        for part in parts.values():
            mx.eval(part())  # a warm-up
        timed = {name: lambda p=p: 1e3 * seconds(lambda: mx.eval(p())) for name, p in parts.items()}
        repeated = in_turns(timed, effort.draw_repeats)
        figures += to_figures(STEP, f"context {context:,}", "ms", repeated)
    return figures


def _forward_parts(pair: Pair, context: int) -> StepParts:
    model = pair.model
    config, layers = model.config, model.model.layers
    cache = copies(made_up_cache(pair.model, context))
    mx.eval(model(mx.array([PROMPT]), cache).logits)  # gives each layer arrays of its own
    x = model.model.embed_tokens(mx.array([PROMPT]))
    heads = (1, config.num_attention_heads, 1, config.head_dim)
    queries = mx.random.normal(heads).astype(x.dtype)
    joined = mx.zeros((1, 1, config.num_attention_heads * config.head_dim), x.dtype)
    mx.eval(x, queries)

    def projections(attention: Any) -> list[mx.array]:
        inward = [f(x) for f in (attention.q_proj, attention.k_proj, attention.v_proj)]
        return [*inward, attention.o_proj(joined)]

    def attention() -> list[mx.array]:
        scale = config.head_dim**-0.5
        return [attend(queries, *KeysValues(*layer.keys_and_values()), scale) for layer in cache]

    def whole() -> mx.array:
        trim(cache, context)
        return model(mx.array([PROMPT]), cache).logits

    head = model.model.embed_tokens.as_linear if config.tie_word_embeddings else model.lm_head
    return {
        "forward pass": whole,
        "· attention projections": lambda: [projections(layer.self_attn) for layer in layers],
        "· attention over the cache": attention,
        "· feed-forward": lambda: [layer.mlp(x) for layer in layers],
        "· output head": lambda: head(x),
    }


def _sampler_parts(pair: Pair, context: int) -> StepParts:
    forward = pair.model(mx.array([PROMPT]), copies(made_up_cache(pair.model, context)))
    sampler = make_sampler("entropix")
    logits = forward.logits[:, -1]
    scores = [of_layer for of_layer in forward.scores if isinstance(of_layer, mx.array)]
    measured = measure(logits, scores)
    plan = sampler.planned(measured).plan
    mx.eval(forward, measured, plan)

    def drawn() -> object:
        randomness = mx.array([uniforms(SEED, context, sampler.draws)])
        return draw(measured, plan, sampler, randomness)

    return {
        "measurements": lambda: measure(logits, scores),
        "plan": lambda: sampler.planned(measured).plan,
        "draw": drawn,
        "numbers for the host": lambda: len(plan.decisions(measured.metrics)),
    }
