"""What a token costs on several machines: bytes, latencies, and the speed to expect.

The model of docs/distributed.md, to be read and argued with:

    seconds a token = weights / n / memory bandwidth     each rank reads its share of the weights
                    + collectives · latency              each waits for the slowest of the ranks
                    + bytes sent / network bandwidth

Computation hides nothing of the network's time and the network nothing of it, since every sum is
waited for. Run it for the tables of the documentation:

    python benchmarks/distributed_cost.py
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil


@dataclass(frozen=True)
class Shape:
    """The dimensions of a model that the cost depends on."""

    name: str
    layers: int
    hidden: int
    heads: int
    key_heads: int
    head_dim: int
    vocabulary: int
    weights: float
    """Bytes that a token reads: all weights but the embedding."""
    number: int = 2
    """Bytes of a number that is computed with: bfloat16."""


@dataclass(frozen=True)
class Link:
    """A network between two machines."""

    name: str
    bandwidth: float
    """Bytes a second, in one direction."""
    latency: float
    """Seconds of one collective of a few kilobytes between two ranks."""


def sent(shape: Shape, ranks: int, keys: int, measured_layers: int = 1) -> float:
    """Return the bytes that a rank of a ring sends for one token of one text.

    Sums: two a layer, and the embedding's, of `hidden` numbers each; the token's id is one more.
    Each costs 2 · (n − 1) / n of its bytes. Gathers: a rank's logits, and the scores of its heads,
    each passed on n − 1 times.
    """
    summed = (2 * shape.layers + 1) * shape.hidden * shape.number + 4
    gathered = ceil(shape.vocabulary / ranks) * shape.number
    gathered += measured_layers * shape.heads // ranks * keys * shape.number
    return 2 * (ranks - 1) / ranks * summed + (ranks - 1) * gathered


def collectives(shape: Shape) -> int:
    """Return how many collectives a token waits for: the sums, the token's id, two gathers."""
    return 2 * shape.layers + 1 + 1 + 2


def seconds(shape: Shape, ranks: int, memory: float, link: Link, keys: int) -> float:
    cache = 2 * shape.layers * shape.key_heads * shape.head_dim * keys * shape.number
    read = (shape.weights + cache) / ranks / memory
    if ranks == 1:
        return read
    # Each of n − 1 hops round the ring waits for the one before.
    waiting = collectives(shape) * link.latency * (ranks - 1)
    return read + waiting + sent(shape, ranks, keys) / link.bandwidth


LLAMA_8B = Shape("8B, 4 bits", 32, 4096, 32, 8, 128, 128256, 4.5 / 8 * 7.5e9)
LLAMA_8B_FULL = Shape("8B, bfloat16", 32, 4096, 32, 8, 128, 128256, 2 * 7.5e9)
LLAMA_70B = Shape("70B, 4 bits", 80, 8192, 64, 8, 128, 128256, 4.5 / 8 * 69.5e9)
SHAPES = (LLAMA_8B, LLAMA_8B_FULL, LLAMA_70B)
"""Llama 3: of 4 bits in groups of 64, a weight takes 4.5."""
LINKS = (
    Link("Thunderbolt 5, RDMA (JACCL)", 8e9, 15e-6),
    Link("Thunderbolt 5, TCP (ring)", 5e9, 80e-6),
    Link("10 GbE, TCP (ring)", 1.17e9, 100e-6),
)
"""Bandwidths are 80 % to 94 % of what the cable says. Latencies are assumptions: none of this was
measured between two Macs."""
MEMORY = 400e9
"""Bytes a second: an M-series Max reads 400 to 546 GB/s."""


def main() -> None:
    keys = 2000
    print("| model | link | ranks | kB sent | network, ms | tokens/s | against one |")
    print("|---|---|---|---|---|---|---|")
    for shape in SHAPES:
        alone = seconds(shape, 1, MEMORY, LINKS[0], keys)
        print(f"| {shape.name} | – | 1 | 0 | 0 | {1 / alone:.1f} | 1 |")
        for link in LINKS:
            for ranks in (2, 4):
                took = seconds(shape, ranks, MEMORY, link, keys)
                kilobytes = sent(shape, ranks, keys) / 1e3
                network = 1e3 * (took - alone / ranks)
                print(
                    f"| {shape.name} | {link.name} | {ranks} | {kilobytes:.0f} | {network:.1f} |"
                    f" {1 / took:.1f} | {alone / took:.2f} |"
                )


if __name__ == "__main__":
    main()
