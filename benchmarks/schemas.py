"""Try constraints on a folder of JSON schemas with examples, such as that of MaskBench.

    python benchmarks/schemas.py FOLDER [--model M] [--schemas 1000] [--walks 2] [--tokens 400]
                                        [--answers 2]

Each file holds {"schema": …, "tests": [{"valid": true, "data": …}, …]}. Counted are

- schemas that are refused, by what is said of them;
- valid examples that a schema refuses (most have their keys in another order) and invalid ones that
  it accepts;
- random walks through the allowed tokens that end, and those whose end `jsonschema` calls invalid;
- answers of the model that end, those that `jsonschema` calls invalid, and those that are cut off,
  by what they end with. One answer to a schema is greedy, the others are drawn at temperature 1.

Random tokens are a harder test than a model's: they try spellings that no model would choose.
"""

from __future__ import annotations

import argparse
import json
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np

from entropix_mlx import Settings, batch_generate, chat_prompt, load
from entropix_mlx.api.batch import BatchAnswer
from entropix_mlx.constraints.constraint import JSON_SCHEMA, Constraint
from entropix_mlx.constraints.matcher import Matcher, matcher_for
from entropix_mlx.errors import ConstraintError

PUNCTUATION = '"}],'
TASK = "Write an example of a JSON document with this schema:\n{}"
LONGEST_PROMPT = 800
"""Tokens; schemas that need more are not answered."""
MOST_BLANKS = 20
"""Characters; more at the end of an answer are a runaway."""


class Trial:
    """Schemas that are tried with one tokenizer."""

    def __init__(self, model: str | None, seed: int) -> None:
        self.model, self.tokenizer = load(model)
        self.vocab = self.model.config.vocab_size
        self.random = np.random.default_rng(seed)
        texts = [self.tokenizer.decode([token]) for token in range(self.vocab)]
        closing = [bool(text.strip()) and not text.strip(PUNCTUATION + " ") for text in texts]
        self.closing = np.array(closing)
        self.closing[list(self.tokenizer.eos_token_ids)] = True

    def findings(self, case: dict[str, Any], walks: int, tokens: int) -> Iterator[str]:
        """Yield what is to be counted of one schema."""
        try:
            constraint = Constraint(JSON_SCHEMA, case["schema"])
            matcher = matcher_for(constraint, self.tokenizer, self.vocab)
        except ConstraintError as error:
            yield f"refused: {str(error).rpartition(': ')[2][:60]}"
            return
        yield "accepted"
        for example in case.get("tests", ()):
            if self.takes(matcher, json.dumps(example["data"], ensure_ascii=False)):
                yield "example accepted" if example["valid"] else "INVALID example accepted"
            else:
                yield "valid example refused" if example["valid"] else "invalid example refused"
        for _ in range(walks):
            try:
                yield self.ending(matcher.copy(), case["schema"], tokens)
            except ConstraintError as error:
                yield f"walk failed: {str(error).rpartition(': ')[2][:60]}"

    def answers(self, schemas: Sequence[dict[str, Any]], count: int, tokens: int) -> Iterator[str]:
        """Yield what is to be counted of the model's answers to schemas."""
        prompts, settings = [], []
        for schema in schemas:
            prompt = chat_prompt(self.tokenizer, TASK.format(json.dumps(schema)))
            if len(prompt) <= LONGEST_PROMPT:
                for seed in range(count):
                    prompts.append(prompt)
                    settings.append(
                        Settings(
                            sampler="temperature" if seed else "greedy",
                            seed=seed,
                            max_tokens=tokens,
                            constraint=Constraint(JSON_SCHEMA, schema),
                        )
                    )
        for answer, own in zip(
            batch_generate(self.model, self.tokenizer, prompts, settings).finish(),
            settings,
            strict=True,
        ):
            assert own.constraint is not None
            yield self._ended(answer, own.constraint.value)

    def _ended(self, answer: BatchAnswer, schema: dict[str, Any]) -> str:
        if answer.error is not None:
            return f"answer failed: {str(answer.error).rpartition(': ')[2][:60]}"
        if answer.steps[-1].finish_reason != "stop":
            blank = len(answer.text) - len(answer.text.rstrip())
            return "answer cut off in blanks" if blank > MOST_BLANKS else "answer cut off"
        judge = jsonschema.validators.validator_for(schema)(schema)
        valid = judge.is_valid(json.loads(answer.text))
        return "answer valid" if valid else "answer INVALID"

    def takes(self, matcher: Matcher, text: str) -> bool:
        following = matcher.copy()
        try:
            for token in self.tokenizer.encode(text, add_special_tokens=False):
                following.add(token)
            following.add(self.tokenizer.eos_token_id)
        except ConstraintError:
            return False
        return True

    def ending(self, matcher: Matcher, schema: dict[str, Any], most: int) -> str:
        found: list[int] = []
        while len(found) < most:
            bits = np.unpackbits(matcher.masks()[0].view(np.uint8), bitorder="little")
            allowed = np.flatnonzero(bits[: self.vocab])
            closing = allowed[self.closing[allowed]]
            closes = len(closing) and self.random.random() < (
                0.5 if len(found) < most / 3 else 0.97
            )
            found.append(int(self.random.choice(closing if closes else allowed)))
            matcher.add(found[-1])
            if found[-1] in self.tokenizer.eos_token_ids:
                value = json.loads(self.tokenizer.decode(found[:-1]))
                judge = jsonschema.validators.validator_for(schema)(schema)
                return "walk ended" if judge.is_valid(value) else "walk ended INVALID"
        return "walk was cut off"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--model")
    parser.add_argument("--schemas", type=int, default=1000)
    parser.add_argument("--walks", type=int, default=2)
    parser.add_argument("--tokens", type=int, default=400)
    parser.add_argument("--answers", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    files = sorted(arguments.folder.glob("*.json"))
    random.Random(arguments.seed).shuffle(files)
    trial, counted = Trial(arguments.model, arguments.seed), Counter[str]()
    accepted = []
    for file in files[: arguments.schemas]:
        case = json.loads(file.read_text())
        for finding in trial.findings(case, arguments.walks, arguments.tokens):
            counted[finding] += 1
            if "INVALID" in finding:
                print(f"{file.name}: {finding}")
            if finding == "accepted":
                accepted.append(case["schema"])
    counted.update(trial.answers(accepted, arguments.answers, arguments.tokens))
    for finding, number in counted.most_common():
        print(f"{number:6}  {finding}")


if __name__ == "__main__":
    main()
