"""Builder classes, one for each name in the specifications. DeepSpeed finds them here by their names."""

from __future__ import annotations

import re

# DeepSpeed takes every name of this module that ends in "Builder" for an operator, so that no class is imported.
from conformance.kernels.builders import builder
from conformance.kernels.specifications import builder_names, of_builder

_PACKAGE = __name__.rpartition(".")[0]


def _specified(name: str) -> type[builder.OpBuilder]:
    """Return the builder class of that name. Its NAME is the name in snake case: ``CPUAdamBuilder``, cpu_adam."""
    stem = name.removesuffix("Builder")
    snake = re.sub(r"(?<=[a-z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", stem).lower()
    doc = "; ".join(f"{kernel.name}: {kernel.doc.splitlines()[0]}" for kernel in of_builder(name) if kernel.doc)
    return type(name, (builder.SpecifiedBuilder,), {"NAME": snake, "__doc__": doc, "__module__": _PACKAGE})


BUILDERS: dict[str, type[builder.OpBuilder]] = {name: _specified(name) for name in builder_names()}
# Callers import builders by name: ``from conformance.kernels.builders import FusedAdamBuilder``.
globals().update(BUILDERS)
