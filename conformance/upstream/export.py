"""Python file with a base class for PyTorch's device tests, written from a declaration and a report."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from conformance.accelerators.capabilities import COMPILE, DLPACK, Capability, Cell
from conformance.accelerators.declaration import Declaration, State
from conformance.base.errors import UsageError
from conformance.reports.plain_text import one_line

from .evidence import Evidence, Standing, Variant, dtypes_of, followers, operators
from .series import Adapter

#: Beginning of the reason of each test that an exported base skips.
MARKER = "conformance: "
#: Classes of PyTorch's tests that need a capability as a whole.
_CLASSES: Mapping[Capability, tuple[str, ...]] = {
    DLPACK: ("TestTorchDlPack",),
    COMPILE: ("TestInductorOpInfo",),
}
_SPARSE = ("TestSparse", "TestSparseAny", "TestSparseUnaryUfuncs", "TestSparseCSR", "TestSparseCompressed")


@dataclass(frozen=True)
class Plan:
    """What an exported base hides: operators outside the list, operators in some dtypes, and whole test classes."""

    allowed: tuple[str, ...] | None = None
    overrides: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    exclusions: Mapping[str, str] = field(default_factory=dict)

    def hides(self, operator: str | None, dtypes: tuple[str, ...]) -> bool:
        """Return whether a test of an operator in these dtypes is hidden."""
        if operator is None:
            return False
        outside = self.allowed is not None and operator not in self.allowed
        return outside or any(dtype in self.overrides.get(operator, {}) for dtype in dtypes)


def base_name(adapter: Adapter, device_type: str, package: str) -> str:
    """Return the base class for a device type; raise UsageError for a vendor's package behind a type of torch."""
    if device_type not in adapter.in_tree:
        return adapter.out_of_tree
    if package:
        raise UsageError(
            f"device type '{device_type}' is in torch's tree, and the package {package} drives it out of tree: "
            f"{adapter.in_tree[device_type]} would be shared by both. Rename the device, or test one of them alone."
        )
    return adapter.in_tree[device_type]


def plan_of(declaration: Declaration, evidence: Mapping[Variant, Evidence] | None) -> Plan:
    """Return what to hide: by the report where there is one, and by the declaration otherwise."""
    known = evidence if evidence is not None else _declared(declaration)
    by_operator: dict[str, dict[str, Evidence]] = defaultdict(dict)
    for (operator, dtype), found in known.items():
        by_operator[operator][dtype] = found
    allowed = sorted(
        name for name, found in by_operator.items() if any(e.standing is Standing.VERIFIED for e in found.values())
    )
    overrides = {}
    for name in allowed:
        hidden = {
            dtype: found.why
            for dtype, found in sorted(by_operator[name].items())
            if found.standing in (Standing.FAILING, Standing.DENIED)
        }
        if hidden:
            overrides[name] = hidden
    # PyTorch asks this list about all of its databases. What no case of ours is about stays allowed.
    for name, operator in followers().items():
        if not operator or operator in allowed:
            allowed.append(name)
            overrides |= {name: overrides[operator]} if operator in overrides else {}
    return Plan(tuple(sorted(allowed)), dict(sorted(overrides.items())), dict(_exclusions(declaration)))


def _declared(declaration: Declaration) -> dict[Variant, Evidence]:
    """Return the claims in the place of evidence."""
    from conformance.accelerators.capabilities import DTYPES

    found = {}
    for name in operators():
        for dtype in (dtype for dtype in dtypes_of(name) if dtype in DTYPES):
            claim = declaration.claim(Cell(f"operators.{name.replace('-', '_')}", dtype, "inference"))
            yes = claim.state is State.SUPPORTED
            why = claim.reason or "the declaration does not claim it"
            found[name, dtype] = Evidence(Standing.VERIFIED) if yes else Evidence(Standing.DENIED, why)
    return found


def _exclusions(declaration: Declaration) -> Iterator[tuple[str, str]]:
    """Yield the test classes that need what is declared unsupported, and the declaration's reason."""
    for capability, classes in _CLASSES.items():
        claim = declaration.claim(capability.cell)
        if claim.state is State.UNSUPPORTED:
            yield from ((name, claim.reason) for name in classes)
    claim = declaration.claim(Cell("operators.to_sparse", "float32", "inference"))
    if claim.state is State.UNSUPPORTED:
        yield from ((name, claim.reason) for name in _SPARSE)


def python_file(plan: Plan, adapter: Adapter, device_type: str, base: str, origin: str) -> str:
    """Return the text of the file. It holds names and sentences of a report, which never become code."""
    name = "".join(part for part in device_type.title() if part.isalnum()) + "ConformanceTestBase"
    lines = [
        f"# {one_line(origin, 300)}",
        f"# For torch {adapter.series}: private API, which another series may not have.",
        f"# TORCH_TEST_DEVICES=THIS_FILE PYTORCH_TESTING_DEVICE_ONLY_FOR={device_type} python test/test_ops.py",
        "# PyTorch runs this file with the names of common_device_type, and must have registered the device before.",
        "import copy",
        "import unittest",
        "",
        "import torch",
        "",
        "",
        f"class {name}({base}):",
        f"    device_type = {device_type!r}",
        *_allowlist(plan),
        *_excluded(plan),
        *_METHODS,
        "",
        "",
        "def _op_overrides():",
        "    # Imported here: PyTorch runs this file while common_device_type, which that module needs, is imported.",
        "    from torch.testing._internal.opinfo.core import DecorateInfo",
        "",
        *_overrides(plan),
        "    return op_overrides",
        "",
        "",
        "# One base for a device: without this, PyTorch makes each test twice.",
        f"device_type_test_bases[:] = [each for each in device_type_test_bases if each is not {base}]",
        f"TEST_CLASS = {name}",
        "",
    ]
    return "\n".join(lines)


def _allowlist(plan: Plan) -> Iterator[str]:
    if plan.allowed is None:
        yield "    op_allowlist = None"
        return
    yield "    op_allowlist = {"
    yield from (f"        {name!r}," for name in plan.allowed)
    yield "    }"


def _overrides(plan: Plan) -> Iterator[str]:
    yield "    op_overrides = {"
    for operator, hidden in plan.overrides.items():
        yield f"        {operator!r}: ["
        for dtype, why in hidden.items():
            yield f"            # {one_line(why, 300) or 'no reason was given'}"
            reason = MARKER + one_line(why, 120)
            yield f"            DecorateInfo(unittest.skip({reason!r}), dtypes=(torch.{dtype},)),"
        yield "        ],"
    yield "    }"


def _excluded(plan: Plan) -> Iterator[str]:
    yield "    test_exclusions = {"
    for name, why in plan.exclusions.items():
        yield f"        # {one_line(why, 300)}"
        yield f'        {name!r}: "*",'
    yield "    }"


#: Methods of the exported class: late imports, and no test without an operator.
_METHODS = (
    "",
    "    @classmethod",
    "    def _apply_op_overrides(cls, ops, test=None):",
    "        if cls.op_overrides is None:",
    "            cls.op_overrides = _op_overrides()",
    "        super()._apply_op_overrides(ops, test)",
    "",
    "    @classmethod",
    "    def _apply_op_allowlist(cls, ops):",
    "        listed = list(ops.op_list)",
    "        super()._apply_op_allowlist(ops)",
    "        if ops.op_list:",
    "            return",
    "        from torch.testing._internal.opinfo.core import DecorateInfo",
    "",
    "        # PyTorch refuses a whole file if one of its tests has no operator left: this one keeps them, and skips.",
    "        ops.op_list = copy.deepcopy(listed)",
    "        for op in ops.op_list:",
    f'            op.decorators = (*op.decorators, DecorateInfo(unittest.skip("{MARKER}not in op_allowlist")))',
)
