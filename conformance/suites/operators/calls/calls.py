"""A call of an operator, as a value: what is called, with which arguments, and what is special about it.

The fields are the call's only identity. The label of a message, the selector of ``--case``, the key by which failures
are grouped and the script of a failure are made of them, and never of the words of a message.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field, fields
from enum import Enum
from typing import Any, Final, TypeVar

import torch

from conformance.numerics.transfer import copied, shared_addresses, widened
from conformance.numerics.trees import mapped, tensors
from conformance.process.last_call import FIELD, text_of

Found = TypeVar("Found")
HOST = torch.device("cpu")
#: What stands between the arrangements of several tensors.
BESIDE: Final = "; "
#: Words of selectors for the texts of labels that are in use most often; other texts are shortened by rule.
WORDS: Final = {
    "non-contiguous": "gaps",
    "with a storage offset": "offset",
    "transposed in memory": "transposed",
    "with a lazy bit": "lazy",
    "transposed, with a lazy bit": "adjoint",
    "expanded along the first dimension": "expanded-first",
    "expanded along the last dimension": "expanded-last",
    "out= variant": "out",
    "out=": "out",
    "out= variant, outputs with gaps": "out-gaps",
    "out= variant with wrong-size outputs": "out-wrong-size",
    "out= variant with integer outputs": "out-integer",
    "in-place variant": "in-place",
}


class Around(Enum):
    """What is around a call."""

    THREAD = "another thread"
    NO_GRAD = "no gradients"
    DETERMINISTIC = "deterministic algorithms"


def unchanged(tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor."""
    return tensor


@dataclass(frozen=True)
class Call:
    """One call of an operator.

    ``number`` and ``source`` say where the arguments come from: the database's samples are numbered from 0 on and have
    no source. ``change`` is what was changed in them, ``arrangement`` how their tensors lie in memory, and ``form``
    which function is called: the plain one, ``out=``, in place, an overload. ``part`` names the arguments that the
    arrangement is about, if it is not all of them.

    ``function`` is called with the arguments and with ``extra``, such as outputs; None is the operator itself.
    ``backward`` is the derivative that is taken of the result, if one is, with numbers drawn from ``seed``.

    ``process`` removes from a result what the operator leaves open, such as the sign of eigenvectors. ``on_host`` holds
    the positions, in the order of ``tensors``, of tensors that stay on the host whatever the device. A ``certain`` call
    is of an operator that draws random numbers, with arguments that leave it one result. ``around`` says where it is
    made, and ``before`` holds calls that are made before it. ``origin`` is the call on the host of which this is a copy
    on a device: nobody writes its tensors.
    """

    number: int
    input: Any
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)
    process: Callable[[Any], Any] | None = None
    broadcasts_input: bool = False
    source: str = ""
    on_host: frozenset[int] = frozenset()
    device: torch.device = HOST
    change: str = ""
    arrangement: str = ""
    part: str = ""
    form: str = ""
    function: Any = None
    extra: Mapping[str, Any] = field(default_factory=dict)
    backward: Any = None
    seed: int = 0
    certain: bool = False
    around: tuple[Around, ...] = ()
    before: tuple[Call, ...] = ()
    origin: Call | None = None

    @classmethod
    def of(cls, number: int, sample: Any) -> Call:
        """Return the database's ``SampleInput`` as a call with this number."""
        process = sample.output_process_fn_grad
        # The default is a lambda that returns its argument; None saves a call for every result.
        is_default = process.__qualname__ == "SampleInput.__init__.<locals>.<lambda>"
        return cls(
            number, sample.input, sample.args, sample.kwargs, None if is_default else process, sample.broadcasts_input
        )

    def with_arguments(self, arguments: Any) -> Call:
        """Return this call with other arguments, given as (input, args, kwargs)."""
        first, args, kwargs = arguments
        return self._with(input=first, args=args, kwargs=kwargs)

    def with_argument(self, place: int | str, value: Any) -> Call:
        """Return this call with another argument after the first one, given by its place or its name."""
        if isinstance(place, str):
            return self._with(kwargs={**self.kwargs, place: value})
        return self._with(args=(*self.args[:place], value, *self.args[place + 1 :]))

    def with_tensor(self, old: torch.Tensor, new: torch.Tensor) -> Call:
        """Return this call with another tensor in every place of ``old``."""
        return self.with_arguments(mapped(self.arguments, lambda leaf: new if leaf is old else leaf))

    def named(self, **names: Any) -> Call:
        """Return this call with other words for its identity. What was found out about its arguments stays."""
        found = self._with(**names)
        found.__dict__["kept"] = self.kept
        if "tensors" in self.__dict__:
            found.__dict__["tensors"] = self.tensors
        return found

    def into(self, form: str, function: Any, **extra: Any) -> Call:
        """Return this call in another form: of this function, with these further arguments, made on the host."""
        return self.named(form=form, function=function, extra=extra)

    def _with(self, **changes: Any) -> Call:
        """Return this call with other fields, as replace() does, which takes longer than the copy of a small tensor."""
        if not changes.keys() <= _FIELDS:
            raise TypeError(f"a call has no {', '.join(sorted(changes.keys() - _FIELDS))}")
        found = object.__new__(type(self))
        known = found.__dict__
        known.update(self.__dict__)
        for name in _FOUND_OUT:
            known.pop(name, None)
        known.update(changes)
        return found

    @property
    def arguments(self) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
        """Return (input, args, kwargs)."""
        return self.input, self.args, self.kwargs

    def on(self, device: torch.device) -> Call:
        """Return a copy of this call on ``device``; the tensors of ``on_host`` stay on the host."""
        stay = [self.tensors[position] for position in self.on_host if position < len(self.tensors)]
        copies: dict[int, torch.Tensor] = {}
        first, args, kwargs = copied(self.arguments, device, stay, self._shared, copies)
        found = self._with(input=first, args=args, kwargs=kwargs, device=device, origin=self.origin or self)
        found.__dict__["tensors"] = [copies[id(tensor)] for tensor in self.tensors]
        if self.extra:
            found.__dict__["extra"] = copied(dict(self.extra), device)
        return found

    @functools.cached_property
    def _shared(self) -> frozenset[int]:
        """Return the addresses of the memory that several tensors of the call share."""
        return shared_addresses(self.tensors)

    def wide(self, change: Callable[[torch.Tensor], torch.Tensor] = unchanged) -> Call:
        """Return this call in float64 or complex128, with ``change`` applied to each widened tensor."""
        return self.with_arguments(widened(self.arguments, change))

    @functools.cached_property
    def tensors(self) -> list[torch.Tensor]:
        """Return all tensors among the arguments, in order."""
        return tensors(self.arguments)

    @property
    def elements(self) -> int:
        """Return how many elements the tensors have together."""
        return sum(tensor.numel() for tensor in self.tensors)

    @property
    def lists(self) -> list[tuple[int | str, tuple[int, ...]]]:
        """Return the arguments that are lists of integers, each with its position behind the input, or its name."""
        given: list[tuple[int | str, Any]] = [*enumerate(self.args), *self.kwargs.items()]
        return [
            (place, tuple(value))
            for place, value in given
            if isinstance(value, (list, tuple)) and value and all(type(item) is int for item in value)
        ]

    def found_out(self, key: Hashable, find: Callable[[], Found]) -> Found:
        """Return what ``find`` has returned for these arguments, and call it the first time.

        Nobody writes a call's tensors, as each run gets a copy. What is kept lives as long as the call.
        """
        if key not in self.kept:
            self.kept[key] = find()
        found: Found = self.kept[key]
        return found

    @functools.cached_property
    def kept(self) -> dict[Hashable, Any]:
        """Return what was found out about these arguments, by key."""
        return {}

    # --- identity -----------------------------------------------------------------------------------------------------

    def __str__(self) -> str:
        return self.label

    @functools.cached_property
    def label(self) -> str:
        """Return the words that messages about this call begin with."""
        shapes = ", ".join(str(tuple(tensor.shape)) for tensor in self.tensors[:4]) or "no tensors"
        sample = f"sample {self.number} (shape {shapes}{', ' + self.source if self.source else ''})"
        arrangement = f"{self.part} {self.arrangement}" if self.part else self.arrangement
        return ", ".join(filter(None, (sample, self.change, self.form, arrangement)))

    @property
    def words(self) -> dict[str, str]:
        """Return the fields of the identity, each as one word; fields without a word are left out."""
        named = {
            "sample": str(self.number),
            "source": self.source,
            "change": self.change,
            "form": self.form,
            "arrangement": f"{self.part} {self.arrangement}" if self.part == "operands" else self.arrangement,
        }
        return {name: word(text) for name, text in named.items() if text}

    @property
    def key(self) -> str:
        """Return the selector of this call, as ``--case 'ID{sample=3,form=out}'`` takes it."""
        return "{" + ",".join(f"{name}={value}" for name, value in self.words.items()) + "}"

    @property
    def is_mixed(self) -> bool:
        """Return whether its tensors lie in memory in different ways: then the strides of a result are open."""
        return BESIDE in self.arrangement

    @functools.cached_property
    def noted(self) -> bytes:
        """Return the note by which a crash or a hang names this call. A copy on a device has that of its origin.

        It holds what the words are made of: to make them takes three times as long, for each call.
        """
        if self.origin is not None:
            return self.origin.noted
        fields = self.number, self.source, self.change, self.part, self.arrangement, self.form
        return text_of(FIELD.join(map(str, (*fields, [tensor.shape for tensor in self.tensors[:4]]))))

    @classmethod
    def of_note(cls, number: str, *words: str) -> Call:
        """Return a call with the words of a noted one. Its tensors have the shapes, and no memory."""
        source, change, part, arrangement, form, shapes = words
        sizes = [[int(size) for size in re.findall(r"\d+", shape)] for shape in re.findall(r"Size\((.*?)\)", shapes)]
        given = [torch.empty(size, device="meta") for size in sizes]
        return cls(int(number), given, source=source, change=change, part=part, arrangement=arrangement, form=form)


#: Names of what a call consists of, and of what is found out about it and kept beside that.
_FIELDS = frozenset(each.name for each in fields(Call))
_FOUND_OUT = tuple(name for name, kept in vars(Call).items() if isinstance(kept, functools.cached_property))


@functools.lru_cache(maxsize=4096)
def word(text: str) -> str:
    """Return a text of a label as one word of letters, digits, points and hyphens."""
    usual = WORDS.get(text)
    if usual is None:
        for words, short in WORDS.items():
            if len(words) > len("out=") and words in text:
                text = text.replace(words, short)
        usual = re.sub(r"[^A-Za-z0-9.]+", "-", text.replace("-inf", "minus inf").replace("torch.", "")).strip("-")
    return usual.lower()
