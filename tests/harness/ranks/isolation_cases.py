"""Cases that see what earlier cases left on a rank, for test_isolation.py."""

import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist

from conformance.plan.case import case

SEEN = []


def note(name, text):
    with Path(os.environ["ISOLATION_NOTES"], name).open("a") as file:
        file.write(f"{text}\n")


@case("isolation.first", world_size=2)
def test_first(rank, group):
    """A case leaves a value in the module."""
    SEEN.append("first")
    note("first", os.getpid())


@case("isolation.reused", world_size=2)
def test_reused(rank, group):
    """A case on the same ranks fails because of the value that the first one left."""
    note("reused", os.getpid())
    assert SEEN == [], f"somebody was here: {SEEN}"


@case("isolation.forked", world_size=2, isolation="fork")
def test_forked(rank, group):
    """Forked ranks have not seen earlier cases."""
    note("forked", os.getpid())
    SEEN.append("forked")
    assert SEEN == ["forked"]
    dist.barrier()


@case("isolation.own", world_size=2, isolation="exec", environment={"TORCH_SHOW_CPP_STACKTRACES": "7"})
def test_own(rank, group):
    """A rank's own interpreter starts with the variable."""
    note("own", os.getpid())
    assert b"TORCH_SHOW_CPP_STACKTRACES=7" in Path("/proc/self/environ").read_bytes().split(b"\0")
    assert any(word.endswith("become_rank()") for word in Path("/proc/self/cmdline").read_text().split("\0"))
    assert not SEEN
    dist.barrier()


@case("isolation.after", world_size=2)
def test_after(rank, group):
    """The variable is not set any more."""
    assert "TORCH_SHOW_CPP_STACKTRACES" not in os.environ
    assert "torch" in sys.modules


def gathered(rank, groups):
    """Return a tensor whose parts two ranks have, as a whole. Their group has another name after other ``groups``."""
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor import Shard, distribute_tensor

    for _ in range(groups):
        dist.new_group([0, 1])
    mesh = DeviceMesh("cpu", [0, 1])  # all ranks make it
    return distribute_tensor(torch.arange(4.0), mesh, [Shard(0)]).detach().full_tensor().tolist() if rank < 2 else None


@case("isolation.mesh", world_size=3)
def test_mesh(rank, group):
    """A case leaves what DTensor has dispatched over a mesh."""
    note("mesh", os.getpid())
    assert gathered(rank, groups=2) in ([0, 1, 2, 3], None)


@case("isolation.mesh.again", world_size=3)
def test_mesh_again(rank, group):
    """An equal mesh of a later case has its own groups, on the same ranks."""
    note("again", os.getpid())
    assert gathered(rank, groups=0) in ([0, 1, 2, 3], None)


KEPT = []


@case("isolation.mesh.kept", world_size=3)
def test_mesh_kept(rank, group):
    """A case keeps a mesh of its groups where nothing can forget it."""
    from torch.distributed.device_mesh import DeviceMesh

    note("kept", os.getpid())
    KEPT.append(DeviceMesh("cpu", [0, 1, 2]))


@case("isolation.mesh.other", world_size=3)
def test_mesh_other(rank, group):
    """A case that follows gets other ranks."""
    note("other", os.getpid())
    assert not KEPT
