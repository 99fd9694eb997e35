"""The call that a process makes now, in a file that outlives the process: a crash and a hang can then name it.

The file is mapped into memory, so a note is a copy of some hundred bytes. The kernel keeps them however the process
ends, also after SIGKILL.
"""

from __future__ import annotations

import mmap
from dataclasses import dataclass
from pathlib import Path
from typing import Final

#: Bytes of the file. A longer note is cut.
_SIZE: Final = 2048
#: Ends a note, in front of what a longer note has left behind it.
_END: Final = b"\0"
#: Separates the fields of a note.
FIELD: Final = "\x1f"
#: First byte of the file: what the process does with the call.
_NOTHING, COPYING, ON_DEVICE, BACKWARD, READING, ON_HOST = range(6)
_WORDS: Final = {
    COPYING: "while its arguments were copied to the device",
    ON_DEVICE: "on the device",
    BACKWARD: "in its backward on the device",
    READING: "while its results were read and compared",
    ON_HOST: "on PyTorch's CPU, for a reference of this call or of the one after it",
}

_map: mmap.mmap | None = None
#: The text in the file. Most notes repeat it: a call is copied, made and compared.
_text = b""


@dataclass(frozen=True)
class LastCall:
    """A call that a process has noted, by one field or more, and what was done with it."""

    fields: tuple[str, ...]
    doing: str


def call_path(folder: Path, worker: str) -> Path:
    """Return the file for the calls of a worker, in a report folder."""
    return folder / "stacks" / f"{worker}.call"


def keep_calls(path: Path) -> None:
    """Keep the notes of this process in a file from now on."""
    global _map
    with path.open("w+b") as file:
        file.truncate(_SIZE)
        _map = mmap.mmap(file.fileno(), _SIZE)


def text_of(text: str) -> bytes:
    """Return the bytes of a note. Several fields are joined by ``FIELD``."""
    return text.encode(errors="replace")[: _SIZE - 2] + _END


def note(text: bytes, doing: int) -> None:
    """Note what this process does with a call, given by its ``text_of``. Does nothing where no file is kept."""
    global _text
    if _map is None:
        return
    if text is not _text:
        _map[1 : len(text) + 1] = _text = text
    _map[0] = doing


def note_step(doing: int) -> None:
    """Note that this process does something else with the same call."""
    if _map is not None and _text:
        _map[0] = doing


def forget() -> None:
    """Note that no call is made: another case begins."""
    global _text
    if _map is not None:
        _text, _map[0] = b"", _NOTHING


def noted() -> LastCall | None:
    """Return the call that this process has noted last, or None."""
    return None if _map is None else _parsed(bytes(_map))


def read_call(path: Path) -> LastCall | None:
    """Return the call that a dead process has noted last, or None."""
    try:
        return _parsed(path.read_bytes())
    except OSError:
        return None


def _parsed(data: bytes) -> LastCall | None:
    text = data[1:].partition(_END)[0].decode(errors="replace")
    words = _WORDS.get(data[0]) if data else None
    return LastCall(tuple(text.split(FIELD)), words) if text and words else None
