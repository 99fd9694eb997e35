"""Tables of capabilities without a case and kernels without a specification, for docs/areas.md.

``python -m tests.docs.renew`` writes them, with all other generated parts.
"""

from __future__ import annotations

import ast
import json
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from conformance.accelerators.capabilities import VOCABULARY
from conformance.kernels.specifications import specifications
from conformance.plan.bundled import area_names, bundled_cases
from conformance.plan.case import Case
from tests.docs.entry_points import unspecified
from tests.docs.pages import DOCS, ROOT

#: A probe tests a capability only briefly, so it does not count as a case that requires it.
PROBES = "capabilities"
KERNELS = "conformance.kernels"
#: What `conformance coverage --accelerator sim --format json` printed.
COVERAGE = Path(__file__).with_name("coverage.json")
#: Folders of DeepSpeed's tests/unit at commit edaa7221.
DEEPSPEED_AREAS = frozenset(
    {
        "accelerator", "autotuning", "checkpoint", "comm", "compile", "compression", "elasticity", "hybrid_engine",
        "inference", "launcher", "linear", "model_parallelism", "module_inject", "moe", "monitor", "ops", "pipe",
        "profiling", "runtime", "sequence", "sequence_parallelism", "ulysses_alst", "utils", "v1",
    }
)  # fmt: skip


def table(cases: Iterable[Case], areas: Iterable[str]) -> str:
    """Return the generated part of the page."""
    known = list(cases)
    probed = {cell.subject for case in known if case.area == PROBES for cell in case.requires}
    tested = {cell.subject for case in known if case.area != PROBES for cell in case.requires}
    rows = [(name, "a probe" if name in probed else "nothing") for name in VOCABULARY if name not in tested]
    empty = sorted(set(areas) - {case.area for case in known})
    return "\n".join(
        [
            f"{len(rows)} of {len(VOCABULARY)} capabilities have no case that requires them:" if rows else "",
            "",
            "| capability | tested by |",
            "|---|---|",
            *(f"| `{name}` | {instead} |" for name, instead in rows),
            "",
            f"Areas of this suite without a case: {_named(empty)}.",
            "",
            f"Areas of DeepSpeed's unit tests without an area here: {_named(sorted(DEEPSPEED_AREAS - set(areas)))}.",
            "",
            f"Parts of `conformance.kernels` that no case uses: {_named(unused_kernels())}. Only its own tests do.",
            "",
            *kernels(),
            "",
            *overloads(),
        ]
    )


def _named(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names) or "none"


def unused_kernels() -> list[str]:
    """Return the packages of ``conformance.kernels`` that no case and no specification imports, also indirectly."""
    files = {_module(path): path for path in (ROOT / "kernels").rglob("*.py")}
    reached: set[str] = set()
    waiting = [name for path in (ROOT / "conformance" / "suites").rglob("*.py") for name in _imported(path, files)]
    # Builders find the specifications, and vendors' tables and Triton's kernels, by their folder.
    waiting += [name for name in files if name.startswith(f"{KERNELS}.specifications")]
    while waiting:
        name = waiting.pop()
        if name not in reached:
            reached.add(name)
            waiting += _imported(files[name], files)
    packages = {name.split(".")[2] for name in files if name.count(".") > 2} - {"specifications", "vendors", "triton"}
    return sorted(packages - {name.split(".")[2] for name in reached if name.count(".") > 1})


def _module(path: Path) -> str:
    parts = path.relative_to(ROOT / "kernels").with_suffix("").parts
    return ".".join([KERNELS, *(part for part in parts if part != "__init__")])


def _imported(path: Path, files: Mapping[str, Path]) -> list[str]:
    """Return the modules of ``conformance.kernels`` that a file imports, also inside functions."""
    names = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            names += [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        elif isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
    return [name for name in names if name in files]


def kernels() -> list[str]:
    """Return the lines about entry points that training engines load and that have no specification."""
    there = [(kernel.builder, name) for kernel in specifications() for name in (*kernel.attributes, *kernel.companions)]
    missing = list(unspecified(there))
    return [
        f"{sum(len(names) for _, names, _ in missing)} entry points of operator builders have no specification:",
        "",
        "| builder | entry points | why |",
        "|---|---|---|",
        *(f"| `{builder}` | {', '.join(f'`{name}`' for name in names)} | {why} |" for builder, names, why in missing),
    ]


def overloads() -> list[str]:
    """Return the lines about PyTorch's overloads that no case exercises, from the committed coverage."""
    data = json.loads(COVERAGE.read_text(encoding="utf-8"))
    counts, missing = data["overloads"], data["overloads"]["missing"]
    by_reason = Counter(missing.values())
    arguments, layouts, rules = data["arguments"], data["layouts"], data["derivatives"]
    sizes = ", ".join(f"{count} with {size} elements" for size, count in layouts["sizes"].items())
    share = f"{len(missing) / counts['public']:.1%}; {data['cases']:,} cases on `{data['accelerator']}`"
    first = f"{len(missing)} of the {counts['public']:,} overloads that PyTorch's databases reach are not exercised"
    last = (
        f"{len(arguments['never set'])} of {arguments['with a default']:,} arguments with a default are never set to "
        f"another value. Of {rules['subsets']:,} sets of inputs for which a gradient can be asked, "
        f"{len(rules['never asked'])} never are. Of {layouts['inputs']:,} tensor inputs, "
        f"{layouts['seen']['strided']} are seen strided and {layouts['seen']['expanded']} expanded; {sizes}."
    )
    return [
        f"{first} ({share}). `conformance coverage` measures this, and names them:",
        "",
        "| overloads | why |",
        "|---|---|",
        *(f"| {count} | {why} |" for why, count in sorted(by_reason.items())),
        "",
        last,
    ]


def current() -> str:
    """Return the generated part for the installed suite."""
    return table((planned.case for planned in bundled_cases()), area_names())


#: Page, name of a generated part, and the function that makes it.
PARTS: Final = ((DOCS / "areas.md", "gaps", current),)
