"""Callable kernels: they check their arguments and choose the implementation that runs."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

from torch import Tensor

from conformance.base.errors import SetupError
from conformance.kernels.arguments import every_tensor, wrong
from conformance.kernels.implementation import Choice, Declared, Implementation
from conformance.kernels.specification import Arguments, KernelSpecification, Native
from conformance.kernels.vendors import library_of


class Kernel:
    """Kernel of one entry point, as an attribute of the object that a builder's ``load()`` returns.

    The first available implementation runs. The order is: the vendor's operator for the tensors' device, this project's
    compiled kernel for that device or for a declared capability, the portable reference. If the vendor's operator
    raises NotImplementedError before it has changed anything, the next implementation runs for that call. Vendors
    register names without an implementation, or operators that lack a mode.
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
        #: The only dtype that an entry point with a dtype in its name accepts; empty: all.
        self._only = specification.attributes.get(self.__name__, "")
        self._choices: dict[tuple[str, str], Choice] = {}
        #: Implementation that ran the last call; None before the first call.
        self.used: Choice | None = None

    def __repr__(self) -> str:
        return f"<kernel {self.__name__}>"

    def choice(self, device_type: str, dtype: str = "") -> Choice:
        """Return the implementation for tensors of that device type and dtype.

        Raises NotImplementedError if there is none.
        """
        key = (device_type, dtype)
        if key not in self._choices:
            self._choices[key] = self._choose(key)
        return self._choices[key]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        arguments = self.specification.bound(args, kwargs)
        key = _leading(arguments, self.specification.dtypes)
        if self._only and key[1] and key[1] != self._only:
            raise wrong(f"of {self.__name__}", f"tensors of {self._only}", key[1])
        # Validate before any implementation runs: a vendor's operator may check nothing and read invalid memory.
        self.specification.validate(arguments)
        chosen = self.choice(*key)
        try:
            result = chosen.function(*arguments.values())
        except NotImplementedError as refusal:
            if chosen.implementation is not Implementation.VENDOR:
                raise
            # This choice is not cached: the vendor's operator may accept the next call.
            chosen = self._choose(key, f"{chosen.reason} refuses: {_sentence(refusal)}")
            result = chosen.function(*arguments.values())
        self.used = chosen
        return result

    def _choose(self, key: tuple[str, str], refused: str = "") -> Choice:
        """Return the first implementation that loads.

        ``refused`` says why the vendor's operator refused the call; the vendor's operator is then left out.
        """
        reasons, lacking = [refused] if refused else [], []
        for implementation, load in self._candidates(*key):
            if refused and implementation is Implementation.VENDOR:
                continue
            try:
                what, function = load()
            except SetupError as error:
                # Installing something would change the choice, unlike the refusals below.
                reasons.append(_sentence(error))
                lacking.append(_sentence(error))
            except NotImplementedError as error:
                reasons.append(_sentence(error))
            else:
                return Choice(implementation, "; ".join([what, *reasons]), function, "; ".join(lacking))
        raise NotImplementedError(
            f"{self.__name__} has no implementation for {key[0]}: {'; '.join(reasons) or 'none is registered'}"
        )

    def _candidates(self, device_type: str, dtype: str) -> Iterator[tuple[Implementation, Any]]:
        """Yield the implementations to try, best first: the vendor's, compiled or Triton, the reference."""
        specification = self.specification
        vendor = library_of(device_type, self._library)
        if vendor is not None and self.__name__ in vendor.builders.get(specification.builder, {}):
            # Loaded only when its turn comes, because loading may import or compile.
            yield Implementation.VENDOR, functools.partial(vendor.operator, specification.builder, self.__name__, dtype)
        for native in specification.native:
            if native.dtypes and dtype and dtype not in native.dtypes:
                continue
            if native.needs is None and device_type in native.devices:
                yield Implementation.NATIVE, functools.partial(_load, native)
            for declared in self._declared:
                if native.needs is not None and declared.is_of(device_type, native.needs.name):
                    yield Implementation.NATIVE, functools.partial(_load_and_try, native, declared)
        if specification.reference is not None:
            yield Implementation.REFERENCE, lambda: ("PyTorch's operators", specification.reference)


def _load(native: Native) -> tuple[str, Any]:
    return native.what, native.load()


def _load_and_try(native: Native, declared: Declared) -> tuple[str, Any]:
    """Load an implementation that needs a capability, and check that it runs on this device."""
    function = native.load()
    if not declared.is_there():
        raise NotImplementedError(f"{declared.capability} is declared for {declared.device_type}, not for this device")
    native.trial(declared.device_type)
    return native.what, function


def _leading(arguments: Arguments, dtypes: tuple[str, ...]) -> tuple[str, str]:
    """Return device type and dtype of a call.

    The first floating-point tensor decides, else the first tensor of a dtype in ``dtypes``. If there is neither, the
    dtype is empty. Without any tensor, as with empty lists, the device type is "cpu".
    """
    found = list(every_tensor(arguments.values()))
    if not found:
        return "cpu", ""
    floating = next((tensor for tensor in found if tensor.is_floating_point()), None)
    leading = floating if floating is not None else next((tensor for tensor in found if _dtype(tensor) in dtypes), None)
    return (found[0].device.type, "") if leading is None else (leading.device.type, _dtype(leading))


def _dtype(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _sentence(error: Exception) -> str:
    # Reasons are joined into one line of the report.
    return " ".join(str(error).split())
