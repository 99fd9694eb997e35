"""Cases of exact workloads on ranks: every parallel engine gives the bits of one process, without a tolerance."""

from __future__ import annotations

from conformance.accelerators.capabilities import CHECKPOINT, COMM_ALL_TO_ALL, COMM_DTYPE, COMM_P2P
from conformance.plan.case import cases

from .exact import context, ranks
from .parallel.layouts import LAYOUTS, ranks_of
from .parallel.planned import planned

RANK_IMPORTS = ranks.RANK_IMPORTS
#: Layouts of the decoder that one case trains one after the other, by the number of ranks.
LAID = {
    "sharded": {2: ("fsdp2",), 4: ("fsdp2", "hsdp", "fsdp2-tp")},
    "tensor": {2: ("tp", "sp"), 4: ("tp", "sp")},
    "pipelined": {
        2: ("gpipe", "1f1b", "interleaved-1f1b", "looped-bfs", "interleaved-zero-bubble", "zbv-zero-bubble",
            "dual-pipe-v"),
        4: ("gpipe", "1f1b", "1f1b-fsdp2"),
    },
}  # fmt: skip
#: What each way to share keys and values needs.
CONTEXT = {"ring": (COMM_P2P,), "gather": ()}
#: Engines that take every family.
ENGINES = {"replicated": "ddp", "sharded": "fsdp2"}
#: Layouts that save and load in one case, by the number of ranks.
RESUMED = {
    2: (("fsdp2", "tp"), ("tp", "ddp"), ("ddp", "fsdp2"), ("1f1b", "interleaved-1f1b"), ("sp", "gpipe")),
    4: (("hsdp", "fsdp2-tp"), ("1f1b-fsdp2", "tp")),
}
#: Layouts with their ranks that save and load in one case on four ranks.
ELSEWHERE = (
    ("fsdp2@4", "fsdp2@2"), ("tp@4", "ddp@2"), ("fsdp2@2", "fsdp2-tp@4"), ("1f1b@2", "fsdp2@4"), ("hsdp@4", "one@1"),
)  # fmt: skip


def _case(what, size, layouts, *needs):
    own = [need for name in layouts for need in LAYOUTS[name].needs]
    return planned(f"exact.{what}", (("world", str(size)),), (*ranks.NEEDS, *own, *needs), size)


def engine_cases():
    """Return a case for each engine and number of ranks, such as ``workloads.exact.replicated[2]``."""
    return [_case(what, size, [engine]) for what, engine in ENGINES.items() for size in (2, 4)]


@cases(engine_cases)
def test_engine(check, device, case, world_size, group):
    """Exact models of every family under an engine have the bits of one process, on every rank and after every step."""
    ranks.check_families(check, ENGINES[case.subject.rpartition(".")[2]], device)


def layout_cases():
    """Return a case for each kind of layouts and number of ranks, such as ``workloads.exact.decoder_tensor[4]``."""
    return [_case(f"decoder_{kind}", size, names) for kind, by in LAID.items() for size, names in by.items()]


@cases(layout_cases)
def test_layout(check, device, case, world_size, group):
    """An exact decoder under each layout has the bits of one process, on every rank and after every step."""
    for name in LAID[case.subject.rpartition("_")[2]][world_size]:
        ranks.check_layout(check, name, world_size, device)


def expert_cases():
    """Return a case for each number of ranks, such as ``workloads.exact.experts[4]``."""
    needs = (*ranks.NEEDS, COMM_ALL_TO_ALL, COMM_DTYPE.on("int64"))
    return [planned("exact.experts", (("world", str(size)),), needs, size) for size in (2, 4)]


@cases(expert_cases)
def test_experts(check, device, world_size, group):
    """An exact model with experts on ranks has the bits of one process, on every rank and after every step."""
    ranks.check_experts(check, device)


def resume_cases():
    """Return a case for each number of ranks, such as ``workloads.exact.decoder_resumed[2]``."""
    needs = (CHECKPOINT, COMM_DTYPE.on("uint8"), COMM_DTYPE.on("int64"))
    return [
        _case("decoder_resumed", size, [name for pair in pairs for name in pair], *needs)
        for size, pairs in RESUMED.items()
    ]


@cases(resume_cases)
def test_resumed(check, device, case, world_size, group, shared_dir):
    """An exact decoder saved under one layout and loaded under another has the bits of one process."""
    for number, (before, after) in enumerate(RESUMED[world_size]):
        ranks.check_resumed(check, before, after, world_size, shared_dir / str(number), device)


def elsewhere_cases():
    """Return the case ``workloads.exact.decoder_resumed_elsewhere[4]``."""
    names = [ranks_of(text)[0] for pair in ELSEWHERE for text in pair]
    return [_case("decoder_resumed_elsewhere", 4, names, CHECKPOINT, COMM_DTYPE.on("uint8"), COMM_DTYPE.on("int64"))]


@cases(elsewhere_cases)
def test_resumed_elsewhere(check, device, world_size, group, shared_dir):
    """An exact decoder saved on some ranks and loaded on more or fewer has the bits of one process."""
    for number, (before, after) in enumerate(ELSEWHERE):
        ranks.check_resumed_elsewhere(check, before, after, shared_dir / str(number), device)


def way_cases():
    """Return the case ``workloads.exact.ways_on_ranks[2]``."""
    return [_case("ways_on_ranks", 2, list(ENGINES.values()))]


@cases(way_cases)
def test_ways(check, device, world_size, group):
    """Exact models have the bits of one process when an engine accumulates, keeps its graph, or keeps its gathers."""
    ranks.check_ways(check, device)


def context_cases():
    """Return a case for each way and number of ranks, such as ``workloads.exact.context[ring-2]``."""
    return [
        planned("exact.context", (("way", way), ("world", str(size))), (*ranks.NEEDS, *needs), size)
        for way, needs in CONTEXT.items()
        for size in (2, 4)
    ]


@cases(context_cases)
def test_context(check, device, case, world_size, group):
    """An exact decoder with a part of each sequence on every rank has the bits of one process."""
    context.check_context(check, dict(case.axes)["way"], device)
