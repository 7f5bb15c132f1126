"""The tokenizer of a model: mlx-lm's, or the one that a GGUF file describes.

A tokenizer is built by libraries from files that a stranger wrote. What is wrong with it often
shows only when it is used, and then as any kind of error: here as `TokenizerError`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from mlx_lm.tokenizer_utils import TokenizerWrapper
from tokenizers import Tokenizer, decoders, normalizers, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from ..errors import EntropixError, TokenizerError, first_line

_PROBE = "The 1st « probe » of 12.5 %\n\tété 日本 🙂"  # shows broken rules of splitting, replacing
_SMALLEST_VOCABULARY = 0.5  # share of a model's ids that its tokenizer knows; others are padding
_LLAMA3 = "llama-bpe"
_GPT2 = ("default", "gpt-2", "smollm")  # split by GPT-2's expression; SmolLM each digit first


class ModelTokenizer(TokenizerWrapper):  # type: ignore[misc]  # mlx-lm has no types
    """mlx-lm's tokenizer, which raises `TokenizerError` where the libraries below it fail."""

    @classmethod
    def around(cls, tokenizer: TokenizerWrapper, where: object) -> ModelTokenizer:
        """Return a tokenizer with these safeguards, after trying it. Raises `TokenizerError` if a
        special token is no token, or a text cannot be encoded or decoded."""
        own = cls.__new__(cls)
        own.__dict__.update(vars(tokenizer))
        with tokenizer_errors(f"{where}: the tokenizer does not work"):
            if "" in (own.bos_token, own.eos_token, own.unk_token, own.pad_token):
                raise TokenizerError(f"{where}: a special token is empty; download it again")
            own.decode(own.encode(_PROBE))
        return own

    def encode(self, *arguments: Any, **options: Any) -> Any:
        with tokenizer_errors("the tokenizer cannot encode this text"):
            return self._tokenizer.encode(*arguments, **options)

    def decode(self, *arguments: Any, **options: Any) -> Any:
        with tokenizer_errors("the tokenizer cannot decode these tokens"):
            return self._tokenizer.decode(*arguments, **options)


@contextmanager
def tokenizer_errors(message: str) -> Iterator[None]:
    """Raise whatever a library raises as a `TokenizerError` that begins with a message; panics of
    the tokenizers library, which is written in Rust, derive from `BaseException` alone."""
    try:
        yield
    except (EntropixError, KeyboardInterrupt, SystemExit, GeneratorExit):
        raise
    except BaseException as error:
        raise TokenizerError(f"{message}: {first_line(error)}") from error


def check_size(tokenizer: TokenizerWrapper, vocabulary: int, where: object) -> None:
    """Check that a tokenizer is of the size of a model's vocabulary. Raises `TokenizerError` if it
    is another model's."""
    size = len(tokenizer)
    # Tokens added to a vocabulary may go beyond the model's: many a padding token does.
    if tokenizer.vocab_size > vocabulary or size < _SMALLEST_VOCABULARY * vocabulary:
        raise TokenizerError(
            f"{where}: the tokenizer knows {size} tokens and the model {vocabulary}: it is another"
            " model's; copy the tokenizer files of the original model"
        )


def add_endings(tokenizer: TokenizerWrapper, tokens: tuple[str, ...]) -> None:
    """Have further tokens end an answer. Raises `TokenizerError` if one is no token of this
    model."""
    for token in tokens:
        # An unknown token would be taken for the one that stands for unknown texts.
        if not token.isdecimal() and token not in tokenizer.get_vocab():
            raise TokenizerError(
                f"{token!r} is no token of this model, so it cannot end an answer: name a token,"
                " or give --stop the text"
            )
        tokenizer.add_eos_token(token)


def gguf_tokenizer(path: Path, metadata: dict[str, Any]) -> TokenizerWrapper:
    """Return the tokenizer of a GGUF file, by transformers' conversion, corrected where llama.cpp
    encodes otherwise; with its chat template and end-of-text tokens. Raises `TokenizerError`
    if it is missing, damaged, or splits texts by a rule that is not known."""
    with tokenizer_errors(f"{path}: its tokenizer cannot be built"):
        return ModelTokenizer.around(_wrapped(metadata), path)


def _wrapped(metadata: dict[str, Any]) -> TokenizerWrapper:
    prefix = "tokenizer.ggml."
    stated = {key[len(prefix) :]: metadata[key] for key in metadata if key.startswith(prefix)}
    tokens, template = stated.get("tokens"), metadata.get("tokenizer.chat_template")
    if not isinstance(tokens, list) or not isinstance(template, str | None):
        raise ValueError("its tokens are no list, or its chat template is no text")

    def token(role: str) -> str | None:
        number = stated.get(f"{role}_token_id")
        if number is not None and (type(number) is not int or not 0 <= number < len(tokens)):
            raise ValueError(f"the {role} token {number!r} is not in the vocabulary")
        return None if number is None else str(tokens[number])

    by_scores = stated.get("model") == "llama"
    tokenizer = _converted(metadata.get("general.architecture"), stated, by_scores)
    # Files of Llama 3 usually do not say it; llama.cpp, too, concludes it from the rule.
    begins = stated.get("add_bos_token", by_scores or stated.get("pre") == _LLAMA3)
    bos, identity = token("bos"), processors.TemplateProcessing("$A")
    special = [(bos, stated.get("bos_token_id"))]
    begin = processors.TemplateProcessing(f"{bos} $A", special_tokens=special) if bos else identity
    tokenizer.post_processor = begin if begins else identity
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=bos,
        eos_token=token("eos"),
        pad_token=token("padding"),
        unk_token=token("unknown"),
        chat_template=template,
        clean_up_tokenization_spaces=False,
    )
    return TokenizerWrapper(fast, eos_token_ids=[stated["eot_token_id"]] if token("eot") else [])


def _converted(architecture: Any, stated: dict[str, Any], by_scores: bool) -> Tokenizer:
    from transformers.integrations.gguf.gguf_tokenizer_mapping import (
        GGUF_PRE_TOKENIZER_SPLITS,
        convert_gguf_tokenizer,
    )

    model, rule = stated.get("model"), stated.get("pre", "default")
    if by_scores and not isinstance(stated.get("scores"), list):
        raise ValueError("a tokenizer of the kind llama needs scores")
    if not by_scores and (model != "gpt2" or rule not in (*_GPT2, *GGUF_PRE_TOKENIZER_SPLITS)):
        raise ValueError(
            f"its tokenizer ({model}) splits texts by a rule that is not known ({rule}): use the"
            " model's Hugging Face folder, which has a tokenizer.json"
        )
    described = stated | {"tokenizer_type": model, "pre_tokenizer_type": rule}
    described |= {} if by_scores else {"merges": stated.get("merges", [])}
    tokenizer: Tokenizer = convert_gguf_tokenizer(architecture, described)[0]
    # A space is put before the text, which decoding takes away again.
    if by_scores and stated.get("add_space_prefix", True):
        spaces = [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
        tokenizer.normalizer, tokenizer.pre_tokenizer = normalizers.Sequence(spaces), None
        parts = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
        tokenizer.decoder = decoders.Sequence([*parts, decoders.Strip(" ", 1, 0)])
    if rule == _LLAMA3:  # whose merges do not lead to every token of its vocabulary
        tokenizer.model.ignore_merges = True
    if rule == "qwen2":
        tokenizer.normalizer = normalizers.NFC()
    if rule == "smollm":
        digits = pre_tokenizers.Digits(individual_digits=True)
        pieces = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([digits, pieces])
    return tokenizer
