"""Accelerators whose builders keep their kernels to themselves, in every way that is known."""

from __future__ import annotations

from types import SimpleNamespace

from conformance.kernels.specifications import specification


class Shells:
    """Every method is there, and says at its call that no kernel is behind it."""

    def __getattr__(self, name):
        def method(*arguments):
            raise RuntimeError(f"torch.ops.example.{name} is not available. Ensure that the extension is built.")

        return method


class Narrow:
    """Attention with three arguments less than it is called with, and nothing else."""

    def softmax_context_fp32(
        self, qkv, mask, rotary_dim, halves, pairs, heads, num_kv, norm, triangular, local, window, unmasked, layer,
        layers, alibi, theta,
    ):  # fmt: skip
        raise AssertionError("called with arguments that it does not take")


def raising(error):
    """A function that raises it."""

    def raises(*arguments):
        raise error

    return raises


def only_float32(name):
    """A kernel that takes float32 and refuses the others; it computes by other means than the portable one."""
    reference = specification(name).reference

    def kernel(*arguments):
        if str(arguments[0].dtype) != "torch.float32":
            raise NotImplementedError(f"{name} takes float32 alone")
        return reference(*(one.clone() if hasattr(one, "clone") else one for one in arguments))

    return SimpleNamespace(**{name: kernel})


class Accelerator:
    """Answers for one builder: with what ``load`` does, or with no builder at all."""

    def __init__(self, load=None):
        self._load = load

    def create_op_builder(self, class_name):
        return None if self._load is None else SimpleNamespace(load=self._load)


#: By name: the accelerator, and a part of the reason that has to be told.
UNREACHABLE = {
    "no-builder": (Accelerator(), "there is no InferenceBuilder"),
    "load-raises": (Accelerator(raising(ValueError("not implemented here"))), "load() raises ValueError"),
    "loads-nothing": (Accelerator(lambda: None), "load() gives None"),
    "shells": (Accelerator(Shells), "is not available"),
    "missing": (Accelerator(SimpleNamespace), "loads no"),
    "other-arguments": (Accelerator(Narrow), ""),
}
