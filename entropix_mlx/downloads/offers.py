"""Models to begin with, for whoever has none."""

from __future__ import annotations

from dataclasses import dataclass

DEMO_NAME = "demo"
DOWNLOAD_DEMO = f"entropix models --download {DEMO_NAME}"


@dataclass(frozen=True)
class ModelOffer:
    """A model that can be downloaded."""

    name: str
    """A hub id, or `DEMO_NAME`."""
    nbytes: int
    """What is downloaded, approximately."""
    memory: int
    """Bytes of memory that a machine should have for it, beside everything else that runs."""
    purpose: str


_HUB = "mlx-community"
OFFERS = tuple(
    ModelOffer(name, int(nbytes * 1e9), int(memory * 1e9), purpose)
    for name, nbytes, memory, purpose in (
        (DEMO_NAME, 0.093, 0, "to try everything; often wrong"),
        (f"{_HUB}/Llama-3.2-1B-Instruct-4bit", 0.7, 4, "simple questions, short texts; fast"),
        (f"{_HUB}/Llama-3.2-3B-Instruct-4bit", 1.8, 7, "everyday questions and summaries"),
        (f"{_HUB}/Meta-Llama-3.1-8B-Instruct-4bit", 4.5, 15, "the best answers; slow on a CPU"),
    )
)


def fitting_offers(memory: int) -> list[ModelOffer]:
    """Return what a machine with so many bytes of memory can run, the smallest first."""
    return [offer for offer in OFFERS if offer.memory <= memory]
