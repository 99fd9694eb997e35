"""Checker behind the ``check`` fixture: counts comparisons and keeps metrics for the report."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from conformance.judging.answers import Answers

Number = float | int | str
#: Name of every compared result in an answer. Messages name devices, so they differ from machine to machine.
RESULT = "result"


class Checker:
    """Counter of a case's comparisons. A generated case without a comparison has verified nothing."""

    def __init__(self, answers: Answers | None = None) -> None:
        self.count = 0
        #: Values that a run with a challenge keeps of its results; None without a challenge.
        self.answers = answers
        self.metrics: dict[str, Number] = {}
        #: Names of the families of inputs that an operator has in the profile of this run; None for all.
        self.families: frozenset[str] | None = None
        #: Whether subnormal inputs are judged: the device declares that it keeps them.
        self.subnormals = True
        #: Dtypes in which the device declares the case's operator; None where nothing is declared.
        self.dtypes: frozenset[str] | None = None
        #: Returns whether the device claims each operator that a function calls, for a function and its arguments.
        self.claims: Callable[[Callable[..., Any], Sequence[Any]], bool] = lambda *_: True
        #: Digests of values that must be the same on all ranks, by name.
        self.digests: dict[str, str] = {}
        self._has_answered = False
        #: Makes the metrics that a case has only if it fails; None if it has none.
        self.on_failure: Callable[[], dict[str, str]] | None = None
        #: Selector of the calls that are judged, such as {form=out}; empty for all.
        self.calls = ""
        #: The call of the operator under test that failed, or the last one that was selected; None if there is none.
        self.failed: Any = None
        #: The call that ended the device's context where PyTorch allows it; empty if there was none.
        self.context_ended_by = ""

    def declares(self, dtype: object) -> bool:
        """Return whether the device declares the case's operator in a dtype of torch, or declares none at all."""
        return self.dtypes is None or str(dtype).removeprefix("torch.") in self.dtypes

    def that(self, condition: object, message: str) -> None:
        """Count one comparison; raise AssertionError with ``message`` if ``condition`` is false."""
        self.count += 1
        if not condition:
            raise AssertionError(message)

    def equal(self, actual: Any, expected: Any, message: str) -> None:
        """Compare values with ``==`` and tensors bit for bit (NaN equals NaN); raise AssertionError if they differ.

        A tensor answers a challenge, so ``expected`` must not be computed by the device: use ``agree`` for that.
        """
        both = _is_tensor(actual) and _is_tensor(expected)
        self.agree(self.bits(actual) if both else actual, expected, message)

    def agree(self, actual: Any, other: Any, message: str) -> None:
        """Compare two results of the device, as ``equal`` does. They answer no challenge: devices round differently."""
        same = _same(actual, other)
        # To show tensors takes longer than to compare them.
        self.that(same, "" if same else f"{message}: {_shown(actual)} is not {_shown(other)}")

    def bits(self, tensor: Any) -> Any:
        """Return a result of the device as ``result`` does, for a comparison bit for bit."""
        return tensor if self.answers is None else self.answers.of_bits(tensor)

    def result(self, tensor: Any) -> Any:
        """Return a result of the device on the host, for a comparison with numbers that no device computed.

        With a challenge, the case answers with one element. If another run's answer is judged, that one is in place.
        """
        tensor = tensor.detach().cpu()
        return tensor if self.answers is None else self.answers.of(RESULT, tensor)

    def same_on_all_ranks(self, name: str, value: Any) -> None:
        """Compare a value bit for bit across the ranks of the case.

        The pytest process compares the digests of all ranks, so that no collective under test carries them. ``name``
        identifies the value; ValueError if it is used twice in a case.
        """
        if name in self.digests:
            raise ValueError(f"{name!r} names two comparisons across ranks; give one of them another name")
        self.count += 1
        # The shown value makes a difference readable; the digest covers elements that are not shown.
        self.digests[name] = f"{hashlib.sha256(_bytes(value)).hexdigest()[:16]} {_shown(value)[:200]}"

    def answer(self, device: Any = None) -> None:
        """Keep the case's answer to the challenge as a metric, once; without a challenge do nothing.

        A case that compared no tensor answers with a small computation on ``device``, if one is given.
        AssertionError if another run's answer is judged, and has other values than the challenge asks for.
        """
        if self.answers is None or self._has_answered:
            return
        self._has_answered = True
        if device is not None:
            self.answers.of_device(device)
        # Not counted: a case that compares nothing else has verified nothing.
        if self.answers.missing():
            raise AssertionError("the answer to the challenge does not have the values that it asks for")
        if text := self.answers.text():
            self.metric("answer", text)

    def metric(self, name: str, value: Number) -> None:
        """Keep a number or a short string for the report; TypeError for other types."""
        if not isinstance(value, (int, float, str)):
            raise TypeError(f"metric {name!r} must be a number or a string, not {type(value).__name__}")
        self.metrics[name] = value


def _same(actual: Any, expected: Any) -> bool:
    """Return whether two values are equal; tensors bit by bit, with dtype and shape."""
    if not (_is_tensor(actual) and _is_tensor(expected)):
        return bool(actual == expected)
    import torch

    if actual.dtype != expected.dtype or actual.shape != expected.shape:
        return False
    # torch.equal on bytes: NaN equals itself, and -0.0 differs from 0.0.
    left, right = (tensor.detach().cpu().contiguous().flatten().view(torch.uint8) for tensor in (actual, expected))
    return torch.equal(left, right)


def _is_tensor(value: Any) -> bool:
    return hasattr(value, "untyped_storage")


def _bytes(value: Any) -> bytes:
    """Return bytes that stand for a value. Equal bytes mean equal values."""
    if not _is_tensor(value):
        return repr(value).encode()
    import torch

    data: bytes = value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes()
    # Equal bytes of other dtypes or shapes are other values.
    return f"{value.dtype} {tuple(value.shape)} ".encode() + data


def _shown(value: Any) -> str:
    """Return a value for a message, a tensor with its first eight elements."""
    if _is_tensor(value):
        first = value.detach().flatten()[:8].tolist()
        return f"{value.dtype} {tuple(value.shape)} {first}{' …' if value.numel() > 8 else ''}"
    return repr(value)
