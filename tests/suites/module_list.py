"""The list of modules of the area ``modules``: ``python -m tests.suites.module_list`` writes it with this torch."""

from __future__ import annotations

from pathlib import Path

import torch
from torch.overrides import TorchFunctionMode

from conformance.accelerators.capabilities import Mode
from conformance.suites.modules import checking, database, planned
from conformance.suites.modules.call import HOST
from conformance.suites.operators.calls.database import database as operator_database
from conformance.suites.operators.plan.catalogue import operators

FILE = Path(planned.__file__).with_name("modules.toml")
_PADS = {"Circular": "circular", "Reflection": "reflect", "Replication": "replicate"}
_INTERPOLATED = ("nearest", "nearest_exact", "linear", "bilinear", "bicubic", "trilinear")
#: Of modules that call none of the database's operators (torch._VF has kernels for whole layers), or one variant.
_OTHERWISE = {
    **{f"{kind}Pad{n}d": (f"nn.functional.pad.{name}",) for kind, name in _PADS.items() for n in (1, 2, 3)},
    **{f"LPPool{n}d": (f"nn.functional.avg_pool{n}d", "nn.functional.relu", "pow", "sign") for n in (1, 2, 3)},
    "Dropout1d": ("nn.functional.dropout",),
    "Fold": ("nn.functional.unfold",),
    "LogSoftmax": ("log_softmax",),
    **dict.fromkeys(("Softmax", "Softmax2d"), ("softmax",)),
    "Upsample": tuple(f"nn.functional.interpolate.{mode}" for mode in _INTERPOLATED),
    "UpsamplingBilinear2d": ("nn.functional.interpolate.bilinear",),
    **dict.fromkeys(("RNN", "RNNCell"), ("nn.functional.linear", "tanh")),
    **dict.fromkeys(("LSTM", "LSTMCell", "GRU", "GRUCell"), ("nn.functional.linear", "sigmoid", "tanh")),
    "CrossMapLRN2d": ("mul", "pow"),
    "Identity": ("clone",),
    "FeatureAlphaDropout": ("nn.functional.feature_alpha_dropout.with_train",),
}
HEAD = """\
# The modules of torch.nn that the suite tests: the operators that each consists of, which a claim has to cover, and the
# dtypes and modes that PyTorch's own CPU lacks. Written by python -m tests.suites.module_list.
"""


class _Functions(TorchFunctionMode):
    def __init__(self) -> None:
        super().__init__()
        self.called: list[object] = []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.called.append(func)
        return func(*args, **(kwargs or {}))


def _by_function() -> dict[object, str]:
    """Return the database's operators by function; of variants of one function the first."""
    names = {operator.full_name: operator.name for operator in operators() if "float32" in operator.backward}
    found: dict[object, str] = {}
    for info in operator_database().values():
        if info.full_name not in names:
            continue
        for function in (info.op, info.method_variant):
            if function is not None:
                found.setdefault(function, names[info.full_name])
        if info.name.startswith("nn.functional."):
            # Some entries of the database wrap the function.
            found.setdefault(getattr(torch.nn.functional, info.name.rpartition(".")[2], None), names[info.full_name])
    return found


def operators_of(name: str, known: dict[object, str]) -> tuple[str, ...]:
    """Return the operators that a module calls, by the names of their cells."""
    if name in _OTHERWISE:
        return _OTHERWISE[name]
    mode = _Functions()
    for call in database.calls(name, training=True):
        module, (inputs, named, _) = call.made(torch.float32).float(), call.on(HOST, torch.float32)
        with mode:
            module(*inputs, **named)
    return tuple(sorted({known[function] for function in mode.called if function in known}))


def lacks(name: str) -> list[str]:
    """Return the dtypes and modes in which PyTorch's CPU does not compute the module."""
    return [
        f"{dtype}-{mode.value}"
        for dtype in planned.DTYPES
        for mode in Mode
        if not _computes(name, getattr(torch, dtype), training=mode is Mode.TRAINING)
    ]


def _computes(name: str, dtype: torch.dtype, *, training: bool) -> bool:
    call = database.calls(name, training=training)[0]
    try:
        checking.run(call.made(dtype).to(dtype).train(training), call.rounded(dtype), HOST, dtype, training)
    except (RuntimeError, NotImplementedError):
        return False
    return True


def text() -> str:
    """Return the list with the installed torch."""
    known, lines = _by_function(), [HEAD]
    planned_names = {operator.name for operator in operators()}
    for name in database.names():
        called = operators_of(name, known)
        assert planned_names.issuperset(called), f"{name}: {called}"
        assert called, f"{name} calls no operator of the database; add it to _OTHERWISE"
        lines.append(f"[{name}]\noperators = {list(called)}".replace("'", '"'))
        if lacking := lacks(name):
            lines.append(f"lacks = {lacking}".replace("'", '"'))
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    FILE.write_text(text(), encoding="utf-8")
