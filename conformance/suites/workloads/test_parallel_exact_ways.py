"""Cases of exact workloads on ranks whose engine is compiled or offloaded."""

from __future__ import annotations

from conformance.accelerators.capabilities import COMPILE
from conformance.plan.case import cases

from .exact import rank_ways, ranks
from .parallel.layouts import LAYOUTS
from .parallel.planned import planned

#: The compiler takes seconds to import, so it is imported before the fork.
RANK_IMPORTS = (*ranks.RANK_IMPORTS, "torch._dynamo", "torch._inductor.compile_fx", "torch._dynamo.backends.debugging")


def _case(what, *needs):
    own = [need for engine in ranks.ENGINES for need in LAYOUTS[engine].needs]
    return planned(f"exact.{what}", (("world", "2"),), (*ranks.NEEDS, *own, *needs), 2)


@cases(lambda: [_case("offloaded_on_ranks")])
def test_offloaded(check, device, world_size, group):
    """Exact models have the bits of one process when parameters or activations stay on the host."""
    rank_ways.check_offloaded(check, device)


@cases(lambda: [_case("compiled_on_ranks", COMPILE)])
def test_compiled(check, device, world_size, group):
    """Exact models under a compiled engine have the bits of one process."""
    rank_ways.check_compiled(check, device)
