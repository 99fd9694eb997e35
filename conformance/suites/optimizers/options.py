"""Options of each optimizer of ``torch.optim``: those of PyTorch's optimizer database, and the operators in a step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

_DECAY = {"weight_decay": 0.1}
#: With so small a second beta the second moment falls again in four steps, and its maximum differs from it.
_KEPT = {"amsgrad": True, "betas": (0.8, 0.5), **_DECAY}
_MAXIMIZED = {"weight_decay": 0.1, "maximize": True}


@dataclass(frozen=True)
class Optimizer:
    """Option sets of one optimizer. ``ways`` are its implementations besides the plain loop."""

    options: tuple[dict[str, Any], ...]
    operators: tuple[str, ...]
    ways: tuple[str, ...] = ("foreach",)
    closure: bool = False  # step() evaluates the loss itself
    matrices: bool = False  # parameters of two dimensions only
    sparse: bool = False  # gradients are sparse


_MOMENTS = ("addcdiv", "addcmul", "lerp", "sqrt")
OPTIMIZERS: dict[str, Optimizer] = {
    "Adadelta": Optimizer(({}, {"lr": 0.01}, _MAXIMIZED, {"rho": 0.95, "weight_decay": 0.9}), _MOMENTS),
    "Adafactor": Optimizer(
        ({}, {**_DECAY, "lr": 0.01}, _MAXIMIZED, {"beta2_decay": -1.0}, {"d": 1.5}), ("mul", "mean")
    ),
    "Adagrad": Optimizer(
        ({}, _MAXIMIZED, {"initial_accumulator_value": 0.1, **_DECAY}, {"lr": 0.1, "lr_decay": 0.5, **_DECAY}),
        _MOMENTS,
    ),
    "Adam": Optimizer(
        ({}, _MAXIMIZED, _KEPT, {"betas": (0.8, 0.9)}),
        _MOMENTS,
        ("foreach", "fused"),
    ),
    "Adamax": Optimizer(({}, {"lr": 0.1}, _DECAY, _MAXIMIZED), _MOMENTS),
    "AdamW": Optimizer(
        ({}, _MAXIMIZED, _KEPT, {"eps": 1e-3}),
        _MOMENTS,
        ("foreach", "fused"),
    ),
    "ASGD": Optimizer(({}, {"lambd": 0.1}, {"t0": 1}, {"lr": 0.02, "alpha": 0.6}, _MAXIMIZED), ("add", "mul")),
    # Few iterations: rounding errors grow with each of them.
    "LBFGS": Optimizer(
        (
            {"lr": 0.1, "max_iter": 2},
            {"lr": 0.5, "max_iter": 2, "history_size": 1},
            {"line_search_fn": "strong_wolfe", "max_iter": 3},
        ),
        ("add", "mul"),
        (),
        closure=True,
    ),
    "Muon": Optimizer(
        ({}, {"lr": 0.01}, {"weight_decay": 0.2}, {"momentum": 0.8, "nesterov": False}, {"ns_steps": 4}),
        ("addmm", "mm", "lerp"),
        (),
        matrices=True,
    ),
    "NAdam": Optimizer(
        ({}, {"momentum_decay": 0.006, **_DECAY}, {"decoupled_weight_decay": True, **_DECAY}, _MAXIMIZED), _MOMENTS
    ),
    "RAdam": Optimizer(
        ({}, {"eps": 1e-6}, {"decoupled_weight_decay": True, **_DECAY}, {"betas": (0.5, 0.6), **_MAXIMIZED}), _MOMENTS
    ),
    "RMSprop": Optimizer(
        ({}, _MAXIMIZED, {"centered": True, **_DECAY}, {"centered": True, "momentum": 0.1, **_MAXIMIZED}), _MOMENTS
    ),
    "Rprop": Optimizer(({}, {"etas": (0.5, 1.5)}, {"step_sizes": (2e-6, 0.005)}, {"maximize": True}), ("sign", "mul")),
    "SGD": Optimizer(
        (
            {"lr": 0.1},
            {**_DECAY, "maximize": True},
            {"momentum": 0.9, "dampening": 0.5},
            {"momentum": 0.9, "nesterov": True, **_DECAY},
        ),
        ("add", "mul"),
        ("foreach", "fused"),
    ),
    "SparseAdam": Optimizer(({}, {"lr": 0.01}, {"maximize": True}), ("to_sparse", "add"), (), sparse=True),
}
#: Overloads of their own, for which a claim of the plain operators does not count.
FUSED = {"Adam": "_fused_adam_", "AdamW": "_fused_adamw_", "SGD": "_fused_sgd_"}
#: Optimizers with a fused kernel that a device may lack: the case of another way runs it where there is one.
FUSED_IN = {"Adagrad": "foreach"}
#: Options for steps after many others. Their number is in the state, in float32, and bfloat16 does not hold it.
LATE = {"lr": 0.5, "weight_decay": 0.3, "eps": 0.1}
LATE_STEP = 298
