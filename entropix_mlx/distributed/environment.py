"""Which rank this process is, as `mlx.launch` or MPI say it in the environment; without MLX.

Beside MLX's own connections the ranks need one over which rank 0 sends its orders, and
over which it shows at once that a rank is gone. It goes to rank 0, at the port below MLX's own.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .. import limits
from ..errors import GroupError, brief
from ..records import parse_json

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
            return _placed(environment, rank, _whole(environment, size, limits.RANKS))
    if "MLX_RANK" not in environment:
        return None
    if environment.get("MLX_HOSTFILE"):
        nodes = [str(node[0]) for node in _nodes(environment["MLX_HOSTFILE"])]
        first = [_split("MLX_HOSTFILE", node) for node in nodes]
        hosts = tuple(host for host, _ in first)
        mlx = (hosts[0], min(port for _, port in first)) if first else None
        return _placed(environment, "MLX_RANK", len(hosts), mlx, hosts)
    if environment.get("MLX_IBV_DEVICES"):
        size_found = len(_nodes(environment["MLX_IBV_DEVICES"]))
        mlx = _address(environment, "MLX_JACCL_COORDINATOR")
        return _placed(environment, "MLX_RANK", size_found, mlx)
    if environment.get("MLX_WORLD_SIZE"):
        mlx = None
        if environment.get("NCCL_HOST_IP") and "NCCL_PORT" in environment:
            mlx = environment["NCCL_HOST_IP"], _whole(environment, "NCCL_PORT", limits.PORT)
        size_found = _whole(environment, "MLX_WORLD_SIZE", limits.RANKS)
        return _placed(environment, "MLX_RANK", size_found, mlx)
    return None


Address = tuple[str, int]


def _placed(
    environment: Mapping[str, str],
    rank: str,
    size: int,
    mlx: Address | None = None,
    hosts: tuple[str, ...] = (),
) -> RankEnvironment | None:
    """Return a place among more than one; `mlx` is rank 0's host with MLX's lowest port."""
    if size < 2:
        return None
    own = _whole(environment, rank, size - 1)
    here = len(set(hosts)) == 1
    patience = JOIN_HERE_SECONDS if here else JOIN_SECONDS
    if given := environment.get(PATIENCE):
        if not re.fullmatch(r"[0-9]{1,9}(\.[0-9]{1,9})?", given):
            raise GroupError(f"{PATIENCE} is {brief(given)}, and must be a number of seconds")
        patience = float(given)
    ours = _address(environment, ADDRESS) or (mlx and (mlx[0], mlx[1] - 1))
    if not ours or ours[1] < 1:
        raise GroupError(
            f"the ranks do not know where rank 0 listens: set {ADDRESS}=HOST:PORT for all of them"
        )
    return RankEnvironment(own, size, ours, hosts, patience)


def _address(environment: Mapping[str, str], name: str) -> Address | None:
    """Return the host and the port of a variable; None where it is not set."""
    return _split(name, environment[name]) if environment.get(name) else None


def _split(name: str, text: str) -> Address:
    host, _, port = text.rpartition(":")
    return host, _whole({name: port}, name, limits.PORT)


def _whole(environment: Mapping[str, str], name: str, most: int) -> int:
    """Return the whole number that a variable states, or its port.

    Raises:
        GroupError: it is something else, or larger.
    """
    number = limits.whole(environment[name], 0, most)
    if number is None:
        raise GroupError(
            f"{name} states {brief(environment[name])} and not a whole number up to {most}: start"
            " all ranks with mlx.launch"
        )
    return number


def _nodes(name: str) -> list[list[Any]]:
    """Return the nodes of a file of `mlx.launch`, a list for each rank; MLX takes an empty file."""
    text = limits.read_named(name, limits.CONFIGURATION_BYTES, GroupError).strip()
    nodes = parse_json(text, name, GroupError) if text else []
    if not isinstance(nodes, list) or not all(isinstance(node, list) and node for node in nodes):
        raise GroupError(f"{name}: it holds no list of ranks: start all ranks with mlx.launch")
    return nodes
