"""The page at /: one file, without anything from a network."""

from __future__ import annotations

import functools
import json
from importlib import resources

from ..palette import LOOKS

HEADERS = {
    "content-security-policy": "default-src 'none'; style-src 'unsafe-inline';"
    " script-src 'unsafe-inline'; connect-src 'self'; base-uri 'none'; form-action 'none';"
    " frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-cache",
}
"""The page may talk to its own server and to nobody else."""


@functools.cache
def content() -> str:
    """Return the page."""
    text = (resources.files(__package__) / "page.html").read_text(encoding="utf-8")
    looks = {name: (look.glyph, f"rgb{look.rgb}") for name, look in LOOKS.items()}
    return text.replace("$looks", json.dumps(looks))
