"""G17: the names in the file are plain, and the accelerator is the one that the run and the reviewer name."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from typing import Final

from conformance.reports.gate.command_line import typed
from conformance.reports.gate.evidence import GateEvidence
from conformance.reports.gate.finding import GateFinding, Rule, named, reject
from conformance.reports.model import Report
from conformance.reports.plain_text import one_line, plain

#: Names of the built-in accelerators. Nobody else's accelerator may look like one of them.
BUILT_IN: Final = frozenset({"cpu", "cuda", "hpu", "klxpu", "mlu", "mps", "npu", "sdaa", "sim", "supa", "xpu"})
#: Types of their devices, where these are not their names.
DEVICE_TYPES: Final = {"klxpu": "cuda"}
#: Characters that look alike in many fonts, as the one that stands for them.
_ALIKE: Final = str.maketrans({"0": "o", "1": "l", "i": "l", "|": "l", "5": "s", "3": "e"})
#: Scripts whose letters do not look like Latin ones.
_UNLIKE_LATIN: Final = ("CJK UNIFIED", "HIRAGANA", "KATAKANA", "HANGUL")
#: The published matrix adds this to the title of a column that no vendor sent.
_UPSTREAM: Final = "upstream"
_PLAIN_SPEC: Final = re.compile(r"[\w.+-]+(:[\w.+-]+)?", re.ASCII)


def check_names(evidence: GateEvidence) -> Iterator[GateFinding]:
    """Return findings of G17: names that are empty, hidden, look like others, or contradict each other."""
    report = evidence.report
    name = report.accelerator.name
    shown = ascii(one_line(name, 60))
    if hidden := [field for field, text in _texts(report) if plain(text) != text]:
        yield reject("G17", f"Characters that cannot be seen are in: {named(hidden)}.")
    if empty := [field for field in ("name", "spec", "device") if not getattr(report.accelerator, field).strip()]:
        yield reject("G17", f"The accelerator has no {' and no '.join(empty)}.")
    if not report.run.id.strip():
        yield reject("G17", "The run has no id, so the decision cannot say which run it is about.")
    if not _is_plain_name(name):
        yield reject("G17", f"The accelerator's name {shown} has letters that look like others, or odd blanks.")
    elif posed := _posed_as(report):
        yield reject("G17", f"The accelerator's name {shown} looks like {posed}, and its spec and device are others.")
    if said := _contradiction(report):
        yield reject("G17", said)
    if evidence.accelerator and name != evidence.accelerator:
        yield reject("G17", f"The report is of {shown}, not of {evidence.accelerator!r}, which is required.")


def misleading_name(report: Report) -> str:
    """Return why the accelerator's name could be taken for another one; empty if it could not."""
    name = report.accelerator.name
    if not name.strip():
        return "The accelerator has no name."
    if plain(name) != name or not _is_plain_name(name):
        return f"The accelerator's name {one_line(name, 60)!a} has letters that look like others, or odd blanks."
    posed = _posed_as(report)
    return f"The accelerator's name {one_line(name, 60)!a} looks like {posed}, and it is not." if posed else ""


def _texts(report: Report) -> Iterator[tuple[str, str]]:
    """Yield the texts of the file's head that people read, each with the name of its field."""
    accelerator = report.accelerator
    for field, value in vars(accelerator).items():
        for text in value if isinstance(value, tuple) else (value,):
            if isinstance(text, str):
                yield f"accelerator.{field}", text
    yield "run.id", report.run.id
    yield from (("run.invocation.argv", word) for word in report.run.invocation.argv)
    yield from ((f"environment.{fact}", f"{fact}{value}") for fact, value in report.environment.facts.items())
    for claim in report.declaration.cells:
        yield from (("declaration", text) for text in (claim.cell, claim.state, claim.detail))


def _is_plain_name(name: str) -> bool:
    """Return whether a name has one blank between its words, and no letter that may pass for a Latin one."""
    if name != " ".join(name.split()) or unicodedata.normalize("NFKC", name) != name:
        return False
    return all(c.isascii() or unicodedata.name(c, "").startswith(_UNLIKE_LATIN) for c in name)


def _posed_as(report: Report) -> str:
    """Return the built-in accelerator, or the column of the matrix, that the name looks like but is not."""
    accelerator = report.accelerator
    name = accelerator.name.casefold()
    if _UPSTREAM in re.split(r"[^a-z]+", name):
        return f"a column of the published matrix ({_UPSTREAM})"
    own = {accelerator.spec, accelerator.device.partition(":")[0]}
    for text in (name, re.split(r"[\W_]+", name, maxsplit=1)[0]):
        for known in sorted(BUILT_IN - own):
            if text.translate(_ALIKE) == known.translate(_ALIKE):
                return known
    return ""


def _contradiction(report: Report) -> str:
    """Return a sentence if the command line, the spec and the name are of different accelerators."""
    accelerator = report.accelerator
    spec, name = accelerator.spec, accelerator.name
    asked = typed(report.run.invocation.argv, "--accelerator")
    # A path is shortened in reports, not always in the same way.
    if asked and spec and asked != spec and not {"/", "…", "\\"} & {*asked, *spec}:
        return f"The run was typed for {one_line(asked, 60)!a}, and the file gives {one_line(spec, 60)!a}."
    type = accelerator.device.partition(":")[0]
    if spec in BUILT_IN and type and type != DEVICE_TYPES.get(spec, spec):
        return f"The accelerator {spec} has a device of another kind: {one_line(accelerator.device, 60)!a}."
    if not _PLAIN_SPEC.fullmatch(spec) or spec == "auto" or not _is_named_by(spec):
        return ""
    expected = spec.replace(":", "-")
    if name == expected or re.match(rf"{re.escape(expected)}[^\w-]", name):
        return ""
    return f"The accelerator {one_line(spec, 60)!a} has another name in the file: {one_line(name, 60)!a}."


def _is_named_by(spec: str) -> bool:
    """Return whether the spec alone gives the name. An object of a vendor's module has its own."""
    return ":" not in spec or spec.startswith(("deepspeed:", "torch:"))


RULES = (
    Rule(
        "G17",
        requirement="The names in the file can be read, and look like nobody else's. The command line, the spec, the "
        "device and the name are of one accelerator, and of the required one if the gate is given --accelerator.",
        why="A report is believed for the accelerator that it names. A name that only looks right moves the trust to "
        "another device.",
        fix="Send the report of the required accelerator, as the run wrote it. "
        "Give an accelerator a name of its own, in ASCII.",
        check=check_names,
    ),
)
