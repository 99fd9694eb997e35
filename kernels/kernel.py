"""A kernel ready to be called: it checks its arguments, and knows which implementation runs."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

from torch import Tensor

from conformance.errors import SetupError
from conformance.kernels.arguments import every_tensor, wrong
from conformance.kernels.implementation import Choice, Declared, Implementation
from conformance.kernels.specification import Arguments, KernelSpecification, Native
from conformance.kernels.vendors import library_of


class Kernel:
    """One entry point, as a builder's ``load()`` offers it.

    Implementations are taken in this order: the vendor's of the tensors' device, this project's compiled one for that
    device or for what its accelerator declares, the portable reference. A vendor's that refuses a call with
    NotImplementedError before it has done anything (a name that is registered and nothing more, or a mode it has not)
    is passed over for that call.
    """

    def __init__(
        self,
        specification: KernelSpecification,
        attribute: str = "",
        library: str = "",
        declared: frozenset[Declared] = frozenset(),
    ) -> None:
        self.specification, self._library, self._declared = specification, library, declared
        self.__name__, self.__doc__ = attribute or specification.name, specification.doc
        self._only = specification.attributes.get(self.__name__, "")
        self._choices: dict[tuple[str, str], Choice] = {}
        #: What computed the last call; None before the first.
        self.used: Choice | None = None

    def __repr__(self) -> str:
        return f"<kernel {self.__name__}>"

    def choice(self, device_type: str, dtype: str = "") -> Choice:
        """What is asked first for tensors of that device type and dtype. Raises NotImplementedError if nothing is."""
        key = (device_type, dtype)
        if key not in self._choices:
            self._choices[key] = self._choose(key)
        return self._choices[key]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        arguments = self.specification.bound(args, kwargs)
        key = _leading(arguments, self.specification.dtypes)
        if self._only and key[1] and key[1] != self._only:
            raise wrong(f"of {self.__name__}", f"tensors of {self._only}", key[1])
        self.specification.validate(arguments)
        chosen = self.choice(*key)
        try:
            result = chosen.function(*arguments.values())
        except NotImplementedError as refusal:
            if chosen.implementation is not Implementation.VENDOR:
                raise
            chosen = self._choose(key, f"{chosen.reason} refuses: {_sentence(refusal)}")
            result = chosen.function(*arguments.values())
        self.used = chosen
        return result

    def _choose(self, key: tuple[str, str], refused: str = "") -> Choice:
        """The first that loads; after the vendor's refusal, which is then part of the reason, the first behind it."""
        reasons, lacking = [refused] if refused else [], []
        for who, load in self._candidates(*key):
            if refused and who is Implementation.VENDOR:
                continue
            try:
                what, function = load()
            except SetupError as error:
                reasons.append(_sentence(error))
                lacking.append(_sentence(error))
            except NotImplementedError as error:
                reasons.append(_sentence(error))
            else:
                return Choice(who, "; ".join([what, *reasons]), function, "; ".join(lacking))
        raise NotImplementedError(
            f"{self.__name__} has no implementation for {key[0]}: {'; '.join(reasons) or 'none is known'}"
        )

    def _candidates(self, device_type: str, dtype: str) -> Iterator[tuple[Implementation, Any]]:
        one = self.specification
        vendor = library_of(device_type, self._library)
        if vendor is not None and self.__name__ in vendor.builders.get(one.builder, {}):
            yield Implementation.VENDOR, functools.partial(vendor.operator, one.builder, self.__name__, dtype)
        for native in one.native:
            if native.dtypes and dtype and dtype not in native.dtypes:
                continue
            if native.needs is None and device_type in native.devices:
                yield Implementation.NATIVE, functools.partial(_loaded, native)
            for declared in self._declared:
                if native.needs is not None and declared.is_of(device_type, native.needs.name):
                    yield Implementation.NATIVE, functools.partial(_tried, native, declared)
        if one.reference is not None:
            yield Implementation.REFERENCE, lambda: ("PyTorch's operators", one.reference)


def _loaded(native: Native) -> tuple[str, Any]:
    return native.what, native.load()


def _tried(native: Native, declared: Declared) -> tuple[str, Any]:
    """Of an implementation that needs what the accelerator declares: it has to be there on this very device."""
    function = native.load()
    if not declared.is_there():
        raise NotImplementedError(f"{declared.capability} is declared for {declared.device_type}, not for this device")
    native.trial(declared.device_type)
    return native.what, function


def _leading(arguments: Arguments, dtypes: tuple[str, ...]) -> tuple[str, str]:
    """Device type and dtype of a call: by its first tensor of floating numbers, else by the first of a known dtype.

    Where there is neither, as with empty lists, the dtype is open.
    """
    found = list(every_tensor(arguments.values()))
    if not found:
        return "cpu", ""
    floating = next((tensor for tensor in found if tensor.is_floating_point()), None)
    leading = floating if floating is not None else next((one for one in found if _dtype(one) in dtypes), None)
    return (found[0].device.type, "") if leading is None else (leading.device.type, _dtype(leading))


def _dtype(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _sentence(error: Exception) -> str:
    return " ".join(str(error).split())
