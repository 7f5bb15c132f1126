"""Building the tokenizer that the metadata of a GGUF file describes.

There are two kinds. In a byte-level BPE, as Llama 3, SmolLM and Qwen have, a regular expression
splits a text into pieces, and the bytes of each piece are written as printable characters. In
SentencePiece's, as Gemma has, a text is one piece whose spaces are written as `▁`; a character that
is no token becomes its bytes. Then the merges join neighbours pairwise, in the order in which they
are listed.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from mlx_lm.tokenizer_utils import (
    BPEStreamingDetokenizer,
    SPMStreamingDetokenizer,
    TokenizerWrapper,
)
from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
)
from transformers import PreTrainedTokenizerFast

from ..errors import TokenizerError
from .tokenizers import ModelTokenizer, tokenizer_errors

_ORDINARY, _UNKNOWN, _CONTROL, _USER_DEFINED = 1, 2, 3, 4
"""Token types of the GGUF format."""
_LLAMA3 = "llama-bpe"
_DIGITS = {_LLAMA3: r"\p{N}{1,3}", "qwen2": r"\p{N}"}
"""How many digits a piece may have, in the splittings by `_SPLIT`."""
_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|%s"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_GPT2 = ("default", "gpt-2", "smollm")
"""Splittings by GPT-2's expression; SmolLM's takes each digit by itself first."""


def gguf_tokenizer(path: Path, metadata: dict[str, Any]) -> TokenizerWrapper:
    """Return the tokenizer with its chat template and end-of-text tokens.

    Raises:
        TokenizerError: it is missing, damaged, or splits texts by a rule that is not known.
    """
    with tokenizer_errors(f"{path}: its tokenizer cannot be built"):
        return ModelTokenizer.around(_wrapped(path, metadata), path)


def _wrapped(path: Path, metadata: dict[str, Any]) -> TokenizerWrapper:
    def get(name: str, default: Any = None) -> Any:
        return metadata.get(f"tokenizer.ggml.{name}", default)

    tokens, rule = get("tokens"), get("pre", "default")
    by_scores = get("model") == "llama" and isinstance(get("scores"), list)
    template = metadata.get("tokenizer.chat_template")
    if not isinstance(template, str | None):
        raise TokenizerError(f"{path}: its chat template is no text; download the file again")
    if not isinstance(tokens, list) or not (by_scores or get("model") == "gpt2"):
        raise TokenizerError(
            f"{path}: its tokenizer ({get('model')}) cannot be rebuilt from GGUF: use the model's"
            " Hugging Face folder, which has a tokenizer.json"
        )

    def token(role: str) -> str | None:
        number = get(f"{role}_token_id")
        if number is not None and (type(number) is not int or not 0 <= number < len(tokens)):
            raise TokenizerError(f"{path}: the {role} token {number!r} is not in the vocabulary")
        return None if number is None else str(tokens[number])

    kinds = get("token_type", [])
    of_kind = {
        kind: [t for t, k in zip(tokens, kinds, strict=False) if k == kind] for kind in range(7)
    }
    spaced = bool(get("add_space_prefix", True))
    if by_scores:
        tokenizer = _sentencepiece(
            tokens, get("scores"), of_kind[_ORDINARY], token("unknown"), spaced
        )
        detokenizer: Any = partial(SPMStreamingDetokenizer, trim_space=spaced)
    else:
        tokenizer = _byte_level(tokens, get("merges", []), rule)
        detokenizer = BPEStreamingDetokenizer
    control = of_kind[_UNKNOWN] + of_kind[_CONTROL]
    tokenizer.add_special_tokens([AddedToken(text, normalized=False) for text in control])
    tokenizer.add_tokens([AddedToken(text, normalized=False) for text in of_kind[_USER_DEFINED]])
    # Files of Llama 3 usually do not say it; llama.cpp, too, concludes it from the rule.
    if (bos := token("bos")) and get("add_bos_token", by_scores or rule == _LLAMA3):
        special = [(bos, get("bos_token_id"))]
        tokenizer.post_processor = processors.TemplateProcessing(
            f"{bos} $A", special_tokens=special
        )
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=bos,
        eos_token=token("eos"),
        pad_token=token("padding"),
        unk_token=token("unknown"),
        chat_template=template,
        clean_up_tokenization_spaces=False,
    )
    further = [get("eot_token_id")] if token("eot") is not None else []
    return TokenizerWrapper(fast, detokenizer, eos_token_ids=further)


def _byte_level(tokens: list[str], merges: list[str], rule: str) -> Tokenizer:
    if rule not in (*_GPT2, *_DIGITS):
        raise ValueError(f"it splits texts by a rule that is not known: {rule}")
    pairs = [(left, right) for left, right in (merge.split(" ") for merge in merges)]
    vocabulary = {token: number for number, token in enumerate(tokens)}
    # Llama 3's merges do not lead to every token of its vocabulary: a piece that is a token as it
    # stands is taken whole.
    tokenizer = Tokenizer(models.BPE(vocabulary, pairs, ignore_merges=rule == _LLAMA3))
    if rule in _DIGITS:
        if rule == "qwen2":
            tokenizer.normalizer = normalizers.NFC()
        split = pre_tokenizers.Split(Regex(_SPLIT % _DIGITS[rule]), behavior="isolated")
        steps = [split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    else:
        digits = [pre_tokenizers.Digits(individual_digits=True)] if rule == "smollm" else []
        steps = [*digits, pre_tokenizers.ByteLevel(add_prefix_space=False)]
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(steps)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _sentencepiece(
    tokens: list[str], scores: list[float], ordinary: list[str], unknown: str | None, spaced: bool
) -> Tokenizer:
    """Return SentencePiece's BPE, which joins the neighbours that make the token of the highest
    score, and puts a space before a text if it is `spaced`."""
    known, score = set(ordinary), dict(zip(tokens, scores, strict=True))
    merges = [
        (token[:place], token[place:])
        for token in sorted(ordinary, key=lambda token: -score[token])
        for place in range(1, len(token))
        if token[:place] in known and token[place:] in known
    ]
    vocabulary = {token: number for number, token in enumerate(tokens)}
    tokenizer = Tokenizer(
        models.BPE(vocabulary, merges, unk_token=unknown, fuse_unk=True, byte_fallback=True)
    )
    spaces = normalizers.Replace(" ", "▁")
    prefix = [normalizers.Prepend("▁")] if spaced else []
    tokenizer.normalizer = normalizers.Sequence([*prefix, spaces])
    strip = [decoders.Strip(" ", 1, 0)] if spaced else []
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), *strip]
    )
    return tokenizer
