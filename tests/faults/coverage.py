"""What cases exercise and what none does, from the map alone: ``python -m tests.faults.coverage``.

Counted are kernels, arguments, dtypes, layouts, sizes and sets of asked gradients. What torch's databases reach on the
device is the measure for what could be exercised.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from conformance.errors import ConformanceError
from tests.defects import bench

from . import corpus, derivatives, forks, recording
from .fault import Flags, size_class
from .overloads import is_written, kind_of, schema
from .population import flags_of_cases
from .recording import Map

#: Layouts of inputs, as the map flags them.
LAYOUTS = ("strided", "offset", "expanded", "channels_last", "0-dim", "empty")
#: Sizes of inputs: more elements than a power of two.
SIZES = (8, 12, 16, 20)


def tables(found: Map, known: corpus.Corpus) -> dict[str, Any]:
    """Return what is exercised and what is not, as data."""
    seen = flags_of_cases(found)
    public = sorted(found.public)
    rules = _rules(found)
    return {
        "kernels": {
            "public": len(public),
            "exercised": sum(name in seen for name in public),
            "missing": [name for name in public if name not in seen],
        },
        "defaults": _defaults(seen),
        "layouts": _layouts(seen),
        "derivatives": _derivatives(rules, known.inputs),
        "dtypes": {name: sorted(_dtypes(flags)) for name, flags in sorted(seen.items())},
        "missing_dtypes": {
            name: missing
            for name in public
            if name in seen and (missing := sorted(_dtypes(found.flags[name]) - _dtypes(seen[name])))
        },
        "cases": {
            name: sorted(id for id, record in found.cases.items() if name in record.reached)[:3]
            for name in sorted(seen)
        },
    }


def _inputs(kernel: str, flags: Flags) -> Iterator[tuple[str, Sequence[str]]]:
    for place, argument in enumerate(schema(kernel).arguments):
        if "Tensor" in kind_of(argument) and not is_written(argument) and (seen := flags.get(str(place))):
            yield argument.name, seen


def _layouts(seen: dict[str, Flags]) -> dict[str, Any]:
    inputs = [(kernel, name, flags) for kernel, by_place in seen.items() for name, flags in _inputs(kernel, by_place)]
    counts = {layout: sum(layout in flags for _, _, flags in inputs) for layout in LAYOUTS}
    sizes = {f"> 2^{power}": sum(size_class(flags) > power for _, _, flags in inputs) for power in SIZES}
    never = {
        layout: sorted(f"{kernel} {name}" for kernel, name, flags in inputs if layout not in flags)
        for layout in ("strided", "offset", "expanded")
    }
    return {"inputs": len(inputs), **counts, "sizes": sizes, "never": never}


def _defaults(seen: dict[str, Flags]) -> dict[str, Any]:
    unset, total = [], 0
    for kernel, flags in sorted(seen.items()):
        for place, argument in enumerate(schema(kernel).arguments):
            if argument.has_default_value() and argument.name != "generator" and str(place) in flags:
                total += 1
                if not set(flags[str(place)]) - {f"={argument.default_value}"}:
                    unset.append(f"{kernel} {argument.name}")
    return {"arguments": total, "set": total - len(unset), "never set": unset}


def _rules(found: Map) -> dict[str, set[str]]:
    merged: dict[str, set[str]] = {}
    for record in found.cases.values():
        for name, masks in record.nodes.items():
            merged.setdefault(name, set()).update(masks)
    return merged


def _derivatives(rules: dict[str, set[str]], inputs: dict[str, int]) -> dict[str, Any]:
    missing = sorted(name for name in inputs if name not in rules)
    subsets = [
        f"{name} {subset}"
        for name, count in sorted(inputs.items())
        if count > 1 and name in rules
        for subset in derivatives.subsets(count)
        if subset not in {mask.ljust(count, "0") for mask in rules[name]}
    ]
    total = sum(len(list(derivatives.subsets(count))) for name, count in inputs.items() if count > 1 and name in rules)
    return {
        "rules": len(inputs),
        "exercised": len(inputs) - len(missing),
        "missing": missing,
        "subsets": total,
        "never asked": subsets,
    }


def _dtypes(flags: Flags) -> set[str]:
    import torch

    every = {flag for place in flags.values() for flag in place}
    return {flag for flag in every if isinstance(getattr(torch, flag, None), torch.dtype)}


def text(data: dict[str, Any]) -> str:
    """Return the tables in short."""
    kernels, defaults, layouts, rules = (data[name] for name in ("kernels", "defaults", "layouts", "derivatives"))
    lines = [
        f"kernels        {kernels['exercised']} of {kernels['public']} that torch's own databases reach",
        f"arguments      {defaults['set']} of {defaults['arguments']} with a default are set to another value",
        f"layouts        of {layouts['inputs']} tensor inputs {_listed(layouts)}",
        f"sizes          of these inputs {', '.join(f'{count} {size}' for size, count in layouts['sizes'].items())}",
        (
            f"derivatives    {rules['exercised']} of {rules['rules']} rules; "
            f"{rules['subsets'] - len(rules['never asked'])} of {rules['subsets']} sets of asked inputs"
        ),
        f"dtypes         {len(data['missing_dtypes'])} kernels lack a dtype that torch's databases give them",
    ]
    return "\n".join(lines) + "\n"


def _listed(layouts: dict[str, Any]) -> str:
    return ", ".join(f"{layouts[layout]} {layout}" for layout in LAYOUTS)


def main(arguments: Sequence[str] | None = None) -> int:
    """Write coverage.json and print it in short; return 0, or 4 for an unknown accelerator."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults.coverage", description=__doc__)
    parser.add_argument("--accelerator", default="sim", help="a device that runs in this process; sim unless named")
    parser.add_argument("--narrow", action="store_true", help="operators in few dtypes alone: as in CI")
    parser.add_argument("--only-new", action="store_true", help="record only the cases that the newest map lacks")
    parser.add_argument("--jobs", type=int, default=min(2, os.cpu_count() or 1), help="processes side by side")
    parser.add_argument("--out", type=Path, default=Path("coverage.json"), help="the file that is written")
    options = parser.parse_args(arguments)
    try:
        bench.loaded(options.accelerator)
    except ConformanceError as error:
        print(error, file=sys.stderr)
        return 4
    forks.prepare()
    found = recording.kept(
        accelerator=options.accelerator, narrow=options.narrow, processes=options.jobs, only_new=options.only_new
    )
    known = corpus.read()
    assert known is not None
    data = tables(found, known)
    options.out.write_text(json.dumps(data, indent=1), encoding="utf-8")
    print(text(data), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
