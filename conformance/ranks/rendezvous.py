"""Rendezvous of the pytest process with ranks that torchrun started, over torchrun's own store.

The agent of each rank listens on a port of its host and writes the address into the store; the pytest process reads it.
The ranks of a case form their groups over the same store, so every host has to reach it.
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

from conformance.base.errors import UsageError

#: How long the pytest process waits for the store, and then for the ranks, in seconds.
TIMEOUT = 60.0
#: Seconds between two attempts to connect.
_POLL = 0.1
_WORLD = "conformance/world"
#: Seconds without an answer after which the kernel reports that a host is gone.
_SILENCE = 8


@dataclass(frozen=True)
class AgentAddress:
    """Address of the agent of one torchrun rank, and the token that a client has to send first."""

    rank: int
    address: str
    port: int
    token: str
    node: int
    local_rank: int
    host: str


def from_torchrun(environment: Mapping[str, str]) -> tuple[str, int, dict[str, int]]:
    """Return the store's address and port, and the numbers of this rank. Raise UsageError outside of torchrun."""
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "GROUP_RANK", "MASTER_PORT")
    try:
        numbers = {name: int(environment[name]) for name in names}
        address = environment["MASTER_ADDR"]
    except (KeyError, ValueError):
        raise UsageError(
            "torchrun has to start python -m conformance.ranks, because torchrun numbers the ranks; RANK or another of "
            "its variables is missing. Start it so: torchrun --nproc-per-node 2 -m conformance.ranks"
        ) from None
    return address, numbers.pop("MASTER_PORT"), numbers


def open_store(address: str, port: int, *, serve: bool = False) -> Any:
    """Return a client of the store, or its server."""
    from torch._C._distributed_c10d import TCPStore

    return TCPStore(address, port, None, is_master=serve, wait_for_workers=False, timeout=timedelta(seconds=TIMEOUT))


def publish(store: Any, numbers: Mapping[str, int], listener: socket.socket) -> AgentAddress:
    """Write the address of this rank's agent into the store, and return it."""
    address, port = listener.getsockname()[:2]
    agent = AgentAddress(
        numbers["RANK"],
        address,
        port,
        secrets.token_hex(16),
        numbers["GROUP_RANK"],
        numbers["LOCAL_RANK"],
        socket.gethostname(),
    )
    store.set(_key(agent.rank), json.dumps(asdict(agent)))
    # After the address: where the world size is known, at least one agent is.
    store.set(_WORLD, str(numbers["WORLD_SIZE"]))
    return agent


def agents_at(endpoint: str) -> list[AgentAddress]:
    """Return the agents of all ranks of a torchrun. Raise UsageError that names the missing ranks."""
    host, port = parsed(endpoint)
    until = time.monotonic() + TIMEOUT
    store = _reach(host, port, until)
    while not store.check([_WORLD]):
        _wait(until, f"{endpoint} answers, but no rank has connected within {TIMEOUT:.0f} s. {_HOW}")
    world = int(store.get(_WORLD))
    while missing := [rank for rank in range(world) if not store.check([_key(rank)])]:
        names = ", ".join(map(str, missing))
        _wait(until, f"{world - len(missing)} of {world} ranks have connected to {endpoint} within {TIMEOUT:.0f} s; "
              f"missing: {names}. Read torchrun's output on their hosts.")  # fmt: skip
    return [AgentAddress(**json.loads(store.get(_key(rank)))) for rank in range(world)]


_HOW = "Start them on each host: torchrun --nnodes N --master-addr HOST --master-port PORT … -m conformance.ranks"


def parsed(endpoint: str) -> tuple[str, int]:
    """Return host and port of ``HOST:PORT``. Raise UsageError for any other text."""
    host, _, port = endpoint.rpartition(":")
    if not host or not port.isdigit() or not 0 < int(port) < 65536:
        raise UsageError(
            f"--ranks-from {endpoint}: expected HOST:PORT, the --master-addr and --master-port of torchrun."
        )
    return host.strip("[]"), int(port)


def _reach(host: str, port: int, until: float) -> Any:
    """Return a client of the store at that address. Raise UsageError if there is none in time."""
    where = f"--ranks-from {host}:{port}"
    # A plain socket first, because the store's own client reports nothing but a timeout.
    while why := _connection_error(host, port, until - time.monotonic()):
        _wait(until, f"{where}: no answer within {TIMEOUT:.0f} s ({why}). {_HOW}")
    try:
        return open_store(host, port)
    except RuntimeError as error:
        reason = str(error).splitlines()[0]
        raise UsageError(f"{where}: the program that answers is no store of torchrun: {reason}") from None


def _connection_error(host: str, port: int, seconds: float) -> str:
    """Return why no connection can be made, or an empty string if it can."""
    try:
        socket.create_connection((host, port), timeout=max(_POLL, seconds)).close()
    except socket.gaierror as error:
        raise UsageError(
            f"--ranks-from {host}:{port}: the host name {host} cannot be resolved: {error.strerror}."
        ) from None
    except OSError as error:
        return error.strerror or "no answer"
    return ""


def _wait(until: float, sentence: str) -> None:
    """Sleep a moment, or raise UsageError if the time is up."""
    if time.monotonic() > until:
        raise UsageError(sentence)
    time.sleep(_POLL)


def _key(rank: int) -> str:
    return f"conformance/agent/{rank}"


def enable_keepalive(connection: socket.socket) -> socket.socket:
    """Let a connection send at once, and end within seconds when the other host is gone. Return it."""
    connection.settimeout(None)
    # Messages are small, and each is waited for.
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (("TCP_KEEPIDLE", 2), ("TCP_KEEPINTVL", 1), ("TCP_KEEPCNT", _SILENCE - 2)):
        connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    # Keepalive works on idle connections only; this covers data that nobody acknowledges.
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 1000 * _SILENCE)
    return connection


def own_address(address: str, port: int) -> str:
    """Return the address that this host uses to reach another host."""
    family, kind, _, _, target = socket.getaddrinfo(address, port, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind) as probe:
        # A UDP socket sends nothing here: the kernel only chooses the route and with it the own address.
        probe.connect(target)
        return str(probe.getsockname()[0])


def interface_of(address: str) -> str | None:
    """Return the name of the network interface with that IPv4 address. gloo takes a name, not an address."""
    import fcntl
    import struct

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            with contextlib.suppress(OSError):  # the interface has no IPv4 address
                answer = fcntl.ioctl(probe, 0x8915, struct.pack("256s", name.encode()))  # SIOCGIFADDR
                if socket.inet_ntoa(answer[20:24]) == address:
                    return name
    return None


def uses_agent_store(environment: Mapping[str, str] = os.environ) -> bool:
    """Tell whether torchrun itself serves the store, and not its rank 0."""
    return environment.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
