"""Readers of skip lists. Files are untrusted: Python is parsed, never executed; YAML is loaded by the safe loader."""

from __future__ import annotations

import ast
import importlib
import io
import itertools
import json
import re
import tokenize
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from conformance.base.errors import UsageError
from conformance.reports.plain_text import one_line

#: Bytes of one file. The largest known list has 60 kB.
_MOST_BYTES = 4 << 20
#: Entries of one file. All lists of the largest known backend have 822.
_MOST_ENTRIES = 50_000
#: Modes of torch-spyre's tests that nobody wants to pass.
_HIDING = ("skip", "xfail", "xfail_strict")
#: Names whose value is a list in PyTorch's own form, as attributes of a class or arguments of set_test_configs().
_OWN_FORM = ("test_exclusions", "op_overrides", "op_allowlist")
#: Parts of the names that backends give to dictionaries of what they skip.
_LIST_NAMES = ("skip", "xfail", "disabled")

#: Key of a list of disabled tests, which PyTorch's test runner reads: a test, its module and its class.
_DISABLED = re.compile(r"(\w+) \((?:([\w.]+)\.)?(\w+)\)")


@dataclass(frozen=True)
class Entry:
    """One entry of a skip list.

    ``name`` is part of a test's name, or a regular expression if ``is_pattern``; without one, the entry is about
    ``operator`` in ``dtypes`` (all if empty). ``test_class`` and ``test_file`` limit it. ``comment`` is the list's own.
    ``is_whole`` says that the name is the whole name of one test.
    """

    where: str
    text: str
    name: str = ""
    operator: str = ""
    dtypes: tuple[str, ...] = ()
    test_class: str = ""
    test_file: str = ""
    comment: str = ""
    is_pattern: bool = False
    is_whole: bool = False
    allows: bool = False


def read(path: Path) -> list[Entry]:
    """Return the entries of a list; raise UsageError in one sentence for a file that cannot be read."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}. Name a file with a skip list.") from None
    if len(data) > _MOST_BYTES:
        raise UsageError(f"{path} has {len(data)} bytes, and a skip list has at most {_MOST_BYTES}. Name another file.")
    try:
        text = data.decode()
    except UnicodeDecodeError:
        raise UsageError(f"{path} is no text in UTF-8. Name a file with a skip list.") from None
    readers = {".yaml": _yaml, ".yml": _yaml, ".json": _json}
    entries = readers.get(path.suffix, _python)(path, text)
    # Aliases of YAML make a few bytes many entries.
    found = list(itertools.islice(entries, _MOST_ENTRIES + 1))
    if len(found) > _MOST_ENTRIES:
        raise UsageError(f"{path} has more than {_MOST_ENTRIES} entries. Name the parts of it as several files.")
    return found


# --- Python ---------------------------------------------------------------------------------------------------------


def _python(path: Path, text: str) -> Iterator[Entry]:
    """Yield the entries of a Python file in any of the known forms."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        line = getattr(error, "lineno", None)
        at = f", line {line}" if line else ""
        raise UsageError(f"{path}{at} is no valid Python: {getattr(error, 'msg', error)}. Correct the file.") from None
    reader, has_list = _PythonReader(path, _comments(text)), False
    for node in ast.walk(tree):
        for name, value in _named_values(node):
            has_list = has_list or name in _OWN_FORM or (isinstance(value, ast.Dict) and _is_list(name))
            yield from reader.entries(name, value)
    if not has_list:
        raise UsageError(
            f"{path} has no skip list in a known form: {', '.join(_OWN_FORM)}, or a dictionary whose name contains "
            f"{', '.join(_LIST_NAMES)}. Name a file with a skip list."
        )


def _is_list(name: str) -> bool:
    """Return whether a dictionary of that name is a skip list."""
    return any(part in name.lower() for part in _LIST_NAMES)


def _named_values(node: ast.AST) -> Iterator[tuple[str, ast.expr]]:
    """Yield the names that a statement or call gives to values."""
    if isinstance(node, ast.Assign):
        yield from ((target.id, node.value) for target in node.targets if isinstance(target, ast.Name))
        yield from ((target.attr, node.value) for target in node.targets if isinstance(target, ast.Attribute))
    elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value is not None:
        yield node.target.id, node.value
    elif isinstance(node, ast.Call):
        yield from ((keyword.arg, keyword.value) for keyword in node.keywords if keyword.arg in _OWN_FORM)


def _comments(text: str) -> dict[int, str]:
    """Return the comment behind code by its line, and a comment alone on its line by the negative number of it."""
    found: dict[int, str] = {}
    alone: dict[int, str] = {}
    try:
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type == tokenize.COMMENT:
                words = token.string.lstrip("# ").strip()
                (alone if token.line.lstrip().startswith("#") else found)[token.start[0]] = words
    except (tokenize.TokenError, SyntaxError):
        return {}
    return {**found, **{-line: words for line, words in alone.items()}}


class _PythonReader:
    """Reads the values of one Python file."""

    def __init__(self, path: Path, comments: dict[int, str]) -> None:
        self._path, self._comments = path, comments

    def entries(self, name: str, value: ast.expr) -> Iterator[Entry]:
        """Yield the entries of a value under its name."""
        if name == "op_allowlist":
            yield from (self._entry(node, text, operator=text, allows=True) for node, text in _strings(value))
        elif isinstance(value, ast.Dict) and name == "test_exclusions":
            yield from self._exclusions(value)
        elif isinstance(value, ast.Dict) and name == "op_overrides":
            yield from self._overrides(value)
        elif isinstance(value, ast.Dict) and _is_list(name):
            if "disabled" in name.lower():
                yield from self._exclusions(value)
            elif _names_operators(value):
                yield from self._operators(value)
            else:
                yield from self._files(value)

    def _exclusions(self, value: ast.Dict) -> Iterator[Entry]:
        """Yield the tests that are excluded by class. A name that is no word is a pattern of torch_xla."""
        for key, names in zip(value.keys, value.values, strict=True):
            test_class = _text(key)
            for node, text in _strings(names):
                whole = "" if text == "*" else text
                is_pattern = bool(re.search(r"\W", whole))
                text = f"{test_class}.{text}"
                yield self._entry(node, text, name=whole, test_class=test_class, is_pattern=is_pattern)

    def _operators(self, value: ast.Dict) -> Iterator[Entry]:
        """Yield the operators that are expected to fail, or are skipped, in their dtypes. None is all dtypes."""
        for key, listed in zip(value.keys, value.values, strict=True):
            if key is None:
                continue  # another dictionary, which is read at its own place
            operator, dtypes = _text(key), tuple(_dtypes(listed))
            text = f"{operator}[{', '.join(dtypes) or 'all dtypes'}]"
            yield self._entry(key, text, operator=operator, dtypes=dtypes)

    def _overrides(self, value: ast.Dict) -> Iterator[Entry]:
        for key, decorators in zip(value.keys, value.values, strict=True):
            operator = _text(key)
            calls = [node for node in ast.walk(decorators) if _called(node) in ("DecorateInfo", "skip", "xfail")]
            infos = [call for call in calls if _called(call) == "DecorateInfo"] or calls
            for call in infos:
                assert isinstance(call, ast.Call)
                classes = [_text(argument) for argument in call.args[1:3]] if _called(call) == "DecorateInfo" else []
                given = {keyword.arg: keyword.value for keyword in call.keywords}
                dtypes = tuple(_dtypes(given["dtypes"])) if "dtypes" in given else ()
                text = f"{operator}[{', '.join(dtypes) or 'all dtypes'}]"
                yield self._entry(
                    call,
                    text,
                    operator=operator,
                    dtypes=dtypes,
                    test_class=_text(given.get("cls_name")) or (classes[0] if classes else ""),
                    name=_text(given.get("test_name")) or (classes[1] if len(classes) > 1 else ""),
                )

    def _files(self, value: ast.Dict) -> Iterator[Entry]:
        """Yield the entries of a dictionary of test files. None runs the whole file and skips nothing."""
        for key, names in zip(value.keys, value.values, strict=True):
            file = _text(key)
            for node, text in _strings(names):
                if text.endswith((".py::", ".py")):
                    yield self._entry(node, text, test_file=text.partition("::")[0])
                else:
                    yield self._entry(node, text, name=text, test_file=file)

    def _entry(self, node: ast.AST, text: str, **more: Any) -> Entry:
        line = getattr(node, "lineno", 0)
        return Entry(f"{self._path}:{line}", one_line(text, 200), comment=self._comment(line), **more)

    def _comment(self, line: int) -> str:
        """Return the comment behind an entry, or the lines of comments directly above it."""
        if line in self._comments:
            return one_line(self._comments[line], 200)
        above = []
        while -(line - 1) in self._comments:
            line -= 1
            above.append(self._comments[-line])
        return one_line(" ".join(reversed(above)), 200)


def _names_operators(value: ast.Dict) -> bool:
    """Return whether a dictionary has operators with dtypes, and not test files with names of tests."""
    if any("test" in _text(key) for key in value.keys):
        return False
    return all(
        listed.value is None if isinstance(listed, ast.Constant) else next(_strings(listed), None) is None
        for listed in value.values
    )


def _called(node: ast.AST) -> str:
    """Return the last name of the function that a call calls."""
    if not isinstance(node, ast.Call):
        return ""
    return node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")


def _text(node: ast.expr | None) -> str:
    """Return a literal text; of f-strings and sums, the parts that are literal."""
    if node is None:
        return ""
    return "".join(
        part.value for part in ast.walk(node) if isinstance(part, ast.Constant) and isinstance(part.value, str)
    )


def _strings(node: ast.expr) -> Iterator[tuple[ast.AST, str]]:
    """Yield the literal texts in a value, in their order."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node, node.value
    elif isinstance(node, ast.List | ast.Tuple | ast.Set):
        for element in node.elts:
            yield from _strings(element)
    elif isinstance(node, ast.Call):  # frozenset((…))
        for argument in node.args:
            yield from _strings(argument)


def _dtypes(node: ast.expr) -> Iterator[str]:
    """Yield the names of dtypes such as ``torch.float16`` in a value."""
    for part in ast.walk(node):
        if isinstance(part, ast.Attribute) and isinstance(part.value, ast.Name) and part.value.id == "torch":
            yield part.attr


# --- YAML -----------------------------------------------------------------------------------------------------------


def _yaml(path: Path, text: str) -> Iterator[Entry]:
    """Yield the tests that a configuration of torch-spyre does not want to pass, and the operators that it allows."""
    try:
        yaml = importlib.import_module("yaml")
    except ImportError:
        raise UsageError(f"{path} is YAML, and PyYAML is not installed. Install it: pip install pyyaml.") from None
    try:
        data = yaml.load(text, Loader=yaml.SafeLoader)
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        mark = getattr(error, "problem_mark", None)
        at = f", line {mark.line + 1}" if mark else ""
        problem = getattr(error, "problem", None) or type(error).__name__
        raise UsageError(f"{path}{at} is no valid YAML: {one_line(str(problem), 120)}. Correct the file.") from None
    config = _get(data, "test_suite_config")
    if not isinstance(config, dict):
        raise UsageError(f"{path} has no `test_suite_config`, so it is no configuration of torch-spyre's tests.")
    for file in _list(_get(config, "files")):
        yield from _spyre_file(path, file)
    whole = _get(config, "global")
    for operator in _list(_get(whole, "supported_ops")):
        name = str(_get(operator, "name") or "")
        yield from _spyre_operator(path, operator, name)
    for dtype in _list(_get(whole, "supported_dtypes")):
        if _get(dtype, "force_xfail"):
            name = str(_get(dtype, "name"))
            yield Entry(str(path), f"each test in {name}", name=".*", dtypes=(name,), is_pattern=True)


def _spyre_operator(path: Path, operator: Any, name: str) -> Iterator[Entry]:
    """Yield what an operator of the configuration allows, or in which dtypes it is expected to fail."""
    if _get(operator, "force_xfail"):
        yield Entry(str(path), f"{name}[all dtypes]", operator=name, comment="force_xfail")
        return
    yield Entry(str(path), name, operator=name, allows=True)
    for dtype in _list(_get(operator, "dtypes")):
        if _get(dtype, "force_xfail"):
            limit = str(_get(dtype, "name"))
            yield Entry(str(path), f"{name}[{limit}]", operator=name, dtypes=(limit,), comment="force_xfail")


def _spyre_file(path: Path, file: Any) -> Iterator[Entry]:
    """Yield what a file's configuration skips: tests by mode, dtypes by edits, and what it does not list."""
    test_file = Path(str(_get(file, "path") or "")).name
    for test in _list(_get(file, "tests")):
        mode = str(_get(test, "mode") or "mandatory_success")
        edited = _get(_get(test, "edits"), "dtypes")
        for name in _list(_get(test, "names")):
            test_class, _, method = str(name).rpartition("::")
            limits = {"name": method, "test_class": test_class, "test_file": test_file, "is_pattern": True}
            text = one_line(str(name), 200)
            if mode in _HIDING:
                dtypes = tuple(str(_get(dtype, "name")) for dtype in _list(_get(edited, "include")))
                yield _limited(path, text, limits, dtypes, mode)
                continue
            for dtype in _list(_get(edited, "exclude")):
                words = one_line(str(_get(dtype, "description") or ""), 200)
                yield _limited(path, f"{text}[{_get(dtype, 'name')}]", limits, (str(_get(dtype, "name")),), words)
    if (_get(file, "unlisted_test_mode") or "skip") in _HIDING:
        yield Entry(str(path), f"each test that is not listed of {test_file}", test_file=test_file)


def _limited(path: Path, text: str, limits: dict[str, Any], dtypes: tuple[str, ...], comment: str) -> Entry:
    return Entry(str(path), text, dtypes=dtypes, comment=comment, **limits)


def _get(value: Any, key: str) -> Any:
    return value.get(key) if isinstance(value, dict) else None


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


# --- JSON -----------------------------------------------------------------------------------------------------------


def _json(path: Path, text: str) -> Iterator[Entry]:
    """Yield the tests of a list of disabled tests: ``"test_a_npu (__main__.TestA)": ["why", ["platform"]]``."""
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        at = f", line {error.lineno}" if isinstance(error, json.JSONDecodeError) else ""
        raise UsageError(f"{path}{at} is no valid JSON. Correct the file.") from None
    if not isinstance(data, dict) or not any(_DISABLED.fullmatch(key) for key in data):
        raise UsageError(
            f"{path} is no list of disabled tests: none of its keys is such as `test_a_sim (__main__.TestA)`. "
            "Name a file with a skip list."
        )
    for key, value in data.items():
        found = _DISABLED.fullmatch(key)
        name, module, test_class = found.groups() if found else (key.partition(" ")[0], "", "")
        yield Entry(
            str(path),
            one_line(key, 200),
            name=name,
            test_class=test_class or "",
            test_file=f"{module.rpartition('.')[2]}.py" if module and module != "__main__" else "",
            comment=one_line(", ".join(_texts(value)), 200),
            is_whole=True,
        )


def _texts(value: Any) -> Iterator[str]:
    """Yield the texts in a value of JSON that are not empty."""
    if isinstance(value, str):
        yield from [value] if value else []
    elif isinstance(value, list | dict):
        for part in value if isinstance(value, list) else itertools.chain.from_iterable(value.items()):
            yield from _texts(part)


# --- PyTorch's own entries --------------------------------------------------------------------------------------------


def of_database(device_type: str) -> list[Entry]:
    """Return the skips and expected failures of the installed database that name a device type."""
    from torch.testing._internal.opinfo.core import DecorateInfo

    from .evidence import operators

    found = []
    for name, info in operators().items():
        for decorator in info.decorators:
            if not isinstance(decorator, DecorateInfo):
                continue  # such as skipCUDAIf, which decides when the test runs
            types = decorator.device_type
            if device_type not in ((types,) if isinstance(types, str) else types or ()) or not _hides(decorator):
                continue
            dtypes = tuple(str(dtype).removeprefix("torch.") for dtype in decorator.dtypes or ())
            found.append(
                Entry(
                    "op_db",
                    f"{name}[{', '.join(dtypes) or 'all dtypes'}]",
                    name=decorator.test_name or "",
                    operator=name,
                    dtypes=dtypes,
                    test_class=decorator.cls_name or "",
                )
            )
    return found


def _hides(decorator: Any) -> bool:
    """Return whether an entry skips a test or expects that it fails."""
    functions: list[Callable[..., Any]] = list(decorator.decorators)
    return any(
        function.__qualname__.startswith(("skip.", "expectedFailure"))
        for function in functions
        if hasattr(function, "__qualname__")
    )
