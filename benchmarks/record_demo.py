"""Record the session that `entropix chat --demo` plays, with the demo model and today's engine.

    python benchmarks/record_demo.py [--model M] [--rate 12]

Each question of the welcome card gets an answer, and others that begin differently: each losing
branch of its first fork or, without a fork, the most probable of the other first tokens. The seeds
were chosen so that the answers show every strategy, a thought and forks. The times are scaled to
one speed, whatever else the machine did.
"""

from __future__ import annotations

import argparse
import gzip
import json
import statistics
import sys
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory

from mlx_lm.tokenizer_utils import TokenizerWrapper

from entropix_mlx import Profile, Session, Settings, load
from entropix_mlx.chat import recorded
from entropix_mlx.chat.conversation import Conversation
from entropix_mlx.models.base import LanguageModel
from entropix_mlx.step import Step

SEEDS = {
    "Which is larger, 9.11 or 9.9?": 3,
    "Write a short poem about a lighthouse.": 1,
    "What should I name my cat?": 2,
}
MAX_TOKENS, ALTERNATIVES, OTHERS = 64, 6, 2
Loaded = tuple[LanguageModel, TokenizerWrapper]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model")
    parser.add_argument("--rate", type=float, default=12.0, help="tokens a second")
    given = parser.parse_args()
    loaded = load(given.model)
    whole, profile = Conversation(), recorded.demo_profile()
    prompts: dict[str, int] = {}
    for question, seed in SEEDS.items():
        session = Session(*loaded, settings_of(profile, seed))
        first = list(session.send(question))
        prompts[question] = session.conversation.context_used - len(first)
        print("".join(step.text for step in first), flush=True)
        for index, tokens in other_beginnings(first):
            session.select(0)
            text = "".join(step.text for step in session.fork(index, tokens))
            print(f"  from token {index}: {text}", flush=True)
        recorded_turn = session.conversation.last
        recorded_turn.selected = 0
        for answer in recorded_turn.answers:
            answer.steps = in_time(answer.steps, given.rate)
        whole.turns.append(recorded_turn)
    write(recorded.Recording(whole, prompts))
    return 0


def settings_of(profile: Profile, seed: int) -> Settings:
    return Settings(MAX_TOKENS, "entropix", profile, seed=seed, top_logprobs=ALTERNATIVES)


def other_beginnings(steps: list[Step]) -> list[tuple[int, tuple[int, ...]]]:
    """Return where other answers branch off, and with which tokens."""
    fork = next((step for step in steps if step.fork), None)
    if fork is not None and fork.fork is not None:
        lost = [one for n, one in enumerate(fork.fork.branches) if n != fork.fork.winner]
        return [(fork.index, branch.tokens) for branch in lost]
    others = [other for other in steps[0].top_logprobs if other.token != steps[0].token]
    return [(0, (other.token,)) for other in others[:OTHERS]]


def in_time(steps: list[Step], rate: float) -> list[Step]:
    """Return steps whose usual distance in time is that of so many tokens a second."""
    gaps = [b.time - a.time for a, b in pairwise(steps)]
    passes = [gap for gap in gaps if gap > max(gaps) / 100]  # a fork's winner comes all at once
    scale = 1 / rate / statistics.median(passes)
    return [replace(step, time=round(step.time * scale, 3)) for step in steps]


def as_record(conversation: Conversation) -> object:
    """Return a conversation as it is saved."""
    with TemporaryDirectory() as folder:
        saved = Path(folder) / "demo.json"
        conversation.save(saved)
        return json.loads(saved.read_text(encoding="utf-8"))


def write(recording: recorded.Recording) -> None:
    """Write the recording to where `recorded.demo_recording` reads it."""
    path = Path(recorded.__file__).with_name(recorded.FILE)
    record = {
        "conversation": as_record(recording.conversation),
        "prompt_tokens": recording.prompt_tokens,
    }
    text = json.dumps(record, ensure_ascii=False)
    path.write_bytes(gzip.compress(text.encode("utf-8"), mtime=0))
    print(f"{path.name}: {path.stat().st_size} bytes")


if __name__ == "__main__":
    sys.exit(main())
