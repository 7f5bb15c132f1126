"""Models to begin with, for whoever has none."""

from __future__ import annotations

from dataclasses import dataclass

from .demo_model import DEMO

DEMO_NAME = "demo"
DOWNLOAD_DEMO = f"entropix models --download {DEMO_NAME}"
_GB = 10**9


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


OFFERS = (
    ModelOffer(DEMO_NAME, DEMO.nbytes, 0, "to try everything; often wrong"),
    ModelOffer(
        "mlx-community/Llama-3.2-1B-Instruct-4bit",
        7 * _GB // 10,
        4 * _GB,
        "simple questions, short texts; fast",
    ),
    ModelOffer(
        "mlx-community/Llama-3.2-3B-Instruct-4bit",
        18 * _GB // 10,
        7 * _GB,
        "everyday questions and summaries",
    ),
    ModelOffer(
        "mlx-community/Meta-Llama-3.1-8B-Instruct-4bit",
        45 * _GB // 10,
        15 * _GB,
        "the best answers; slow on a CPU",
    ),
)


def fitting_offers(memory: int) -> list[ModelOffer]:
    """Return what a machine with so many bytes of memory can run, the smallest first."""
    return [offer for offer in OFFERS if offer.memory <= memory]
