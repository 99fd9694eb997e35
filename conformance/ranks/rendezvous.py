"""Where ranks that torchrun started and the pytest process find each other: torchrun's own store.

Each rank's process listens on a port of its host, and writes where into the store; the pytest process reads that. The
store is also the one over which the ranks of a case form their groups, so it has to be reachable from every host.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import socket
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import Any

from conformance.errors import UsageError

#: How long the pytest process waits for the store, and then for the ranks, in seconds.
PATIENCE = 60.0
_POLL = 0.1
_WORLD = "conformance/world"
#: A host that is gone says nothing: how long until the kernel tells, in seconds.
_SILENCE = 8


@dataclass(frozen=True)
class Slot:
    """One rank of torchrun: where its process listens, and what it has to be told first."""

    rank: int
    address: str
    port: int
    token: str
    node: int
    local_rank: int
    host: str


def from_torchrun(environment: Mapping[str, str]) -> tuple[str, int, dict[str, int]]:
    """The store's address and port, and who this process is. Raises UsageError where torchrun has not started it."""
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "GROUP_RANK", "MASTER_PORT")
    try:
        numbers = {name: int(environment[name]) for name in names}
        address = environment["MASTER_ADDR"]
    except (KeyError, ValueError):
        raise UsageError(
            "python -m conformance.ranks is started by torchrun, which says who each rank is; RANK or another variable "
            "of it is missing. Start it so: torchrun --nproc-per-node 2 -m conformance.ranks"
        ) from None
    return address, numbers.pop("MASTER_PORT"), numbers


def open_store(address: str, port: int, *, serve: bool = False) -> Any:
    from torch._C._distributed_c10d import TCPStore

    return TCPStore(address, port, None, is_master=serve, wait_for_workers=False, timeout=timedelta(seconds=PATIENCE))


def publish(store: Any, numbers: Mapping[str, int], listener: socket.socket) -> Slot:
    """Say where this rank listens."""
    address, port = listener.getsockname()[:2]
    slot = Slot(
        numbers["RANK"],
        address,
        port,
        secrets.token_hex(16),
        numbers["GROUP_RANK"],
        numbers["LOCAL_RANK"],
        socket.gethostname(),
    )
    store.set(_key(slot.rank), json.dumps(asdict(slot)))
    store.set(_WORLD, str(numbers["WORLD_SIZE"]))
    return slot


def slots_at(endpoint: str) -> list[Slot]:
    """All ranks of the torchrun whose store is there. Raises UsageError with who is missing."""
    host, port = parsed(endpoint)
    until = time.monotonic() + PATIENCE
    store = _reach(host, port, until)
    while not store.check([_WORLD]):
        _wait(until, f"{endpoint} answers, but no rank has come within {PATIENCE:.0f} s. {_HOW}")
    world = int(store.get(_WORLD))
    while missing := [rank for rank in range(world) if not store.check([_key(rank)])]:
        who = ", ".join(map(str, missing))
        _wait(until, f"{world - len(missing)} of {world} ranks have come to {endpoint} within {PATIENCE:.0f} s; "
              f"missing: {who}. Look at what torchrun says on their hosts.")  # fmt: skip
    return [Slot(**json.loads(store.get(_key(rank)))) for rank in range(world)]


_HOW = "Start them on each host: torchrun --nnodes N --master-addr HOST --master-port PORT … -m conformance.ranks"


def parsed(endpoint: str) -> tuple[str, int]:
    """``HOST:PORT``, as two."""
    host, _, port = endpoint.rpartition(":")
    if not host or not port.isdigit() or not 0 < int(port) < 65536:
        raise UsageError(f"--ranks-from {endpoint}: HOST:PORT is wanted, torchrun's --master-addr and --master-port.")
    return host.strip("[]"), int(port)


def _reach(host: str, port: int, until: float) -> Any:
    where = f"--ranks-from {host}:{port}"
    # Asked first with a plain socket, because the store's own client only says that its time was up.
    while why := _silent(host, port, until - time.monotonic()):
        _wait(until, f"{where}: nobody answers within {PATIENCE:.0f} s ({why}). {_HOW}")
    try:
        return open_store(host, port)
    except RuntimeError as error:
        said = str(error).splitlines()[0]
        raise UsageError(f"{where}: what answers is no store of torchrun: {said}") from None


def _silent(host: str, port: int, seconds: float) -> str:
    """Why nobody answers there; nothing if somebody does."""
    try:
        socket.create_connection((host, port), timeout=max(_POLL, seconds)).close()
    except socket.gaierror as error:
        raise UsageError(f"--ranks-from {host}:{port}: no host is known as {host}: {error.strerror}.") from None
    except OSError as error:
        return error.strerror or "no answer"
    return ""


def _wait(until: float, sentence: str) -> None:
    if time.monotonic() > until:
        raise UsageError(sentence)
    time.sleep(_POLL)


def _key(rank: int) -> str:
    return f"conformance/slot/{rank}"


def lively(connection: socket.socket) -> socket.socket:
    """No waiting for a fuller packet, and an end within seconds when the other host is gone."""
    connection.settimeout(None)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (("TCP_KEEPIDLE", 2), ("TCP_KEEPINTVL", 1), ("TCP_KEEPCNT", _SILENCE - 2)):
        connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 1000 * _SILENCE)
    return connection


def own_address(address: str, port: int) -> str:
    """The address that this host has on its way to another one."""
    family, kind, _, _, target = socket.getaddrinfo(address, port, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind) as probe:
        probe.connect(target)
        return str(probe.getsockname()[0])


def interface_of(address: str) -> str | None:
    """The name of the network interface with that IPv4 address, as gloo wants to be told."""
    import fcntl
    import struct

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            with contextlib.suppress(OSError):  # it has no such address
                answer = fcntl.ioctl(probe, 0x8915, struct.pack("256s", name.encode()))  # SIOCGIFADDR
                if socket.inet_ntoa(answer[20:24]) == address:
                    return name
    return None


def uses_agent_store(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether torchrun itself serves the store, and not its rank 0."""
    return environment.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
