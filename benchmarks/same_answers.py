# ruff: noqa
"""Record some 200 answers with everything on, or compare them with a record: temporary.

    python benchmarks/same_answers.py record FILE [--demo]
    python benchmarks/same_answers.py compare FILE [--demo]

Demo model and three tiny ones; all interventions, batches, speculation, stop strings, retrieval,
sessions. It uses what is public, under the names before and after.
"""

from __future__ import annotations

import json
import random
import sys
import tempfile
from dataclasses import fields
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from entropix_mlx import (
    Session,
    Settings,
    batch_generate,
    chat_prompt,
    load,
    stream_generate,
)
from entropix_mlx.notes.notes import Notes

try:
    from entropix_mlx import DraftModel as DraftModel
except ImportError:
    from entropix_mlx import DraftModel
from tests import architectures
from tests.conftest import make_byte_tokenizer, make_tiny_model

SPECULATION = "speculation" if "speculation" in {f.name for f in fields(Settings)} else "lookup"
OFTEN = {
    "thresholds": {
        "low_entropy": -1,
        "think_min_entropy": 1.0,
        "think_max_varentropy": 2.0,
        "branch_min_varentropy": 2.0,
    },
    "branch": {"min_gap": 2, "depth": 6, "width": 3},
    "think": {"min_gap": 5, "watch": 3, "wait": 30},
}
KEEPS = {
    **OFTEN,
    "think": {**OFTEN["think"], "least_gain": float("-inf"), "place": "word", "loop_length": 0},
}
FORKS = {
    "thresholds": {"branch_min_varentropy": 1.0, "branch_max_entropy": 9.0},
    "branch": {"min_gap": 8, "width_follows_entropy": True, "width": 6, "halve_from": 2},
}
NOTED = {"notes": {"min_entropy": 2.5, "min_gap": 10, "min_score": 0.0}}
WAITS = {"notes": {"min_entropy": 2.0, "draft": 0, "wait": 30, "min_gap": 10, "min_score": 0.0}}
STARTS = {"notes": {"when": "start", "min_score": 0.0}}


def kinds() -> list[dict]:
    return [
        {},
        {"sampler": "greedy"},
        {"changes": OFTEN},
        {"changes": KEEPS},
        {"changes": FORKS},
        {"changes": FORKS, SPECULATION: 4},
        {"profile": "reference"},
        {"profile": "reference", "changes": {"branch": {"trigger": "entropy", "trigger_at": 3.0}}},
        {"changes": {"branch": {"trigger": "chance", "trigger_at": 0.2, "min_gap": 1}}},
        {"sampler": "min_p", "temperature": 0.7, "top_logprobs": 3},
        {"sampler": "top_p", "temperature": 0.9, "stop": ("e", "the")},
        {"changes": KEEPS, "stop": (". ", "\n\n"), SPECULATION: 3},
        {"sampler": "mirostat"},
        {"sampler": "adaptive_p"},
        {"sampler": "xtc"},
        {"sampler": "cntp"},
        {"sampler": "dslider"},
        {"changes": OFTEN, "attention_layers": "all"},
        {"repetition_penalty": 1.2, "dry_multiplier": 0.8, "logit_bias": {65: 2.0}},
        {"sampler": "greedy", SPECULATION: 6},
        {"sampler": "adaptive_temperature"},
        {"sampler": "p_less", "temperature": 1.5},
    ]


def shown(steps) -> list:
    return [
        [s.token, str(s.origin), str(s.strategy), s.text, round(s.logprob, 3), s.finish_reason]
        for s in steps
    ]


QUESTIONS = [
    "Why is the sky blue?",
    "Tell me how to bake bread, step by step, and why each step matters.",
    "Repeat this list twice: apples, pears, figs, plums, cherries, apples, pears, figs.",
    "What is 17 times 23?",
    "Explain what a black hole is to a child.",
    "Write three sentences about the sea.",
    "Should one learn two languages at once?",
    "Describe how a vaccine works.",
    "What happened in 1969?",
    "Who painted the Mona Lisa, and when?",
]


def answers(demo: bool) -> dict[str, list]:
    found: dict[str, list] = {}
    models = {}
    byte = make_byte_tokenizer()
    if demo:
        models["demo"] = load()
        prompts = [chat_prompt(models["demo"][1], q) for q in QUESTIONS]
        tokens, few = 48, range(3)
    else:
        models["tiny"] = make_tiny_model(max_position_embeddings=2048), byte
        for name in ("gemma3_text", "lfm2"):
            models[name] = tapped(name), byte
        rng = random.Random(3)
        prompts = [[rng.randrange(32, 120) for _ in range(rng.randrange(5, 60))] for _ in range(10)]
        tokens, few = 40, range(2)
    folder = Path(tempfile.mkdtemp())
    (folder / "a.md").write_text(
        "# Sky\n\nThe sky is blue because air scatters blue light more. It is called Rayleigh"
        " scattering.\n\n# Bread\n\nBread rises because yeast makes gas. Knead it for ten"
        " minutes.\n\n# Sea\n\nThe sea is salty. It covers most of the earth.\n"
    )
    notes = Notes(folder, cache=folder / "cache")
    for name, (model, tokenizer) in models.items():
        for number, kind in enumerate(kinds()):
            for round_ in few if demo else range(2):
                settings = Settings(max_tokens=tokens, seed=number + 7 * round_, **kind)
                prompt = prompts[(number + 3 * round_) % len(prompts)]
                try:
                    steps = shown(stream_generate(model, tokenizer, prompt, settings))
                except Exception as error:
                    steps = [type(error).__name__]
                found[f"{name} {number} {round_}"] = steps
        for number, changes in enumerate((NOTED, WAITS, STARTS, {**NOTED, **OFTEN})):
            settings = Settings(max_tokens=tokens, seed=number, changes=changes)
            question = QUESTIONS[number % 3]
            found[f"{name} notes {number}"] = shown(
                stream_generate(
                    model, tokenizer, prompts[number], settings, retrieve=notes.about(question)
                )
            )
        mixed = [Settings(max_tokens=tokens, seed=n, **kind) for n, kind in enumerate(kinds()[:10])]
        batch = batch_generate(model, tokenizer, prompts[:10], mixed, n=2, batch=6, steady=True)
        for answer in batch.finish():
            found[f"{name} batch {answer.index}"] = shown(answer.steps) or [
                type(answer.error).__name__
            ]
        session = Session(model, tokenizer, Settings(max_tokens=24, seed=5, changes=OFTEN))
        for number, question in enumerate(
            ("Why is the sky blue?", "And at night?", "Thanks. Tell me more.")
        ):
            found[f"{name} session {number}"] = shown(session.send(question))
        found[f"{name} session again"] = shown(session.regenerate())
        steps = (
            session.conversation.turns[-1].answers[-1].steps
            if hasattr(session, "conversation")
            else ()
        )
        if len(steps) > 5:
            found[f"{name} session fork"] = shown(session.fork(4, steps[0].token))
        found[f"{name} session edit"] = shown(session.edit(0, "Why is the sea blue?"))
    if not demo:
        draft = DraftModel(make_tiny_model(seed=0, max_position_embeddings=2048), byte, 4)
        for number, kind in enumerate(({"sampler": "greedy"}, {"changes": OFTEN}, {})):
            settings = Settings(max_tokens=tokens, seed=number, **kind)
            found[f"draft {number}"] = shown(
                stream_generate(*models["tiny"], prompts[number], settings, draft_model=draft)
            )
    return found


def tapped(name: str):
    folder = Path(tempfile.mkdtemp()) / name
    model, config = architectures.make(name)
    architectures.save(model, config, folder)
    make_byte_tokenizer().save_pretrained(str(folder))
    return load(str(folder))[0]


def anywhere() -> None:
    """Let text be inserted anywhere: what a tiny random model writes is no prose."""
    try:
        from entropix_mlx.answer.interventions import prose
    except ImportError:
        from entropix_mlx.decoding import prose
    prose.Surroundings.place = lambda self, following: prose.Place.SENTENCE if following else None


def main() -> int:
    verb, file = sys.argv[1:3]
    if "--demo" not in sys.argv:
        anywhere()
    found = json.loads(json.dumps(answers("--demo" in sys.argv)))
    if verb == "record":
        Path(file).write_text(json.dumps(found, indent=0))
        print(len(found), "answers")
        origins = [s[1] for steps in found.values() for s in steps if isinstance(s, list)]
        print({o: origins.count(o) for o in set(origins)})
        return 0
    before = json.loads(Path(file).read_text())
    differ = 0
    for name in before:
        one, other = before[name], found.get(name)
        if one == other:
            continue
        same_tokens = other is not None and [
            s[:1] + s[3:4] for s in one if isinstance(s, list)
        ] == [s[:1] + s[3:4] for s in other if isinstance(s, list)]
        at = next((n for n, (a, b) in enumerate(zip(one, other or [])) if a != b), "length")
        differ += 1
        print(
            name,
            "same tokens" if same_tokens else "DIFFERS",
            "at",
            at,
            (one[at], other[at]) if isinstance(at, int) else (one[-2:], (other or [])[-2:]),
        )
    print(len(before) - differ, "of", len(before), "are equal")
    return int(differ > 0)


if __name__ == "__main__":
    sys.exit(main())
