"""Families of models as data (families.toml): each is built with random weights, and nothing is downloaded."""

from __future__ import annotations

import copy
import fnmatch
import functools
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from conformance.numerics.budgets import load_table
from conformance.suites.parameters import spread_constants

from . import libraries
from .inputs import KINDS, Kind

#: Probability of dropout where a restart has to continue the generator.
DROPOUT = 0.1
#: Standard deviation by which a constant parameter is spread.
_SPREAD = 0.02
#: Standard deviation of wide weights.
_WIDE = 0.25


@dataclass(frozen=True)
class Family:
    """One section of families.toml, which explains each field."""

    name: str
    data: str
    model: str = ""
    config: str = ""
    own_shape: bool = False
    arguments: dict[str, Any] = field(default_factory=dict, hash=False, compare=False)
    dropout: tuple[str, ...] = ()
    optimizer: str = "adamw"
    sparse: bool = False
    routed: tuple[str, ...] = ()
    repeated: str = ""
    graphs: int = 1
    graphs_apart: int = 1
    traced: dict[str, Any] = field(default_factory=dict, hash=False, compare=False)
    traced_length: int | None = None
    needs: tuple[str, ...] = ()

    @property
    def kind(self) -> Kind:
        """Return the kind of data that the family learns from."""
        return KINDS[self.data]

    @property
    def rate(self) -> float:
        """Return the learning rate."""
        return 3e-3 if self.optimizer == "adamw" else 0.05

    def is_routed(self, parameter: str) -> bool:
        """Tell whether a parameter belongs to a router or to its experts."""
        return any(fnmatch.fnmatch(parameter, pattern) for pattern in self.routed)


@functools.cache
def families() -> dict[str, Family]:
    """Return all families by name."""
    rows = load_table(__file__, "families.toml")["family"]
    return {name: Family(name, **{key: _frozen(value) for key, value in row.items()}) for name, row in rows.items()}


def _frozen(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def build(
    family: Family,
    *,
    dropout: float = 0.0,
    grouped: bool = True,
    wide: bool = False,
    traced: bool = False,
    **changes: Any,
) -> nn.Module:
    """Return a float32 model on the host with the family's initial weights; ``changes`` go into its configuration.

    Experts are computed one by one unless they are ``grouped``. ``wide`` weights make a model that generates many
    different tokens. A ``traced`` model has one layer of each kind.
    """
    key = (family.name, dropout, grouped, wide, traced, tuple(sorted(changes.items())))
    return copy.deepcopy(_template(key))


@functools.lru_cache(maxsize=24)
def _template(key: tuple[Any, ...]) -> nn.Module:
    name, dropout, grouped, wide, traced, changes = key
    with torch.random.fork_rng(devices=[]):  # the weights do not depend on the case, and do not change its generator
        torch.manual_seed(0)
        # A tied head prefers the token that it has just read.
        untied = {"tie_word_embeddings": False} if wide else {}
        model = _new(families()[name], dropout, grouped, traced, {**untied, **dict(changes)})
        if wide:
            _widen(model)
        return model


def _new(family: Family, dropout: float, grouped: bool, traced: bool, changes: dict[str, Any]) -> nn.Module:
    if not family.model:
        return _own(family, traced)
    config = _config(family, dropout, traced, changes)
    if family.routed and not grouped:
        config._experts_implementation = "eager"
    model = libraries.member("transformers", family.model)(config)
    spread_constants(model, _SPREAD)
    return model


def _config(family: Family, dropout: float, traced: bool, changes: dict[str, Any]) -> Any:
    """Return the configuration of a family."""
    table = load_table(__file__, "families.toml")
    shape = {} if family.own_shape else table["shape"]
    tokens = (
        {} if family.data in ("audio", "captions") else dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"))
    )
    off = dict.fromkeys(family.dropout, dropout)
    arguments = {**tokens, **shape, **family.arguments, **off, **changes}
    if traced:
        fewer = family.traced if family.own_shape else {**table["traced"], **family.traced}
        arguments = _merged(arguments, fewer)
    return libraries.member("transformers", family.config)(**copy.deepcopy(arguments))


def _merged(arguments: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments with the changes, also inside of tables."""
    new = {
        name: _merged(arguments[name], value) if isinstance(value, dict) else value for name, value in changes.items()
    }
    return {**arguments, **new}


def _widen(model: nn.Module) -> None:
    """Spread the weights of products and tables; a state space keeps the matrix that makes it stable."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim >= 2 and not name.endswith("A_log"):
                parameter.normal_(std=_WIDE)


def _own(family: Family, traced: bool) -> nn.Module:
    from .models.recommender import Recommender
    from .models.unet import UNet

    return UNet(one_stage=traced) if family.name == "unet" else Recommender()
