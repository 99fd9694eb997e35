"""Models of cases have no constant parameters: what is 1 or 0 everywhere hides that a device does not read it."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from conformance.judging.checker import Checker
from conformance.suites.compile import test_programs
from conformance.suites.inference.language_model import LanguageModel
from conformance.suites.module_inject.models import LlamaLayer, gpt
from conformance.suites.runtime import training
from conformance.suites.workloads import families, tasks
from conformance.suites.workloads.models.vit import ViT

HOST = torch.device("cpu")
MODELS: dict[str, Callable[[], nn.Module]] = {
    "gpt": gpt, "llama": LlamaLayer, "language model": LanguageModel, "training": training.model,
    "vit": lambda: ViT(tasks.VIT_SHAPE), "unet": lambda: families.build(families.families()["unet"]),
}  # fmt: skip


@pytest.mark.parametrize("make", MODELS.values(), ids=MODELS)
def test_no_parameter_is_constant(make: Callable[[], nn.Module]) -> None:
    given = dict(make().named_parameters())

    assert given
    assert not [name for name, value in given.items() if value.numel() > 1 and value.unique().numel() == 1]


def _without_weights(module: torch.fx.GraphModule, given: list[torch.Tensor]) -> Callable[..., Any]:
    """Compile to the program itself, whose norms take ones for their weights."""
    for node in module.graph.nodes:
        if node.target is F.batch_norm:
            with module.graph.inserting_before(node):
                node.update_arg(3, module.graph.call_function(torch.ones_like, (node.args[3],)))
    module.recompile()
    return module


def test_a_compiler_that_leaves_out_the_weight_of_a_norm_is_seen() -> None:
    accelerator = SimpleNamespace(get_compile_backend=lambda: _without_weights)

    with pytest.raises(AssertionError, match="the output of call 0"):
        test_programs.test_buffers(accelerator, Checker(), HOST)
