"""Building a tokenizer from a GGUF file's metadata: byte-level BPE, as Llama 3 and SmolLM have."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mlx_lm.tokenizer_utils import BPEStreamingDetokenizer, TokenizerWrapper
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

_UNKNOWN, CONTROL, _USER_DEFINED = 2, 3, 4
"""Token types of the GGUF format; the others are ordinary tokens."""

_LLAMA3_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|%s"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def gguf_tokenizer(path: Path, metadata: dict[str, Any]) -> TokenizerWrapper:
    """Return the tokenizer with its chat template and end-of-text tokens.

    Raises:
        TokenizerError: the tokenizer is missing, or not byte-level BPE with a known splitting rule.
    """
    try:
        kind = metadata["tokenizer.ggml.model"]
        tokens = metadata["tokenizer.ggml.tokens"]
        merges = metadata.get("tokenizer.ggml.merges", [])
    except KeyError as error:
        raise TokenizerError(
            f"{path}: no tokenizer inside (the key {error} is missing); use another file"
        ) from error
    splitting = metadata.get("tokenizer.ggml.pre", "default")
    if kind != "gpt2" or splitting not in list(_PRE_TOKENIZERS):
        raise TokenizerError(
            f"{path}: its tokenizer ({kind}, {splitting}) cannot be rebuilt from GGUF; use the"
            " model's Hugging Face folder, which has a tokenizer.json"
        )
    if not isinstance(tokens, list):
        raise TokenizerError(f"{path}: its tokens are no list; download the file again")
    try:
        return _wrap(path, _build(tokens, merges, splitting, metadata), tokens, metadata)
    except TokenizerError:
        raise
    except Exception as error:  # the tokenizers library raises bare ones
        reason = next(iter(str(error).splitlines()), repr(error))
        raise TokenizerError(f"{path}: its tokenizer cannot be built: {reason}") from error


def _build(
    tokens: list[str], merges: list[Any], splitting: str, metadata: dict[str, Any]
) -> Tokenizer:
    vocabulary = {token: number for number, token in enumerate(tokens)}
    ignore_merges = splitting == "llama-bpe"
    pairs = [tuple(merge.split(" ")) for merge in merges]
    tokenizer = Tokenizer(models.BPE(vocabulary, pairs, ignore_merges=ignore_merges))
    if splitting == "qwen2":
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = _PRE_TOKENIZERS[splitting]()
    tokenizer.decoder = decoders.ByteLevel()
    types = metadata.get("tokenizer.ggml.token_type", [])
    named = list(zip(tokens, types, strict=False))
    control = [token for token, type_ in named if type_ in (_UNKNOWN, CONTROL)]
    tokenizer.add_special_tokens([AddedToken(t, normalized=False, special=True) for t in control])
    defined = [token for token, type_ in named if type_ == _USER_DEFINED]
    tokenizer.add_tokens([AddedToken(t, normalized=False) for t in defined])
    return tokenizer


def _wrap(
    path: Path, tokenizer: Tokenizer, tokens: list[str], metadata: dict[str, Any]
) -> TokenizerWrapper:
    def special(role: str) -> str | None:
        number = metadata.get(f"tokenizer.ggml.{role}_token_id")
        if number is None:
            return None
        if type(number) is not int or not 0 <= number < len(tokens):
            raise TokenizerError(f"{path}: the {role} token {number} is outside the vocabulary")
        return tokens[number]

    bos, eos, eot = special("bos"), special("eos"), special("eot")
    # Llama 3's files usually leave it out; llama.cpp then tells by the splitting rule, too.
    by_rule = metadata.get("tokenizer.ggml.pre") == "llama-bpe"
    if metadata.get("tokenizer.ggml.add_bos_token", by_rule) and bos is not None:
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{bos} $A", special_tokens=[(bos, tokens.index(bos))]
        )
    template = metadata.get("tokenizer.chat_template")
    if not isinstance(template, str | None):
        raise TokenizerError(f"{path}: its chat template is no text; download the file again")
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=bos,
        eos_token=eos,
        pad_token=special("padding"),
        unk_token=special("unknown"),
        chat_template=template,
        clean_up_tokenization_spaces=False,
    )
    ends = [tokens.index(eot)] if eot is not None else []
    return TokenizerWrapper(fast, BPEStreamingDetokenizer, eos_token_ids=ends)


def _smollm() -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), _gpt2()])


def _gpt2() -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.ByteLevel(add_prefix_space=False)


def _llama3(digits: str = r"\p{N}{1,3}") -> pre_tokenizers.PreTokenizer:
    split = pre_tokenizers.Split(Regex(_LLAMA3_SPLIT % digits), behavior="isolated")
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    return pre_tokenizers.Sequence([split, byte_level])


def _qwen2() -> pre_tokenizers.PreTokenizer:
    return _llama3(digits=r"\p{N}")


_PRE_TOKENIZERS = {
    "default": _gpt2,
    "gpt-2": _gpt2,
    "smollm": _smollm,
    "llama-bpe": _llama3,
    "qwen2": _qwen2,
}
"""How each kind that GGUF names splits a text before byte pairs are merged."""
