"""Fake accelerators whose builders provide no usable kernel, in every known way."""

from __future__ import annotations

from types import SimpleNamespace

from conformance.kernels.specifications import specification


class UnbuiltKernels:
    """Loaded module that has every method, each of which raises because its extension was not built."""

    def __getattr__(self, name):
        def method(*arguments):
            raise RuntimeError(f"torch.ops.example.{name} is not available. Ensure that the extension is built.")

        return method


class NarrowAttention:
    """Loaded module whose only kernel, attention, takes three arguments fewer than callers pass."""

    def softmax_context_fp32(
        self, qkv, mask, rotary_dim, halves, pairs, heads, num_kv, norm, triangular, local, window, unmasked, layer,
        layers, alibi, theta,
    ):  # fmt: skip
        raise AssertionError("the kernel was called, although it does not take the caller's arguments")


def raising(error):
    """Return a function that raises ``error``, whatever its arguments."""

    def raises(*arguments):
        raise error

    return raises


def only_float32(name):
    """Return a module with one kernel, which takes float32 and raises NotImplementedError for other dtypes."""
    reference = specification(name).reference

    def kernel(*arguments):
        if str(arguments[0].dtype) != "torch.float32":
            raise NotImplementedError(f"{name} takes float32 alone")
        return reference(*(value.clone() if hasattr(value, "clone") else value for value in arguments))

    return SimpleNamespace(**{name: kernel})


class BuilderOnlyAccelerator:
    """Fake accelerator that has only create_op_builder(). The builder's load() is ``load``; None means no builder."""

    def __init__(self, load=None):
        self._load = load

    def create_op_builder(self, class_name):
        return None if self._load is None else SimpleNamespace(load=self._load)


#: By name: the accelerator, and a part of the reason that has to be reported.
UNREACHABLE = {
    "no-builder": (BuilderOnlyAccelerator(), "there is no InferenceBuilder"),
    "load-raises": (BuilderOnlyAccelerator(raising(ValueError("not implemented here"))), "load() raises ValueError"),
    "loads-nothing": (BuilderOnlyAccelerator(lambda: None), "load() gives None"),
    "shells": (BuilderOnlyAccelerator(UnbuiltKernels), "is not available"),
    "missing": (BuilderOnlyAccelerator(SimpleNamespace), "loads no"),
    "other-arguments": (BuilderOnlyAccelerator(NarrowAttention), ""),
}
