"""Cases of compiled families: few graphs, and the gradients of the uncompiled model."""

from __future__ import annotations

import warnings

from conformance.accelerators.capabilities import COMPILE
from conformance.plan.case import cases
from conformance.suites.shared_bodies import WatchedBackend

from . import family_checks as checks
from .families import families
from .loop import RunDevice
from .planned import planned_families

#: Families whose graphs the declared backend compiles. They are of the deep tier: each has twenty kernels, for which a
#: C++ compiler takes 20 to 30 s. compile.llama has a layer forward and backward, compile.dynamic the norm, the
#: activation, the embedding and the loss of gpt2, and compile.convolution a convolution.
COMPILED = ("llama", "gpt2", "unet")


#: Traced families of the workload tier, one for each kind of graph: a decoder, an encoder beside it, convolutions,
#: experts, and paths that meet again. To trace takes seconds, and graphs of a kind differ in few operators, which the
#: operators' own cases have. The other families are of the deep tier.
TRACED = ("llama", "t5", "resnet", "mixtral", "unet")


@cases(
    planned_families(
        "traced", "training", COMPILE, dtypes=["float32"],
        having=lambda f: not f.sparse, deep=lambda f: f.name not in TRACED,
    )
)  # fmt: skip
def test_traced(accelerator, device, case, check):
    """A model is traced in few graphs, which give the oracle's gradients as the device runs their operators."""
    _check(case, accelerator, device, check, "aot_eager")


@cases(
    planned_families(
        "compiled", "training", COMPILE, dtypes=["float32"], having=lambda f: f.name in COMPILED, deep=lambda f: True
    )
)
def test_compiled(accelerator, device, case, check):
    """The declared backend compiles a model in few graphs, which give the oracle's gradients."""
    _check(case, accelerator, device, check, accelerator.get_compile_backend())


def _check(case, accelerator, device, check, name):
    import torch._dynamo

    # aot_eager runs the operators one by one, and says so by its name.
    backend = WatchedBackend(name, only_traces=name == "aot_eager")
    family = families()[case.id.split(".")[1]]
    torch._dynamo.reset()  # graphs of an earlier case would be reused and not counted
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # compilers warn about their internals; no case depends on that
            checks.check_compiled(check, family, RunDevice(device, accelerator), case.dtype, backend)
    finally:
        torch._dynamo.reset()
    backend.check()
