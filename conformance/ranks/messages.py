"""What crosses between the pool and a rank, as values."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from conformance.ranks.channel import Message


@dataclass(frozen=True)
class Hello:
    """The first message to a new rank: what stays the same for all its cases."""

    spec: str
    capabilities: str | None
    module_path: list[str]
    store_port: int
    seed: int
    store_host: str = "127.0.0.1"


@dataclass(frozen=True)
class Work:
    """One case for one rank. ``nonce`` names the round; an answer with another one is not an answer.

    ``values`` are the arguments that the pytest process has made, pickled and in base64. ``deadline`` is in seconds.
    ``device`` is the index of the rank's leased device; None where ranks share what there is. ``local`` are its number
    on its host and how many ranks of this round are there; None where all of them are on one host.
    """

    nonce: str
    case_id: str
    module: str
    file: str
    function: str
    rank: int
    world_size: int
    deadline: float
    values: str
    device: int | None = None
    local: tuple[int, int] | None = None


@dataclass(frozen=True)
class Join:
    """Make the group of the round ``nonce`` now. Its work follows; where it does not, the rank gets none at all."""

    nonce: str
    rank: int
    world_size: int
    deadline: float
    local: tuple[int, int] | None = None


@dataclass(frozen=True)
class End:
    """How a rank's body ended. ``seen`` is the name of a judgement.Seen; ``at`` is the machine's monotonic clock."""

    nonce: str
    seen: str
    message: str
    reason: str | None
    trace: str
    at: float
    count: int = 0
    metrics: dict[str, Any] = field(default_factory=dict)
    digests: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Done:
    """A rank has given everything back. ``retire`` says why it must not be used again, or nothing."""

    nonce: str
    leaked: list[str]
    retire: str = ""


@dataclass(frozen=True)
class Ready:
    """A new rank can take work."""

    pid: int


@dataclass(frozen=True)
class Unfit:
    """A new rank cannot take work: the accelerator does not load there."""

    sentence: str


@dataclass(frozen=True)
class Leave:
    """Give everything back. Until it is told to, a rank that has ended stays in the group for the others.

    ``then`` is a packed Join: the group of the next case, made as soon as this one is left.
    """

    nonce: str
    then: Message | None = None


Value = Hello | Work | Join | End | Done | Ready | Unfit | Leave
_KINDS = (Hello, Work, Join, End, Done, Ready, Unfit, Leave)
_BY_NAME: dict[str, type[Value]] = {kind.__name__: kind for kind in _KINDS}


def packed(value: Value) -> Message:
    # Their fields are plain data, which asdict would copy, at the price of a system call or two.
    return {"kind": type(value).__name__, **vars(value)}


def unpacked(message: Message) -> Value:
    fields = dict(message)
    return _BY_NAME[fields.pop("kind")](**fields)
