"""G17: the names in the file are plain, and the accelerator is the one that the run and the reviewer name."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from conformance.reports.gate.command_line import typed, words_of
from conformance.reports.gate.evidence import GateEvidence
from conformance.reports.gate.finding import GateFinding, Rule, named, reject
from conformance.reports.model import Report
from conformance.reports.names import fault_of, skeleton
from conformance.reports.plain_text import one_line, plain

#: Names of the built-in accelerators. Nobody else's accelerator may look like one of them.
BUILT_IN: Final = frozenset({"cpu", "cuda", "hpu", "klxpu", "mlu", "mps", "npu", "sdaa", "sim", "supa", "xpu"})
#: Types of their devices, where these are not their names.
DEVICE_TYPES: Final = {"klxpu": "cuda"}
#: Kinds of devices that torch reaches only where it was built for them.
_NEEDS_BUILD: Final = frozenset({"cuda", "xpu"})
#: Characters of a fact about the accelerator, and the number of its kinds of chips.
_LONGEST_FACT: Final = 200
#: Characters of a note, a reason or another fact.
_LONGEST_REMARK: Final = 4_000
_MOST_CHIPS: Final = 64
_PLAIN_SPEC: Final = re.compile(r"[\w.+-]+(:[\w.+-]+)?", re.ASCII)


def check_names(evidence: GateEvidence) -> Iterator[GateFinding]:
    """Return findings of G17: names that are empty, hidden, look like others, or contradict each other."""
    report = evidence.report
    name = report.accelerator.name
    shown = ascii(one_line(name, 60))
    if hidden := list(
        dict.fromkeys(field for field, text in (*_texts(report), *_remarks(report)) if plain(text) != text)
    ):
        yield reject("G17", f"Characters that cannot be seen are in: {named(hidden)}.")
    if blank := [field for field, text in _texts(report) if text and not text.strip()]:
        yield reject("G17", f"Nothing but blanks is in: {named(blank)}.")
    if empty := [field for field in ("name", "spec", "device") if not getattr(report.accelerator, field).strip()]:
        yield reject("G17", f"The accelerator has no {' and no '.join(empty)}.")
    if not report.run.id.strip():
        yield reject("G17", "The run has no id, so the decision cannot say which run it is about.")
    if name.strip() and (fault := fault_of(name)):
        yield reject("G17", f"The accelerator's name {shown} {fault}.")
    elif posed := _posed_as(report):
        yield reject("G17", f"The accelerator's name {shown} looks like {posed}, and its spec and device are others.")
    yield from _check_lengths(report)
    if said := _contradiction(report):
        yield reject("G17", said)
    if evidence.accelerator and name != evidence.accelerator:
        yield reject("G17", f"The report is of {shown}, not of {evidence.accelerator!r}, which is required.")


def _check_lengths(report: Report) -> Iterator[GateFinding]:
    """Reject texts that are longer than what they name, break the line, or are no name at all."""
    if long := [field for field, text in _texts(report) if field.startswith("accel") and len(text) > _LONGEST_FACT]:
        yield reject("G17", f"More than {_LONGEST_FACT} characters are in: {named(long)}.")
    if broken := [field for field, text in _texts(report) if "\n" in text or "\r" in text]:
        yield reject("G17", f"A line break is in: {named(broken)}.")
    if wordy := sorted({field for field, text in _remarks(report) if len(text) > _LONGEST_REMARK}):
        yield reject("G17", f"More than {_LONGEST_REMARK} characters are in: {named(wordy)}.")
    if any(mark in report.accelerator.package for mark in ("/", "\\", "..")):
        yield reject("G17", "The name of the accelerator's package is a path.")
    if len(report.accelerator.device_names) > _MOST_CHIPS:
        yield reject("G17", f"The file names {len(report.accelerator.device_names)} kinds of chips.")


def misleading_name(report: Report) -> str:
    """Return why the accelerator's name could be taken for another one; empty if it could not."""
    name = report.accelerator.name
    if fault := fault_of(name):
        return f"The accelerator's name {one_line(name, 60)!a} {fault}."
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
    yield from ((f"environment.{name}", f"{name}{value}") for name, value in report.environment.variables.items())
    for claim in report.declaration.cells:
        yield from (("declaration", text) for text in (claim.cell, claim.state, claim.detail))


def _remarks(report: Report) -> Iterator[tuple[str, str]]:
    """Yield the texts of the file's head that may be longer than a name."""
    yield "run.id", report.run.id
    yield from (("notes", note) for note in report.notes)
    for known in (report.environment.facts, report.environment.variables):
        yield from ((f"environment.{name}", str(value)) for name, value in known.items())
    yield from (("declaration", text) for claim in report.declaration.cells for text in (claim.reason, claim.source))


def _posed_as(report: Report) -> str:
    """Return the built-in accelerator that the name looks like but is not; empty if it looks like none."""
    accelerator = report.accelerator
    name, own = accelerator.name, {accelerator.spec, accelerator.device.partition(":")[0]}
    looks = {skeleton(name), skeleton(re.split(r"[\W_]+", name, maxsplit=1)[0])}
    return next((known for known in sorted(BUILT_IN - own) if skeleton(known) in looks), "")


def _contradiction(report: Report) -> str:
    """Return a sentence if the command line, the spec and the name are of different accelerators."""
    accelerator = report.accelerator
    spec, name = accelerator.spec, accelerator.name
    asked = typed(words_of(report), "--accelerator")
    # A path is shortened in reports, not always in the same way.
    if asked and spec and asked != spec and not {"/", "…", "\\"} & {*asked, *spec}:
        return f"The run was typed for {one_line(asked, 60)!a}, and the file gives {one_line(spec, 60)!a}."
    type = accelerator.device.partition(":")[0]
    if spec in BUILT_IN and type and type != DEVICE_TYPES.get(spec, spec):
        return f"The accelerator {spec} has a device of another kind: {one_line(accelerator.device, 60)!a}."
    if {spec, spec.removeprefix("torch:")} & _NEEDS_BUILD and accelerator.torch.endswith("+cpu"):
        return f"The accelerator {one_line(spec, 60)!a} cannot run with this torch: {one_line(accelerator.torch, 60)}."
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
        title="names",
        requirement="The names in the file can be read, and look like nobody else's. The command line, the spec, the "
        "device and the name are of one accelerator, and of the required one if the gate is given --accelerator.",
        why="A report is believed for the accelerator that it names. A name that only looks right moves the trust to "
        "another device.",
        fix="Send the report of the required accelerator, as the run wrote it. "
        "Give an accelerator a name of its own, in ASCII.",
        check=check_names,
    ),
)
