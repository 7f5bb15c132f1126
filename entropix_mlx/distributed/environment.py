"""Which rank this process is, as `mlx.launch` or MPI say it in the environment; without MLX.

Beside MLX's own connections the ranks need one over which rank 0 sends its orders, and
over which it shows at once that a rank is gone. It goes to rank 0, at the port below MLX's own.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import GroupError

ADDRESS = "ENTROPIX_HUB"
"""The variable that says ``host:port`` where the launcher does not, or another one is wanted."""
PATIENCE = "ENTROPIX_JOIN"
"""The variable that says for how many seconds the ranks wait for one another."""
JOIN_SECONDS = 30.0
"""That, where it is not set: whoever starts the ranks may have to log in to each machine."""
JOIN_HERE_SECONDS = 8.0
"""That, where all ranks are on one machine: they meet before they import what takes long."""
_MPI = (("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"), ("PMI_RANK", "PMI_SIZE"))
"""What Open MPI, and MPICH and its kin, call rank and size."""


@dataclass(frozen=True)
class RankEnvironment:
    """One rank among several."""

    rank: int
    size: int
    address: tuple[str, int]
    """Where rank 0 listens for the others."""
    hosts: tuple[str, ...] = ()
    """The addresses of the ranks, where they are known."""
    patience: float = JOIN_SECONDS
    """Seconds in which all ranks must have come."""

    def name(self, rank: int) -> str:
        return f"rank {rank} ({self.hosts[rank]})" if rank < len(self.hosts) else f"rank {rank}"

    def lost(self, rank: int) -> str:
        return f"{self.name(rank)} was lost, and all other ranks were ended: start them again"


def of_environment(environment: Mapping[str, str] = os.environ) -> RankEnvironment | None:
    """Return the place of this process; None where it was started alone.

    Raises:
        GroupError: the environment contradicts itself, or does not say where rank 0 listens.
    """
    for rank, size in _MPI:
        if rank in environment and size in environment:
            return _placed(environment, environment[rank], int(environment[size]), None, ())
    rank_given = environment.get("MLX_RANK")
    if rank_given is None:
        return None
    if environment.get("MLX_HOSTFILE"):
        nodes = _read(environment["MLX_HOSTFILE"])
        first = [str(node[0]).rpartition(":") for node in nodes]
        hosts = tuple(host for host, _, _ in first)
        ports = [int(port) for _, _, port in first]
        return _placed(
            environment, rank_given, len(nodes), (hosts[:1], min(ports, default=0)), hosts
        )
    if environment.get("MLX_IBV_DEVICES"):
        size_found = len(_read(environment["MLX_IBV_DEVICES"]))
        host, _, port = environment.get("MLX_JACCL_COORDINATOR", "").rpartition(":")
        return _placed(environment, rank_given, size_found, ((host,), int(port or 0)), ())
    if environment.get("MLX_WORLD_SIZE"):
        at = (environment.get("NCCL_HOST_IP", ""),), int(environment.get("NCCL_PORT", 0))
        return _placed(environment, rank_given, int(environment["MLX_WORLD_SIZE"]), at, ())
    return None


def _placed(
    environment: Mapping[str, str],
    rank: str,
    size: int,
    known: tuple[tuple[str, ...], int] | None,
    hosts: tuple[str, ...],
) -> RankEnvironment | None:
    """Return a place among more than one; `known` is rank 0's host and MLX's lowest port."""
    if size < 2:
        return None
    if not rank.isdecimal() or int(rank) >= size:
        raise GroupError(f"this is rank {rank} of {size}: start all ranks with mlx.launch")
    here = len(set(hosts)) == 1
    given = environment.get(PATIENCE, str(JOIN_HERE_SECONDS if here else JOIN_SECONDS))
    if not re.fullmatch(r"\d+(\.\d+)?", given):
        raise GroupError(f"{PATIENCE} is {given!r}, and must be a number of seconds")
    host, _, port = environment.get(ADDRESS, "").rpartition(":")
    if port.isdecimal():
        return RankEnvironment(int(rank), size, (host, int(port)), hosts, float(given))
    if known is None or not known[0] or known[1] < 2:
        raise GroupError(
            f"the ranks do not know where rank 0 listens: set {ADDRESS}=HOST:PORT for all of them"
        )
    return RankEnvironment(int(rank), size, (known[0][0], known[1] - 1), hosts, float(given))


def _read(name: str) -> list[Any]:
    try:
        content = Path(name).read_text(encoding="utf-8").strip()
        nodes = json.loads(content) if content else []
        if not isinstance(nodes, list) or not all(isinstance(node, list) for node in nodes):
            raise ValueError("it holds no list of ranks")
    except (OSError, ValueError) as error:
        raise GroupError(f"{name}: cannot be read as a list of ranks: {error}") from error
    return nodes
