"""Signatures over a report's bytes, made and checked by OpenSSH. They prove the author, not the truth of a report.

The signed message is one line with the SHA-256 of the file.
"""

from __future__ import annotations

import base64
import hashlib
import re
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from conformance.base.errors import JournalError, UsageError
from conformance.reports.gate.evidence import SignatureCheck
from conformance.reports.json_files import read_capped
from conformance.reports.loading import ReportFile
from conformance.reports.plain_text import one_line

#: Namespace of ssh-keygen. Signatures that were made for other purposes, such as commits, are rejected.
NAMESPACE: Final = "conformance-report"
#: Bytes. An SSH signature has one or two thousand.
_MAX_SIGNATURE: Final = 64 * 1024
_MAX_SIGNERS: Final = 1024 * 1024
#: First bytes of a signature.
_MAGIC: Final = b"SSHSIG"
#: Options of an allowed signer that limit when, and for what, the key is valid.
_LIMITS: Final = re.compile(r'\b(valid-after|valid-before|namespaces)="([^"]*)"')
#: A line: principals, perhaps in quotes, then the rest. A principal that is a pattern, or that excludes somebody.
_LINE: Final = re.compile(r'\s*("[^"]*"|\S+)\s+(.*)')
_PATTERN: Final = re.compile(r"[*?!]")
#: Stands for all principals of a line while ssh-keygen checks its key, its limits and the signature.
_ANYBODY: Final = "anybody"
#: ssh-keygen may wait for an agent, or for a touch of a hardware key.
_SECONDS: Final = 30


def signature_path(report: Path) -> Path:
    return report.with_name(report.name + ".sig")


def message(sha256: str) -> bytes:
    """Return the message that is signed for a report file with this hash."""
    return f"conformance-report sha256:{sha256}\n".encode()


def sign(report: ReportFile, key: Path) -> Path:
    """Sign a report with a private key, or with a public one whose private key an agent has; return the path."""
    done = _ssh_keygen(["-Y", "sign", "-q", "-n", NAMESPACE, "-f", str(key)], message(report.sha256))
    if done.returncode:
        raise JournalError(f"ssh-keygen could not sign with {key}: {_said(done)}.")
    path = signature_path(report.path)
    try:
        path.write_bytes(done.stdout)
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}.") from None
    return path


def check(
    report: ReportFile, signature: Path | None, allowed_signers: Path, revoked_keys: Path | None = None
) -> SignatureCheck:
    """Check that the bytes of the report are signed by a principal of the file of allowed signers.

    Every line of the signature's key counts, with all of its principals. ``revoked_keys`` is a file of public keys, or
    a key revocation list of ssh-keygen.
    """
    path = signature or signature_path(report.path)
    if not path.is_file():
        return SignatureCheck(problem=f"The report is not signed: there is no {path.name} beside it.")
    armored = _text_of(read_capped(path, _MAX_SIGNATURE, "signature"))
    allowed = _text_of(read_capped(allowed_signers, _MAX_SIGNERS, "file of allowed signers"))
    revoked = b"" if revoked_keys is None else read_capped(revoked_keys, _MAX_SIGNERS, "file of revoked keys")
    with tempfile.TemporaryDirectory() as folder:
        # ssh-keygen reads files itself. These are the bytes that were read here, without marks of Windows editors.
        files = _Files(Path(folder), message(report.sha256), armored, allowed, revoked)
        return _checked(files, _public_key(armored.encode()))


@dataclass(frozen=True)
class _Files:
    """Contents of the files that ssh-keygen reads, and the folder for them."""

    folder: Path
    message: bytes
    signature: str
    allowed: str
    revoked: bytes

    def verify(self, line: str) -> str:
        """Return why a signer's line does not verify the signature; empty if it does. Its principal is ``_ANYBODY``."""
        done = _ssh_keygen(
            ["-Y", "verify", "-n", NAMESPACE, "-f", self._file("allowed", line), "-I", _ANYBODY, *self._rest()],
            self.message,
        )
        return _said(done) if done.returncode else ""

    def is_revoked(self, line: str) -> bool:
        """Return whether only the list of revoked keys keeps a line from verifying the signature."""
        return bool(self.revoked) and bool(self.verify(line)) and not replace(self, revoked=b"").verify(line)

    def certified(self) -> tuple[str, ...]:
        """Return the principals of a signature by a certificate, whose authority the file of signers names."""
        signature = self._file("signature", self.signature)
        words = ["-Y", "find-principals", "-f", self._file("allowed", self.allowed), "-s", signature]
        done = _ssh_keygen(words, b"")
        found = done.stdout.decode("utf-8", errors="replace").splitlines() if not done.returncode else []
        return tuple(name for line in found for name in _names(line) if not self._refused(name))

    def _refused(self, name: str) -> bool:
        words = ["-Y", "verify", "-n", NAMESPACE, "-f", str(self.folder / "allowed"), "-I", name, *self._rest()]
        return bool(_ssh_keygen(words, self.message).returncode)

    def _rest(self) -> list[str]:
        """Return the options for the signature and the revoked keys."""
        words = ["-s", self._file("signature", self.signature)]
        if self.revoked:
            (self.folder / "revoked").write_bytes(self.revoked)
            words += ["-r", str(self.folder / "revoked")]
        return words

    def _file(self, name: str, text: str) -> str:
        (self.folder / name).write_bytes(text.encode())
        return str(self.folder / name)


def _checked(files: _Files, key: str) -> SignatureCheck:
    """Return the check over all lines of the key: the principals of those that verify, or why none does."""
    lines = [line for line in files.allowed.splitlines() if key and key in line.split() and not _is_comment(line)]
    valid: list[str] = []
    said: dict[str, str] = {}
    for line in lines:
        principals, rest = _split(line)
        if problem := files.verify(f"{_ANYBODY} {rest}\n"):
            said[line] = problem
        else:
            valid += _names(principals)
    if len(said) < len(lines):
        return _signed_by(valid, key)
    if not lines:
        certified = files.certified()
        if certified:
            return _signed_by(certified, key)
        return SignatureCheck(problem="The report is not signed by an allowed signer: none of them has the key.")
    return SignatureCheck(problem=_refusal(files, lines[0], said[lines[0]], key))


def _signed_by(names: Sequence[str], key: str) -> SignatureCheck:
    """Return the check of a valid signature. A key whose lines have patterns alone is named by its fingerprint."""
    principals = tuple(dict.fromkeys(one_line(name, 200) for name in names)) or (_fingerprint(key),)
    return SignatureCheck(", ".join(principals), principals=principals)


def _refusal(files: _Files, line: str, said: str, key: str) -> str:
    """Return why a line with the signature's key does not make it valid."""
    principals, rest = _split(line)
    who = ", ".join(_names(principals)) or _fingerprint(key)
    if files.is_revoked(f"{_ANYBODY} {rest}\n"):
        return f"The report is signed with a key of {one_line(who, 200)} that is revoked."
    limits = one_line(", ".join(f"{name} {value}" for name, value in _LIMITS.findall(line)), 120)
    unlimited = f"{_ANYBODY} {_LIMITS.sub('', rest).strip(', ')}\n"
    if limits and not files.verify(unlimited):
        return f"The report is signed with a key of {one_line(who, 200)} that is not allowed now: {limits}."
    return f"The signature of {one_line(who, 200)} does not verify: {said}."


def _text_of(data: bytes) -> str:
    """Return a text file as text, whatever marks and line ends an editor has put into it."""
    encoding = "utf-16" if data[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig"
    return data.decode(encoding, errors="replace").replace("\r\n", "\n").replace("\r", "\n")


def _is_comment(line: str) -> bool:
    return line.lstrip().startswith("#")


def _split(line: str) -> tuple[str, str]:
    """Return the principals of a line, and the rest: options, kind of key and key. Principals may stand in quotes."""
    match = _LINE.match(line)
    return (match[1].strip('"'), match[2]) if match else ("", line)


def _names(principals: str) -> list[str]:
    """Return the names among the principals of a line. Patterns, and names that they exclude, are left out."""
    found = [name.strip() for name in principals.split(",")]
    return [name for name in found if name and not _PATTERN.search(name)]


def _fingerprint(key: str) -> str:
    """Return the fingerprint of a public key, as ssh-keygen prints it."""
    digest = hashlib.sha256(base64.b64decode(key)).digest() if key else b""
    return f"SHA256:{base64.b64encode(digest).decode().rstrip('=')}"


def _public_key(armored: bytes) -> str:
    """Return the public key in a signature as files of keys write it; empty if the signature is malformed.

    The format is in PROTOCOL.sshsig of OpenSSH: the magic bytes, a version, and the key with its length.
    """
    text = b"".join(line for line in armored.splitlines() if not line.startswith(b"-----"))
    try:
        blob = base64.b64decode(text, validate=True)
    except ValueError:
        return ""
    start = len(_MAGIC) + 8
    length = int.from_bytes(blob[start - 4 : start], "big")
    if not blob.startswith(_MAGIC) or not 0 < length <= len(blob) - start:
        return ""
    return base64.b64encode(blob[start : start + length]).decode()


def _ssh_keygen(words: list[str], data: bytes) -> subprocess.CompletedProcess[bytes]:
    """Run ssh-keygen on ``data``. Raises ``JournalError`` if it is missing or does not answer in time."""
    program = shutil.which("ssh-keygen")
    if program is None:
        raise JournalError("there is no ssh-keygen here; install OpenSSH 8.1 or newer to sign and to verify.")
    try:
        return subprocess.run([program, *words], input=data, capture_output=True, timeout=_SECONDS, check=False)  # noqa: S603
    except subprocess.TimeoutExpired:
        raise JournalError(f"ssh-keygen did not answer within {_SECONDS} seconds.") from None


def _said(done: subprocess.CompletedProcess[bytes]) -> str:
    text = (done.stderr or done.stdout).decode("utf-8", errors="replace").strip()
    last = text.splitlines()[-1].rstrip(".") if text else "it said nothing"
    # The name of a file that was written for ssh-keygen means nothing to people.
    return one_line(re.sub(r"^/\S+/allowed:\d+: ", "its line has ", last), 200)
