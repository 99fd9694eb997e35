"""Moves reported bugs to other operators of the same kind: ``python -m tests.faults.reported.neighbours --seed S``.

A bug of ``softplus`` becomes one of ``mish``: the condition, the effect and the call are the report's. It tells whether
the suite has an input for the kind, or for the operator of the report alone. Held rows have no part in it.
"""

from __future__ import annotations

import argparse
import random
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace

from tests.defects import bench
from tests.faults import forks
from tests.faults.overloads import kernels_of_a_device

from .results import Bug, bugs, score
from .run import judged

#: Operators that take the same arguments, by the names that calls have for them.
KINDS = tuple(
    line.split()
    for line in """
abs neg exp log sqrt rsqrt sin cos tan tanh sigmoid erf erfc floor ceil round trunc sign reciprocal expm1 log1p square
relu silu gelu softplus hardswish hardtanh leaky_relu elu mish celu selu hardsigmoid logsigmoid softshrink hardshrink
add sub mul div maximum minimum fmax fmin atan2 hypot copysign remainder fmod floor_divide pow xlogy logaddexp
eq ne lt gt le ge
bitwise_and bitwise_or bitwise_xor logical_and logical_or logical_xor
sum mean prod amax amin argmax argmin any all std var nansum logsumexp median nanmedian norm count_nonzero
cumsum cumprod cummax cummin logcumsumexp
softmax log_softmax
flip roll tril triu clone
gather index_select take_along_dim take
scatter scatter_add index_add index_copy scatter_reduce
sort argsort msort topk kthvalue
mm bmm matmul addmm baddbmm mv addmv dot
layer_norm rms_norm group_norm instance_norm batch_norm
conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d
max_pool1d max_pool2d max_pool3d avg_pool1d avg_pool2d avg_pool3d
adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d adaptive_max_pool1d adaptive_max_pool2d
mse_loss l1_loss smooth_l1_loss huber_loss binary_cross_entropy soft_margin_loss kl_div
cross_entropy nll_loss multi_margin_loss
cholesky inv det slogdet qr svd eigh svdvals eigvalsh pinv matrix_exp
cat stack hstack vstack dstack
masked_fill masked_scatter masked_select where
normal_ uniform_ exponential_ random_ bernoulli_ log_normal_ geometric_ cauchy_
_foreach_add _foreach_mul _foreach_sub _foreach_div _foreach_addcmul _foreach_addcdiv _foreach_lerp _foreach_norm
isnan isinf isfinite signbit isposinf isneginf logical_not bitwise_not
addcmul addcdiv lerp clamp
nonzero argwhere unique bincount histc searchsorted bucketize
""".strip().splitlines()
)
#: Kernels of functions that have other names.
_KERNELS = {
    **dict.fromkeys(("conv1d", "conv2d", "conv3d"), "convolution"),
    **{name: f"{name}_with_indices" for name in ("max_pool2d", "max_pool3d")},
    **{f"{name}_norm": f"native_{name}_norm" for name in ("layer", "group", "batch")},
    **{name: f"_{name}" for name in ("softmax", "log_softmax")},
}
#: Neighbours of one bug.
_EACH = 2


def neighbours(bug: Bug, chance: random.Random) -> Iterator[Bug]:
    """Yield the bug for each other operator of its kind that has a kernel, in a drawn order."""
    kernels = {re.sub(r"^aten::|\..*$", "", name) for name in kernels_of_a_device()}
    for kind in KINDS:
        for name in kind:
            called = re.compile(rf"(?<!\w){re.escape(name)}(?=\()")
            own = {name, _KERNELS.get(name, name), f"linalg_{name}"}
            if not called.search(bug.call) or own.isdisjoint(bug.operator):
                continue
            for other in chance.sample(kind, len(kind)):
                names = (_KERNELS.get(other, other), other, f"linalg_{other}", f"_linalg_{other}", f"{other}_ex")
                kernel = next((each for each in names if each in kernels), None)
                if other != name and kernel is not None:
                    yield _moved(bug, name, other, kernel, called.sub(other, bug.call))
            return


def _moved(bug: Bug, name: str, other: str, kernel: str, call: str) -> Bug:
    operators = tuple(kernel if name.strip("_") in each else each for each in bug.operator)
    prefixes = ("operators.", "operators.nn.functional.", "operators.linalg.", "calls.", "modules.", "foreach.")
    cases = [re.sub(rf"(?<=\.){re.escape(name)}(?=[\[*._])", other, pattern) for pattern in bug.cases]
    cases += [f"{prefix}{other.removeprefix('_foreach_')}{end}" for prefix in prefixes for end in ("[*", ".*")]
    return replace(bug, report=f"{bug.report} of {other}", operator=operators, call=call, cases=tuple(cases))


def main(arguments: Sequence[str] | None = None) -> int:
    """Print what came of each drawn neighbour, and the share that is found."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults.reported.neighbours", description=__doc__)
    parser.add_argument("--seed", default="0", help="any text")
    parser.add_argument("--draws", type=int, default=300, help="neighbours; about a third of them is live")
    parser.add_argument("--jobs", type=int, default=2, help="processes side by side")
    options = parser.parse_args(arguments)
    chance = random.Random(options.seed)
    rows = [bug for bug in bugs() if not bug.held and not bug.is_collective and "." not in bug.operator[0]]
    bench.loaded("sim")
    forks.prepare()
    found = [each for bug in rows for _, each in zip(range(_EACH), neighbours(bug, chance), strict=False)]
    chosen = chance.sample(found, min(options.draws, len(found)))
    print(score(judged(chosen, options.jobs, lambda text: print(text, flush=True))))
    return 0


if __name__ == "__main__":
    sys.exit(main())
