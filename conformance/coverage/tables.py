"""Tables of a coverage map: what is exercised, what is not, and why not."""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import torch

from conformance.coverage.backward import subsets
from conformance.coverage.flags import LAYOUTS, dtypes_of, size_class
from conformance.coverage.map import CoverageMap

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

#: Sizes of inputs: more elements than a power of two.
SIZES = (8, 12, 16, 20)
#: The reason of an overload for which reasons.toml has none.
NO_REASON = "no reason is known: a case is missing"


def tables(found: CoverageMap) -> dict[str, Any]:
    """Return what is exercised and what is not, as data."""
    public = sorted(found.databases)
    missing = [name for name in public if name not in found.calls]
    return {
        "accelerator": found.accelerator,
        "torch": found.torch,
        "cases": found.cases,
        "overloads": {
            "public": len(public),
            "exercised": len(public) - len(missing),
            "beyond": sum(name not in found.databases for name in found.calls),
            "missing": {name: reason_of(name) for name in missing},
        },
        "asked": {"all": len(asked()), "exercised": len(asked() & found.calls.keys())},
        "arguments": _arguments(found),
        "layouts": _layouts(found),
        "derivatives": _derivatives(found),
        "dtypes": {
            name: lacking
            for name in public
            if name in found.calls and (lacking := sorted(_dtypes(found.databases[name]) - _dtypes(found.calls[name])))
        },
    }


@functools.cache
def asked() -> frozenset[str]:
    """Return the overloads that a backend can be asked for: those with tensors that PyTorch does not decompose itself.

    They are the widest measure. Forms of layouts and libraries that a device may not have are among them: sparse,
    nested, quantized, and those of cuDNN, MIOpen and oneDNN.
    """
    found = set()
    for schema in torch._C._jit_get_all_schemas():
        name = f"{schema.name}.{schema.overload_name}" if schema.overload_name else schema.name
        tensors = any("Tensor" in str(value.type) for value in (*schema.arguments, *schema.returns))
        if schema.name.startswith("aten::") and tensors and _reaches_a_backend(name):
            found.add(name)
    return frozenset(found)


def _reaches_a_backend(overload: str) -> bool:
    """Return whether the dispatcher knows the overload, and has no decomposition that replaces a kernel."""
    return torch._C._dispatch_has_kernel(overload) and not torch._C._dispatch_has_kernel_for_dispatch_key(
        overload, "CompositeImplicitAutograd"
    )


def missing_share(data: dict[str, Any]) -> float:
    """Return the share of the databases' overloads that no case exercises."""
    overloads = data["overloads"]
    return float(len(overloads["missing"]) / max(1, overloads["public"]))


def reason_of(overload: str) -> str:
    """Return why no case exercises an overload."""
    for pattern, why in _reasons().items():
        if fnmatchcase(overload.removeprefix("aten::"), pattern):
            return why
    return NO_REASON


@functools.cache
def _reasons() -> dict[str, str]:
    data = tomllib.loads((Path(__file__).parent / "reasons.toml").read_text(encoding="utf-8"))
    return {pattern: why for why, patterns in data["reasons"].items() for pattern in patterns}


@functools.cache
def _schema(overload: str) -> Any:
    name, _, variant = overload.partition(".")
    return torch._C._get_schema(name, variant)


def _inputs(found: CoverageMap) -> Iterator[tuple[str, str, Sequence[str]]]:
    """Yield the tensor inputs that cases exercise: overload, argument, flags."""
    for overload, places in found.calls.items():
        if overload not in found.databases:
            continue
        for argument in _schema(overload).arguments:
            written = argument.alias_info is not None and argument.alias_info.is_write
            if "Tensor" in str(argument.type.annotation_str) and not written and places.get(argument.name):
                yield overload, argument.name, places[argument.name]


def _layouts(found: CoverageMap) -> dict[str, Any]:
    inputs = list(_inputs(found))
    never = {
        layout: sorted(f"{overload} {name}" for overload, name, flags in inputs if layout not in flags)
        for layout in ("strided", "offset", "expanded")
    }
    return {
        "inputs": len(inputs),
        "seen": {layout: sum(layout in flags for _, _, flags in inputs) for layout in LAYOUTS},
        "sizes": {f"> 2^{power}": sum(size_class(flags) > power for _, _, flags in inputs) for power in SIZES},
        "never": never,
    }


def _arguments(found: CoverageMap) -> dict[str, Any]:
    unset, total = [], 0
    for overload, places in found.calls.items():
        if overload not in found.databases:
            continue
        for argument in _schema(overload).arguments:
            if argument.has_default_value() and argument.name != "generator" and argument.name in places:
                total += 1
                if not set(places[argument.name]) - {f"={argument.default_value}"}:
                    unset.append(f"{overload} {argument.name}")
    return {"with a default": total, "set": total - len(unset), "never set": unset}


def _derivatives(found: CoverageMap) -> dict[str, Any]:
    rules, inputs = found.rules, found.inputs
    missing = sorted(name for name in inputs if name not in rules)
    wanted = [(n, subset) for n, count in inputs.items() if count > 1 and n in rules for subset in subsets(count)]
    asked = {name: {mask.ljust(inputs[name], "0") for mask in rules[name]} for name, _ in wanted}
    return {
        "rules": len(inputs),
        "exercised": len(inputs) - len(missing),
        "missing": missing,
        "subsets": len(wanted),
        "never asked": [f"{name} {subset}" for name, subset in wanted if subset not in asked[name]],
    }


def _dtypes(places: dict[str, list[str]]) -> set[str]:
    return {dtype for flags in places.values() for dtype in dtypes_of(flags)}


def text(data: dict[str, Any]) -> str:
    """Return every overload that no case exercises, then the tables in short. The last line is the share of them."""
    overloads, arguments, layouts, rules = (data[name] for name in ("overloads", "arguments", "layouts", "derivatives"))
    asked = rules["subsets"] - len(rules["never asked"])
    lines = []
    if overloads["missing"]:
        width = max(map(len, overloads["missing"]))
        lines += ["no case exercises", *(f"  {name:<{width}}  {why}" for name, why in overloads["missing"].items()), ""]
    lines += [
        f"{data['cases']} cases recorded on {data['accelerator']}, torch {data['torch']}",
        "",
        f"arguments     {arguments['set']} of {arguments['with a default']} with a default have another value too",
        f"layouts       of {layouts['inputs']} tensor inputs "
        + ", ".join(f"{count} {layout}" for layout, count in layouts["seen"].items()),
        "sizes         of these inputs "
        + ", ".join(f"{count} have {size} elements" for size, count in layouts["sizes"].items()),
        f"derivatives   {rules['exercised']} of {rules['rules']} rules; {asked} of {rules['subsets']} sets of inputs",
        f"dtypes        {len(data['dtypes'])} overloads lack a dtype that the databases give them",
        (
            f"asked         {data['asked']['exercised']} of {data['asked']['all']} overloads "
            "that a backend can be asked for"
        ),
        (
            f"overloads     {overloads['exercised']} of {overloads['public']} that PyTorch's databases reach; "
            f"{missing_share(data):.1%} missing; {overloads['beyond']} others"
        ),
    ]
    return "\n".join(lines) + "\n"
