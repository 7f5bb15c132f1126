"""Requests that no client should send, drawn from a seed."""

from __future__ import annotations

import json
import random

from tests.fuzz import mutations

GOOD = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "Hi"}]},
    "/v1/completions": {"prompt": "Hi"},
}
NAMES = (
    *("messages", "prompt", "model", "n", "stream", "stream_options", "seed", "temperature"),
    *("top_p", "top_k", "min_p", "max_tokens", "max_completion_tokens", "stop", "logprobs"),
    *("top_logprobs", "logit_bias", "presence_penalty", "frequency_penalty", "response_format"),
    *("sampler", "profile", "set", "think", "branch", "prefix", "forced", "echo"),
    *("best_of", "suffix", "tools", "tool_choice", "functions", "repetition_penalty", "unknown"),
    "dry_multiplier",
)
VALUES = (
    *mutations.VALUES,
    *("reference", "/etc/passwd", "entropix", "greedy", [[[]]], [-1], [257], [10**12], ["a", 1]),
    *({}, {"": ""}, {"type": "json_object"}, {"type": "text"}, {"65": 1}, {"65": "x"}, {"-1": 1}),
    *({"999999": 5}, {"65": 1e300}, {"thresholds": {"low_entropy": "x"}}, {"width": 10**9}),
    *({"thresholds.low_entropy": 3}, {"branch": {"width": 64}}, {"think": {"text": "a" * 3000}}),
    *({"think": {"text": [[]]}}, {"extends": "/etc/passwd"}, {"include_usage": 3}, {"a.b.c.d": 1}),
    *([{}], [{"role": "user"}], [{"role": "x", "content": "y"}], [{"role": [], "content": {}}]),
    *([{"role": "user", "content": []}], [{"role": "user", "content": [{"type": "image_url"}]}]),
    *([{"role": "user", "content": [{"type": "text", "text": 5}]}], [["user", "x"]], "user: hi"),
)
RAW = (
    *(b"", b"{", b"[]", b"null", b"3", b'"x"', b"\xff\xfe", b"{'prompt': 1}", b'{"prompt": NaN}'),
    *(b'{"prompt": "a", "temperature": Infinity}', b'{"prompt": "\\ud800"}', b"[" * 10**5),
    *(b'{"prompt":' + b"[" * 5000 + b"]" * 5000 + b"}", b'{"seed": ' + b"9" * 6000 + b"}"),
    *(b'{"prompt": "a"} trailing', b"\xef\xbb\xbf{}", b"prompt=a&n=1", b'{"prompt": 1e999}'),
    *(b'{"prompt": "' + b"a" * 70000 + b'"}', b'{"a' * 3000, b'{"prompt": "\\u0000"}'),
)
HEADERS = (
    *({}, {"Content-Type": "text/plain"}, {"Content-Type": "multipart/form-data; boundary=x"}),
    *({"Authorization": "Bearer x"}, {"Accept": "nothing/at-all"}, {"Content-Encoding": "gzip"}),
    *({"Origin": "https://evil.example"}, {"X-Long": "a" * 5000}, {"Expect": "100-continue"}),
)


def malformed(seed: int) -> tuple[str, bytes, dict[str, str]]:
    """Return the path, body and headers of a request; a few of them are good by chance."""
    chance = random.Random(seed)
    path = chance.choice(list(GOOD))
    headers = dict(chance.choice(HEADERS)) if chance.random() < 0.3 else {}
    if chance.random() < 0.15:
        return path, chance.choice(RAW), headers
    fields = dict(GOOD[path]) | {"max_tokens": 2}
    for _ in range(chance.randint(1, 3)):
        fields[chance.choice(NAMES)] = chance.choice(VALUES)
    if fields.get("max_tokens") not in range(3):  # a good one must not take for ever
        fields["stop"] = fields.get("stop", [" "])
    body = json.dumps(fields).encode()
    if chance.random() < 0.1:
        at = chance.randrange(len(body))
        body = body[:at] + bytes([chance.randrange(256)]) + body[at + 1 :]
    return path, body, headers
