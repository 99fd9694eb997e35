"""A coverage-guided fuzzer on everything that reads a stranger's file: ``python -m tests.fuzz.run -runs=N``.

Half of the inputs are bytes as the fuzzer makes them, half are honest documents that it changes. Whatever is neither
read nor refused in one sentence ends the run with a traceback; so does what takes ten seconds or two gigabytes.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

import atheris

with atheris.instrument_imports(include=["conformance.reports"]):
    from tests.fuzz import blast, documents, targets

HONEST, PACKED = documents.honest(), documents.honest(packed=True)
NAMES = list(targets.TARGETS)


def one_input(data: bytes) -> None:
    """The first byte says what the rest is."""
    kind, rest = (data[0] if data else 0) % 8, data[1:]
    if kind < len(NAMES):
        targets.TARGETS[NAMES[kind]](rest)
        return
    document = documents.mutated(PACKED if kind == 5 else HONEST, _draw(atheris.FuzzedDataProvider(rest)))
    if kind == 6 and len(rest) % 8 == 0:
        targets.shown(document)
    else:
        targets.value(document)


def _draw(provider: Any) -> documents.Draw:
    return lambda limit: int(provider.ConsumeIntInRange(0, limit - 1))


def seeds(folder: Path) -> None:
    """Inputs to begin with: one honest file of each kind, and some changes to change further."""
    for kind, files in blast.honest_files().items():
        for number, data in enumerate(files):
            (folder / f"{kind}{number}").write_bytes(bytes([NAMES.index(kind)]) + data)
    for number in range(64):
        (folder / f"change{number}").write_bytes(
            bytes([4 + number % 4]) + bytes((7 * number + n) % 256 for n in range(40))
        )


def main() -> None:
    """Fuzz until ``-runs`` or ``-max_total_time`` is used up."""
    with tempfile.TemporaryDirectory() as folder:
        seeds(Path(folder))
        words = [
            sys.argv[0],
            *(sys.argv[1:] or ["-runs=100000"]),
            "-timeout=10",
            "-rss_limit_mb=2048",
            "-max_len=2048",
        ]
        atheris.Setup([*words, f"-artifact_prefix={folder}/", folder], one_input)
        atheris.Fuzz()


if __name__ == "__main__":
    main()
