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
            return _placed(environment, rank, _size(environment, size), [], ())
    if "MLX_RANK" not in environment:
        return None
    if environment.get("MLX_HOSTFILE"):
        name = environment["MLX_HOSTFILE"]
        first = [_address(f"{name}, rank {i}", node[0]) for i, node in enumerate(_nodes(name))]
        hosts = tuple(host for host, _ in first)
        lowest = min((port for _, port in first), default=0)
        return _placed(
            environment, "MLX_RANK", len(hosts), [(host, lowest) for host in hosts[:1]], hosts
        )
    if environment.get("MLX_IBV_DEVICES"):
        size_found = len(_nodes(environment["MLX_IBV_DEVICES"]))
        return _placed(
            environment, "MLX_RANK", size_found, _stated(environment, "MLX_JACCL_COORDINATOR"), ()
        )
    if environment.get("MLX_WORLD_SIZE"):
        at = []
        if environment.get("NCCL_HOST_IP") and "NCCL_PORT" in environment:
            port = _whole("NCCL_PORT", environment["NCCL_PORT"], 1, limits.PORT)
            at = [(environment["NCCL_HOST_IP"], port)]
        return _placed(environment, "MLX_RANK", _size(environment, "MLX_WORLD_SIZE"), at, ())
    return None


Addresses = list[tuple[str, int]]
"""One, or none where it is not stated."""


def _placed(
    environment: Mapping[str, str], rank: str, size: int, mlx: Addresses, hosts: tuple[str, ...]
) -> RankEnvironment | None:
    """Return a place among more than one; `mlx` is rank 0's host with MLX's lowest port."""
    if size < 2:
        return None
    own = _whole(rank, environment[rank], 0, size - 1)
    here = len(set(hosts)) == 1
    patience = JOIN_HERE_SECONDS if here else JOIN_SECONDS
    if given := environment.get(PATIENCE):
        if not re.fullmatch(r"[0-9]{1,9}(\.[0-9]{1,9})?", given):
            raise GroupError(f"{PATIENCE} is {brief(given)}, and must be a number of seconds")
        patience = float(given)
    ours = _stated(environment, ADDRESS) or [(host, port - 1) for host, port in mlx if port > 1]
    if not ours:
        raise GroupError(
            f"the ranks do not know where rank 0 listens: set {ADDRESS}=HOST:PORT for all of them"
        )
    return RankEnvironment(own, size, ours[0], hosts, patience)


def _size(environment: Mapping[str, str], name: str) -> int:
    return _whole(name, environment[name], 0, limits.RANKS)


def _stated(environment: Mapping[str, str], name: str) -> Addresses:
    return [_address(name, environment[name])] if environment.get(name) else []


def _address(where: str, text: object) -> tuple[str, int]:
    host, _, port = str(text).rpartition(":")
    return host, _whole(f"the port of {where}", port, 1, limits.PORT)


def _whole(name: str, text: str, least: int, most: int) -> int:
    """Return a whole number of decimal digits.

    Raises:
        GroupError: it is something else; the message begins with `name`.
    """
    number = limits.whole(text, least, most)
    if number is None:
        raise GroupError(
            f"{name} is {brief(text)}, and must be a whole number from {least} to {most}: start all"
            " ranks with mlx.launch"
        )
    return number


def _nodes(name: str) -> list[list[Any]]:
    """Return the nodes of a file of `mlx.launch`, a list for each rank; MLX takes an empty file."""
    text = limits.read_named(name, limits.CONFIGURATION_BYTES, GroupError).strip()
    nodes = parse_json(text, name, GroupError) if text else []
    if not isinstance(nodes, list) or not all(isinstance(node, list) and node for node in nodes):
        raise GroupError(f"{name}: it holds no list of ranks: start all ranks with mlx.launch")
    return nodes
