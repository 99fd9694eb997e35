"""The simulated accelerator with CUDA's habits: right, and unlike PyTorch's CPU wherever CUDA legitimately is.

python -m pytest --accelerator=tests.like_cuda.accelerator:LIKE_CUDA
"""

from __future__ import annotations

from dataclasses import replace

from conformance.accelerators.backends.cuda import LACKS
from conformance.accelerators.backends.sim import SIM
from conformance.accelerators.claims import Statement

#: The simulated accelerator has no sparse layouts, and says so itself.
_LACKS = frozenset(claim for claim in LACKS if isinstance(claim, Statement) and "sparse" not in claim.cell.subject)

LIKE_CUDA = replace(
    SIM,
    name="like-cuda",
    module="torch.sim",
    device_type="sim",
    package="tests.like_cuda.torch_like_cuda",
    builds="conformance.accelerators.simulated.build:build",
    capabilities=SIM.capabilities | _LACKS,
)
