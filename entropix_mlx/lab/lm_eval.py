"""A model class for lm-eval, EleutherAI's evaluation harness (the extra ``eval``).

    lm_eval --model entropix_mlx --model_args pretrained=MODEL,sampler=entropix --tasks …
    python -m entropix_mlx.lab.lm_eval --model entropix_mlx …

The first line needs a version of lm-eval that finds the models of other packages by their entry
points. Older ones (0.4.13 among them) do not look for any; the second line works with all, since it
registers the class before it runs lm-eval's own command line.

Texts become tokens as in mlx-lm's own class for lm-eval, so that log-likelihoods are the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from lm_eval.api.model import LM
from lm_eval.api.registry import register_model

from ..answer.position import Likelihood
from ..api.batch import batch_generate
from ..api.prompts import conversation_text
from ..api.score import Likelihoods, begin_token, windows
from ..checkpoints.loading import load
from ..errors import PromptError
from ..settings import BATCH, Settings

MOST_TOKENS = 256
"""Tokens of an answer where a task does not say how many: lm-eval's own default."""


@register_model("entropix_mlx")
class EntropixLM(LM):  # type: ignore[misc]
    """A model whose answers are drawn by one of our samplers."""

    def __init__(
        self,
        pretrained: str | None = None,
        sampler: str = "greedy",
        profile: str = "auto",
        seed: int = 0,
        batch_size: int | str = BATCH,
        max_length: int | None = None,
        **unused: Any,
    ) -> None:
        """Load a model.

        Args:
            pretrained: folder, .gguf file or hub id; the demo model if there is none.
            sampler: of tasks that generate; log-likelihoods do not depend on it.
            profile: of the sampler.
            seed: of the first answer.
            batch_size: answers at once.
            max_length: of the context.
            **unused: other arguments of lm-eval, such as a device.
        """
        super().__init__()
        self.model, self.tokenizer = load(pretrained)
        context = self.model.config.max_position_embeddings
        self.max_length = min(context, max_length or context)
        self._settings = Settings(sampler=sampler, profile=profile, seed=seed)
        self._batch = batch_size if isinstance(batch_size, int) else BATCH
        self._likelihoods = Likelihoods(self.model)

    @property
    def tokenizer_name(self) -> str:
        """The name under which lm-eval keeps the requests of a chat template."""
        return str(self.tokenizer.name_or_path).replace("/", "__")

    def apply_chat_template(
        self, chat_history: Sequence[dict[str, str]], add_generation_prompt: bool = True
    ) -> str:
        """Return a conversation as the text that the model's chat template makes of it.

        Raises:
            PromptError: the template refuses it, or the last message is to be continued.
        """
        if not add_generation_prompt:
            raise PromptError("an answer that was begun cannot be continued: use another task")
        return conversation_text(self.tokenizer, chat_history)

    def loglikelihood(self, requests: Sequence[Any]) -> list[tuple[float, bool]]:
        """Return the log probability of each (context, continuation), and whether greedy has it."""
        return [self._continued(*request.args) for request in requests]

    def loglikelihood_rolling(self, requests: Sequence[Any]) -> list[float]:
        """Return the log probability of each text, without its first token, as mlx-lm does."""
        return [self._whole(request.args[0]) for request in requests]

    def generate_until(self, requests: Sequence[Any]) -> list[str]:
        """Return an answer to each (context, options), of which ``until`` and ``max_gen_toks`` are
        used; the sampler is ours, whatever a task requests.
        """
        prompts, settings = [], []
        for request in requests:
            context, options = request.args
            own = self._settings_of(options)
            prompts.append(self._encode(context)[-(self.max_length - own.max_tokens) :])
            settings.append(own)
        batch = batch_generate(self.model, self.tokenizer, prompts, settings, batch=self._batch)
        batch.finish()
        for answer in batch.answers:
            if answer.error is not None:
                raise answer.error
        return [answer.text for answer in batch.answers]

    def _settings_of(self, options: Mapping[str, Any]) -> Settings:
        until = options.get("until") or ()
        stops = (until,) if isinstance(until, str) else tuple(filter(None, until))
        most = min(int(options.get("max_gen_toks", MOST_TOKENS)), self.max_length - 1)
        return replace(self._settings, max_tokens=most, stop=stops)

    def _encode(self, text: str) -> list[int]:
        # A chat template writes the token that begins a text itself.
        added = not self.tokenizer.has_chat_template
        return list(self.tokenizer.encode(text, add_special_tokens=added))

    def _continued(self, context: str, continuation: str) -> tuple[float, bool]:
        before = self._encode(context)
        tokens = self._encode(context + continuation)[len(before) :]
        before = before or [begin_token(self.tokenizer)]
        room = self.max_length - len(tokens) + 1  # nothing follows the last token
        if room < 1:
            return -float("inf"), False
        found = self._likelihoods.of(before[-room:], tokens)
        return sum(one.logprob for one in found), all(one.best for one in found)

    def _whole(self, text: str) -> float:
        tokens = self._encode(text)
        found: list[Likelihood] = []
        for begin, first, end in windows(len(tokens), 1, self.max_length):
            found += self._likelihoods.of(tokens[begin:first], tokens[first:end])
        return sum(one.logprob for one in found)


def main() -> None:
    from lm_eval.__main__ import cli_evaluate

    cli_evaluate()


if __name__ == "__main__":
    main()
