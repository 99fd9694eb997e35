"""Many inputs quickly, without guidance: honest files with a few bytes or values changed, from a seed.

``python -m tests.fuzz.blast 1000000`` reads a million of them. A traceback, or an input that takes longer than ten
seconds, ends it with the number of the input; the same seed gives the same inputs.
"""

from __future__ import annotations

import argparse
import gzip
import json
import pickle
import random
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable
from typing import Any, Final

from tests.fuzz import documents, targets
from tests.reports.gate import world

JUNIT: Final = (
    b'<testsuites><testsuite name="s"><testcase classname="a.b" name="c" time="1"><failure message="m">t</failure>'
    b'</testcase><testcase file="x/y.py" name="d"><skipped/></testcase></testsuite></testsuites>'
)
_SECONDS: Final = 10.0
_TOKENS: Final = (*(bytes([sign]) for sign in b'{}[]",:-<>&=\n\xff'), b"\\u0000", b"1e999", b"null", b"'''", b"<!--")


def honest_files() -> dict[str, list[bytes]]:
    """Small honest files of each kind."""
    report, packed = documents.honest(), documents.honest(packed=True)
    small = json.dumps({**report, "cases": report["cases"][:2]}).encode()
    tiny = json.dumps({**packed, "rows": packed["rows"][:2]}).encode()
    toml = world.toml(world.waiver("a.b", "c.*"), world.waiver("d")).encode()
    manifest = world.dump(world.manifest(world.PLAN[:2]))
    return {
        "report": [small, tiny],
        "waivers": [toml],
        "junit": [JUNIT],
        "manifest": [manifest, gzip.decompress(manifest)],
    }


def changed_bytes(data: bytes, draw: random.Random) -> bytes:
    """The data with one to six bytes or tokens replaced, dropped, doubled or put in."""
    text = bytearray(data)
    for _ in range(draw.randint(1, 6)):
        place = draw.randrange(len(text) + 1)
        action = draw.randrange(5)
        if action == 0:
            del text[place : place + draw.choice((1, 1, 2, 8, 64))]
        elif action == 1:
            text[place:place] = draw.choice(_TOKENS)
        elif action == 2:
            text[place:place] = text[place : place + draw.choice((1, 4, 32))] * draw.choice((1, 2, 40))
        elif action == 3 and place < len(text):
            text[place] = draw.randrange(256)
        else:
            other = draw.randrange(len(text) + 1)
            text[place:place] = text[other : other + 16]
    return bytes(text)


class Blast:
    """Makes inputs and feeds them."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.files = honest_files()
        whole = documents.honest()
        chosen = [{**whole, "cases": whole["cases"][:3]}, whole, documents.honest(packed=True)]
        # A copy is made for each input, and copy.deepcopy would take longer than reading it.
        self.documents = [pickle.dumps(one) for one in chosen]
        self.fed: Counter[str] = Counter()

    def one(self) -> Callable[[], None]:
        """The next input, ready to be read."""
        draw = self.random
        if draw.random() < 0.5:
            kind = draw.choice(list(self.files))
            data = changed_bytes(draw.choice(self.files[kind]), draw)
            self.fed[kind] += 1
            return lambda: targets.TARGETS[kind](data)
        document = documents.changed(pickle.loads(draw.choices(self.documents, (6, 1, 2))[0]), draw.randrange)
        target: Callable[[Any], None] = targets.shown if draw.random() < 0.04 else targets.value
        self.fed[target.__name__] += 1
        return lambda: target(document)


def seconds_of(feed: Callable[[], None]) -> float:
    """How long reading an input takes. Where the wall clock says too long, processor time decides: machines are busy.

    Asking for processor time costs as much as reading does, so it is not asked each time.
    """
    at = time.perf_counter()
    feed()
    spent = time.perf_counter() - at
    if spent <= _SECONDS:
        return spent
    at = time.process_time()
    feed()
    return time.process_time() - at


def main() -> int:
    """Feed as many inputs as were asked for; 1 if one of them was not read or refused."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("inputs", type=int, nargs="?", default=1_000_000)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    blast, began = Blast(arguments.seed), time.monotonic()
    slowest = 0.0
    for number in range(1, arguments.inputs + 1):
        feed = blast.one()
        try:
            spent = seconds_of(feed)
        except Exception:
            traceback.print_exc()
            sys.stderr.write(f"input {number} of seed {arguments.seed} was neither read nor refused\n")
            return 1
        slowest = max(slowest, spent)
        if slowest > _SECONDS:
            sys.stderr.write(f"input {number} of seed {arguments.seed} took {slowest:.1f} s\n")
            return 1
        if number % 50_000 == 0:
            print(
                f"{number} inputs in {time.monotonic() - began:.0f} s, the slowest {slowest * 1000:.0f} ms", flush=True
            )
    print(f"{arguments.inputs} inputs, all read or refused: {dict(blast.fed)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
