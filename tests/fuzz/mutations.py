"""Ways to damage a file or an argument, each drawn from a seeded generator."""

from __future__ import annotations

import copy
import json
import math
from random import Random
from typing import Any


def _nested(depth: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(depth):
        value = [value]
    return value


VALUES: list[Any] = [
    None, True, False, 0, 1, -1, 2, 3, 7, 255, 2**31, -(2**31) - 1, 2**53 + 1, 2**63, 2**64,
    10**38, 10**400, 0.0, -0.0, 0.5, -0.5, 1e-9, 1e30, 1e39, -1e39, math.inf, -math.inf, math.nan,
    "", "x", "0", "1e5", "inf", "auto", "\x00", "\x1b[31m", "\x9b31m", "\ud800", "é日😀", "../x",
    "/", "x" * 5000, [], [[]], [0], [None], ["x"], [1, 2, 3], {}, {"a": 1}, {"": {}},
    {"type": "yarn"}, _nested(40), _nested(300),
]  # fmt: skip
"""What may stand in any field of a JSON file, right or wrong."""

ARGUMENTS = [
    "", " ", "-", "--", "0", "1", "-1", "2", "64", "65", "1000", "-5", "1.5", "1e5", "1e999",
    "-1e999", "nan", "inf", "99999999999999999999", "9" * 5000, "²", "١", "0x10", "1_000", "true",
    "no", "auto", "x", "x" * 5000, "é", "\udce9", "\x1b[31m", "/", ".", "..", "/dev/zero",
    "/dev/full", "/dev/null", "~", "~nobody-at-all", "/absent/file", "[", "{", "a.b=c",
    "thresholds.low_entropy=1e999", "thresholds.low_entropy=nan",
    "base.top_k=99999999999999999999", "think.text=[]", "branch.width=0", "think.text='  '",
    "think.text=-1", "think.text=10000000", "base.temperature=0", "targets.think=2",
    "a=" + "[" * 3000, "base={}", "name=1", "reference", "greedy", "temperature", "top_p",
    "min_p", "top_n_sigma", "p_less", "xtc", "entropix", "last", "all",
]  # fmt: skip
"""What may be given to any option."""


def damaged_json(content: Any, random: Random) -> str:
    """Return JSON in which one to three values, keys or elements were changed."""
    content = copy.deepcopy(content)
    for _ in range(random.choice((1, 1, 1, 2, 3))):
        places = list(_places(content))
        if not places:
            break
        holder, key = random.choice(places)
        kind = random.random()
        if kind < 0.7:
            holder[key] = copy.deepcopy(random.choice(VALUES))
        elif kind < 0.8:
            del holder[key]
        elif kind < 0.9 and isinstance(holder, dict):
            holder[random.choice(("", "x", "type", "rope_type", "\ud800"))] = holder.pop(key)
        else:
            other, other_key = random.choice(places)
            holder[key] = copy.deepcopy(other.get(other_key) if isinstance(other, dict) else None)
    return json.dumps(content)


def _places(value: Any) -> Any:
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for key, item in list(items)[:200]:
        yield value, key
        if isinstance(item, (dict, list)):
            yield from _places(item)


def damaged_bytes(content: bytes, random: Random) -> bytes:
    """Return bytes of which some were changed, cut out, doubled or added."""
    data = bytearray(content)
    for _ in range(random.choice((1, 1, 2, 4, 16))):
        place = random.randrange(len(data) + 1)
        kind = random.random()
        if kind < 0.4 and place < len(data):
            data[place] ^= 1 << random.randrange(8)
        elif kind < 0.6 and place < len(data):
            data[place] = random.choice((0, 1, 0x7F, 0x80, 0xFF))
        elif kind < 0.7:
            del data[place : place + random.choice((1, 4, 100))]
        elif kind < 0.8:
            data[place:place] = data[place : place + random.choice((1, 8, 100))]
        elif kind < 0.9:
            data[place:place] = random.choice((b"[" * 3000, b'"', b"\xff", b"\n", b"1e999", b"{"))
        else:
            del data[place:]
    return bytes(data)
