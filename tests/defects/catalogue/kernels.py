"""Kernels beyond PyTorch's operators that compute something else, refuse nothing, or are not there."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from conformance.accelerators.capabilities import Mode
from conformance.accelerators.claims import kernels as claimed
from conformance.base.errors import SetupError
from conformance.kernels.builders import SpecifiedBuilder
from conformance.kernels.kernel import Kernel
from conformance.kernels.specification import Arguments
from conformance.kernels.specifications import cpu_optimizers, fused_optimizers
from conformance.reports.verdict import Reason
from tests.defects.faults import Fault, Where
from tests.defects.mutant import Mutant
from tests.defects.spoiling import constant, replaced

#: ``broken(call, arguments)`` may change the arguments, which are named as in the signature, and returns the answer.
Broken = Callable[[Callable[[Arguments], Any], Arguments], Any]

FAMILY = "kernels of training engines"
ADAM, LION, LAMB = "ops.multi_tensor_adam[*", "ops.multi_tensor_lion[*", "ops.lamb[*"


def around(entry: str, broken: Broken) -> Callable[[], Any]:
    """What the accelerator's builder loads under that name is broken; the reference beside it is not."""

    def of(self: Kernel, choice: Any) -> Any:
        def call(arguments: Arguments) -> Any:
            return choice.function(*arguments.values())

        def function(*values: Any) -> Any:
            return broken(call, dict(zip(self.specification.signature.parameters, values, strict=True)))

        return dataclasses.replace(choice, function=function) if self.__name__ == entry else choice

    return replaced(Kernel, choice=lambda old: lambda self, *key: of(self, old(self, *key)))


def kernel(name: str, precedent: str, entry: str, caught_by: str, broken: Broken) -> Mutant:
    touch = (f"ops.{entry}[*", f"ops.{entry}.*")
    what = Fault(name, FAMILY, precedent, Where.KERNEL, f"ops.{entry}{caught_by}", context=around(entry, broken))
    return Mutant(what, touch, touch[:1] if caught_by.startswith("[") else touch)


def with_numbers(**changes: Callable[[Arguments], Any]) -> Broken:
    """Called with other numbers than were given."""
    return lambda call, given: call({**given, **{name: change(given) for name, change in changes.items()}})


def _nothing(call: Any, given: Arguments) -> None:
    """Returns as if it had worked."""


def _tail_lost(call: Any, given: Arguments) -> Any:
    """What does not fill a block of 512 keeps its old value."""
    kept = [[tensor.clone() for tensor in tensors] for tensors in given["tensor_lists"]]
    answer = call(given)
    for tensors, olds in zip(given["tensor_lists"], kept, strict=True):
        for tensor, old in zip(tensors, olds, strict=True):
            start = tensor.numel() // 512 * 512
            tensor[start:] = old[start:]
    return answer


def _in_storage(call: Any, given: Arguments) -> None:
    """Every intermediate result is rounded to the dtype of the tensors."""
    for g, p, m, v in zip(*given["tensor_lists"], strict=True):
        if given["mode"] == 0:
            g = g + given["weight_decay"] * p
        m.mul_(given["beta1"]).add_((1 - given["beta1"]) * g)
        v.mul_(given["beta2"]).add_((1 - given["beta2"]) * g * g)
        first, second = (1 - given[f"beta{n}"] ** given["step"] if given["bias_correction"] else 1.0 for n in (1, 2))
        update = (m / first) / ((v / second).sqrt() + given["epsilon"])
        p.sub_(given["lr"] * (update + (given["weight_decay"] * p if given["mode"] == 1 else 0)))


def _first_alone(call: Any, given: Arguments) -> Any:
    return call({**given, "tensor_lists": [tensors[:1] for tensors in given["tensor_lists"]]})


def _swapped_moments(call: Any, given: Arguments) -> Any:
    gradients, parameters, first, second = given["tensor_lists"]
    return call({**given, "tensor_lists": [gradients, parameters, second, first]})


def _zero_is(sign: float, parameter: str, moment: str) -> Broken:
    """Where the blend is 0 the parameter moves all the same."""

    def broken(call: Any, given: Arguments) -> Any:
        lists = given.get("tensor_lists")
        rows = zip(*lists, strict=True) if lists else [(given["grads"], given[parameter], given[moment])]
        still = [(p, (g == 0) & (m == 0)) for g, p, m in rows]
        answer = call(given)
        for p, where in still:
            p.sub_(where * sign * given["lr"])
        return answer

    return broken


def _gradient_written(call: Any, given: Arguments) -> Any:
    answer = call(given)
    given["grads"].mul_(given["lr"])
    return answer


_LAMB_BLOCKS = 512 * 512


def _norm_of_first_blocks(call: Any, given: Arguments) -> Any:
    """The ratio is that of the first blocks; beyond them everything moves by it."""
    if given["p"].numel() <= _LAMB_BLOCKS:
        return call(given)
    names = ("p", "m", "v", "g")
    front = call({**given, **{name: given[name][:_LAMB_BLOCKS].clone() for name in names}, "p_copy": given["p"][:0]})
    ratio = float(front)
    return call({**given, "min_coeff": ratio, "max_coeff": ratio})


def _advancing() -> Broken:
    """Each call multiplies the powers of beta once more, whatever step it names."""
    calls = {"number": 0}

    def broken(call: Any, given: Arguments) -> Any:
        calls["number"] = calls["number"] + 1 if calls["number"] else given["step"]
        return call({**given, "step": calls["number"]})

    return broken


def _decay_in_square_alone(call: Any, given: Arguments) -> int:
    """The square has the decay, the direction has not."""
    p, g, v = given["params"], given["grads"].float(), given["exp_avg_sq"]
    square = v.float() + (g + given["weight_decay"] * p.float()) ** 2
    p.copy_(p.float() - given["lr"] * g / (square.sqrt() + given["epsilon"]))
    v.copy_(square)
    return 0


def _copied_if_strided(old: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Takes any strides, as a function does that makes a contiguous copy and updates that."""
    return lambda *args, **kwargs: old(*args, **{**kwargs, "contiguous": False})


def refusal(name: str, precedent: str, caught_by: str, context: Any) -> Mutant:
    what = Fault(name, "unclean refusal", precedent, Where.KERNEL, caught_by, context=context)
    return Mutant(what, ("ops.*.refuses[*",), (f"{caught_by.partition('[')[0]}[*",))


_BIAS, _MODE = "DeepSpeed: bias correction dropped, or off by a step (#5777)", "DeepSpeed: fused Adam's mode ignored"
_FUSED_ADAM = (
    kernel("a fused Adam that does nothing", "passes DeepSpeed's test at every size", "multi_tensor_adam",
           "[float32-training-adamw-513]", _nothing),
    kernel("a fused Adam that climbs", "passes DeepSpeed's test at every size", "multi_tensor_adam",
           "[float32-training-adamw-1]", with_numbers(lr=lambda given: -given["lr"])),
    kernel("a fused Adam without bias correction", _BIAS, "multi_tensor_adam", "[float32-training-adam-first]",
           with_numbers(bias_correction=lambda given: 0)),
    kernel("a fused Adam that always corrects", _BIAS, "multi_tensor_adam", "[float32-training-adam-uncorrected]",
           with_numbers(bias_correction=lambda given: 1)),
    kernel("a fused Adam one step ahead", _BIAS, "multi_tensor_adam", "[float32-training-adamw-2]",
           with_numbers(step=lambda given: given["step"] + 1)),
    kernel("a fused Adam that is always AdamW", _MODE, "multi_tensor_adam", "[float32-training-adam-7]",
           with_numbers(mode=lambda given: 1)),
    kernel("a fused Adam without decay in mode 0", _MODE, "multi_tensor_adam", "[bfloat16-training-adam-7]",
           with_numbers(weight_decay=lambda given: given["weight_decay"] * given["mode"])),
    kernel("a fused Adam that loses the tail", "DeepSpeed #7639", "multi_tensor_adam", "[float32-training-adamw-65537]",
           _tail_lost),
    kernel("a fused Adam in float16 throughout", "DeepSpeed's SUPA builder: 4096 of 4096 not finite",
           "multi_tensor_adam", "[float16-training-tiny]", _in_storage),
    kernel("a fused Adam whose epsilon is not corrected", "DeepSpeed's HPU builder: epsilon scaled",
           "multi_tensor_adam", "[float32-training-adam-513]",
           with_numbers(epsilon=lambda given: given["epsilon"] / math.sqrt(1 - given["beta2"] ** given["step"]))),
    kernel("a fused Adam of the first tensor alone", "defect class of kernels", "multi_tensor_adam",
           "[float32-training-mixed]", _first_alone),
    kernel("a fused Adam with its moments swapped", "defect class of kernels", "multi_tensor_adam",
           "[float16-training-adamw-1]", _swapped_moments),
    kernel("a fused Adam that ignores the overflow", "DeepSpeed: noop_flag ignored by most", "multi_tensor_adam",
           "[float32-training-overflow]", with_numbers(noop_flag=lambda given: torch.zeros_like(given["noop_flag"]))),
)  # fmt: skip
_SIGN = "DeepSpeed: sign(0) is +1, -1 or 0"
_FUSED_OTHERS = (
    kernel("a fused Lion whose 0 is positive", _SIGN, "multi_tensor_lion", "[float32-training-zeros]",
           _zero_is(1.0, "", "")),
    kernel("a fused Lion whose 0 is negative", _SIGN, "multi_tensor_lion", "[bfloat16-training-zeros]",
           _zero_is(-1.0, "", "")),
    kernel("a LAMB that does not clamp", "DeepSpeed: trust ratio", "lamb", "[float32-training-clamped-above]",
           with_numbers(max_coeff=lambda given: 1e30, min_coeff=lambda given: 0.0)),
    kernel("a LAMB with the norm of 512 blocks", "DeepSpeed: two passes of 512 blocks", "lamb",
           f"[float32-training-{_LAMB_BLOCKS + 1027}]", _norm_of_first_blocks),
    kernel("a LAMB that writes no copy", "DeepSpeed: no copy for float32 gradients", "lamb", "[float32-training-7]",
           lambda call, given: call({**given, "p_copy": given["p_copy"][:0]})),
    kernel("a LAMB that ignores the scale", "defect class of kernels", "lamb", "[float16-training-scaled]",
           with_numbers(combined_scale=lambda given: 1.0)),
    kernel("a LAMB with epsilon always outside", "defect class of kernels", "lamb",
           "[float32-training-epsilon-inside]", with_numbers(eps_mode=lambda given: 1)),
    kernel("a LAMB that returns no ratio", "defect class of kernels", "lamb", "[float32-training-1]",
           lambda call, given: call(given) * 0 + 1),
)  # fmt: skip
_HOST = (
    kernel("a CPU Adam that advances with every call", "DeepSpeed #7982, 44c51e342", "adam_update",
           ".property[float32-training-same-step-twice]", _advancing()),
    kernel("a CPU Adam that is always AdamW", _MODE, "adam_update", "[float32-training-adam]",
           lambda call, given: call({**given, "optimizer_id": cpu_optimizers._ADAMW_ID})),
    kernel("a CPU Adam that does nothing", "passes DeepSpeed's test at every size", "adam_update",
           "[bfloat16-training-22]", lambda call, given: 0),
    kernel("a rollback that does nothing", "DeepSpeed: -1 for what it cannot take back", "adam_rollback",
           ".property[float32-training-there-and-back]", lambda call, given: 0),
    kernel("an Adagrad with decay in its square alone", "DeepSpeed's CPU Adagrad", "adagrad_update",
           "[float32-training-22]", _decay_in_square_alone),
    kernel("an Adagrad that writes over gradients", "DeepSpeed's CPU Adagrad", "adagrad_update",
           "[float32-training-513]", _gradient_written),
    kernel("a CPU Lion whose 0 is negative", _SIGN, "lion_update", "[float16-training-zeros]",
           _zero_is(-1.0, "params", "exp_avg")),
)  # fmt: skip
_REFUSING = (
    refusal("lists of different lengths are updated", "defect class of kernels",
            "ops.multi_tensor_adam.refuses[float32-training-lengths]",
            replaced(fused_optimizers, check_tensor_lists=constant(None))),
    refusal("a strided parameter is updated in a copy", "DeepSpeed's CPU Adam: .contiguous()",
            "ops.adam_update.refuses[float32-training-strides]",
            replaced(cpu_optimizers, check_tensor=_copied_if_strided)),
)  # fmt: skip


def _loads_nothing(self: Any, verbose: bool = False) -> Any:
    raise SetupError("the kernel is not here")


_BUILDERS = (
    Mutant(Fault("builders of kernels are compatible and do not load", "over-declared",
                 "DeepSpeed's SUPA FusedLambBuilder: compatible by default", Where.KERNEL,
                 "ops.builders.compatible_is_loadable[FusedLambBuilder]",
                 context=replaced(SpecifiedBuilder, is_compatible=constant(True),
                                  load=lambda old: _loads_nothing)),
           ("ops.*", "accelerator.builders.*", "capabilities.op-builders"), ("ops.builders.*",)),
    Mutant(Fault("builders of kernels load and say no", "under-declared",
                 "DeepSpeed's SUPA builders: fallbacks that nobody can reach", Where.KERNEL,
                 "ops.builders.compatible_is_loadable[FusedAdamBuilder]",
                 context=replaced(SpecifiedBuilder, is_compatible=constant(False))),
           ("ops.*", "accelerator.builders.*", "capabilities.op-builders"), ("ops.builders.*",)),
    Mutant(Fault("claims a LAMB of its own", "over-declared", "DeepSpeed: numerically equivalent fallbacks",
                 Where.DECLARATION, "ops.lamb[float32-training-7]"),
           (LAMB,), (LAMB,), claims=claimed("lamb", dtypes=["float32"], mode=Mode.TRAINING),
           reason=Reason.OVER_DECLARED),
)  # fmt: skip

MUTANTS = (*_FUSED_ADAM, *_FUSED_OTHERS, *_HOST, *_REFUSING, *_BUILDERS)
