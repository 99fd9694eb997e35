"""Mistakes in backends and declarations, as files of a vendor. Each is data for test_mistakes.py."""

from __future__ import annotations

from dataclasses import dataclass

_TORCH = """\
from conformance.accelerators import capabilities as can
from conformance.accelerators.capabilities import Cell
from conformance.accelerators.claims import NOT_YET, TORCH_BASE, dtypes, emulates, lacks, stores
from conformance.accelerators.declaration import Detail, supported, unsupported
from conformance.accelerators.memory import ProcessMemory
from conformance.accelerators.randomness import HostGenerator
from conformance.accelerators.torch_accelerator import TorchAccelerator

def backend(**more):
    return TorchAccelerator(**dict(
        dict(name="acme", vendor="Acme", module="torch.cpu", device_type="cpu", is_host=True, synchronized=True,
             host_timers=True, ordered=True, backpressure=True, streams=False, events=False, pins=False,
             memory=ProcessMemory(), randomness=HostGenerator(), capabilities=TORCH_BASE | dtypes("float32")), **more))
"""
_CLASS = """\
import torch

class Acme:
    capabilities = {"dtype[float32]"}
    def device_name(self, device_index=None): return "cpu"
    def current_device_name(self): return "cpu"
    def is_available(self): return True
    def device_count(self): return 1
    def synchronize(self, device_index=None): pass
"""


@dataclass(frozen=True)
class Mistake:
    """One mistake: the module ``acme``, a TOML file beside it or for ``--capabilities``, and words of the sentence."""

    source: str = ""
    words: tuple[str, ...] = ()
    beside: str = ""
    file: str = ""
    spec: str = "acme:ACME"
    #: Whether lint, which has no device, can see it.
    in_lint: bool = True


def _claims(expression: str, *words: str) -> Mistake:
    """A mistake in ``capabilities``."""
    return Mistake(f"{_TORCH}\nACME = backend(capabilities={expression})\n", words)


def _class(body: str, *words: str) -> Mistake:
    return Mistake(f"{_CLASS}\n{body}\nACME = Acme\n", words)


def _toml(text: str, *words: str) -> Mistake:
    return Mistake(f"{_TORCH}\nACME = backend()\n", words, file=text)


def _loading(more: str, *words: str, before: str = "") -> Mistake:
    """A mistake that only loading the accelerator shows."""
    return Mistake(f"{_TORCH}\n{before}\nACME = backend({more})\n", words, in_lint=False)


#: Declarations in Python: the controller finds them before anything runs.
DECLARED = {
    "unknown-capability": _claims('{"stream.ordr"}', "stream.ordr", "stream.order"),
    "unknown-dtype": _claims('{"dtype[float23]"}', "float23"),
    "unknown-dtype-function": _claims('dtypes("flota32")', "flota32", "float32"),
    "wrong-mode": _claims('{"operators.add[float32-trainng]"}', "trainng", "training"),
    "wrong-family": _claims('{"operator.add[float32]"}', "operator.add"),
    "open-bracket": _claims('{"dtype[float32"}', "bracket"),
    "empty-name": _claims('{""}', "''"),
    "contradiction": _claims('TORCH_BASE | {can.TRITON} | lacks(can.TRITON, "none yet", NOT_YET)', "triton", "twice"),
    "native-and-emulated": _claims("TORCH_BASE | {can.TRITON} | emulates(can.TRITON)", "triton", "twice"),
    "no-reason": _claims('lacks(can.TRITON, "")', "needs a reason"),
    "wrong-detail": _claims('lacks(can.TRITON, "none", Detail.NATIVE)', "cannot be unsupported and native"),
    "list": _claims('["stream"]', "capabilities", "list"),
    "tuple": _claims('("stream",)', "capabilities", "tuple"),
    "dict": _claims('{"stream": "native"}', "capabilities", "dict"),
    "string": _claims('"stream"', "capabilities", "str"),
    "none": _claims("None", "capabilities", "NoneType"),
    "number": _claims("3", "capabilities", "int"),
    "function": _claims("lambda: set()", "capabilities", "function"),
    "number-in-set": _claims("{3}", "3"),
    "none-in-set": _claims("{None}", "None"),
    "class-in-set": _claims("{int}", "int"),
    "unhashable": _claims('{["stream"]}', "unhashable"),
    "unknown-keyword": Mistake(f"{_TORCH}\nACME = backend(capabilites=set())\n", ("capabilites",)),
    "missing-name": Mistake("from conformance.accelerators.torch_accelerator import TorchAccelerator\n"
                            "ACME = TorchAccelerator(vendor='Acme')\n", ("name",)),
    "unknown-import": Mistake("from conformance.accelerators.claims import TORCH_BAES\n", ("TORCH_BAES",)),
    "syntax": Mistake("ACME = (\n", ("SyntaxError",)),
    "raises": Mistake("raise RuntimeError('no driver')\n", ("no driver",)),
    "exits": Mistake("import sys\nsys.exit(0)\n", ("SystemExit",)),
    "package-missing-in-module": Mistake("import torch_acme\n", ("torch_acme",)),
    "no-attribute": Mistake("ACEM = 1\n", ("ACME", "ACEM")),
    "none-object": Mistake("ACME = None\n", ("NoneType",)),
    "module-object": Mistake("import json as ACME\n", ("a module",)),
    "function-object": Mistake("def ACME(): pass\n", ("a function",)),
    "no-module": Mistake(spec="acmee:ACME", words=("acmee", "cannot be found")),
    "constructor-arguments": Mistake(
        "class ACME:\n    def __init__(self, index): pass\n    def device_name(self): pass\n", ("without arguments",)
    ),
    "class-unknown-capability": _class('Acme.capabilities = {"stream.ordr"}', "stream.ordr", "stream.order"),
    "class-list-of-unknown": _class('Acme.capabilities = ["bf16"]', "bf16"),
    "class-none-in-list": _class("Acme.capabilities = [None]", "None"),
    "class-property-raises": _class(
        "class Raising(type):\n    @property\n    def capabilities(cls): raise RuntimeError('no claims')\n"
        "del Acme.capabilities\nAcme = Raising('Acme', (), dict(vars(Acme)))", "no claims"
    ),
    "beside-broken": Mistake(
        f"{_TORCH}\nACME = backend()\n", ("acme.toml", "not valid TOML"), beside="[capabilities\n"
    ),
    "beside-unknown": Mistake(
        f"{_TORCH}\nACME = backend()\n", ("stream.ordr",), beside='[capabilities]\n"stream.ordr" = "native"\n'
    ),
}  # fmt: skip

#: TOML files for ``--capabilities``.
FILES = {
    "file-broken": _toml("[capabilities\n", "not valid TOML"),
    "file-unknown-table": _toml('[capabilites]\nstream = "native"\n', "capabilites", "capabilities"),
    "file-unknown-capability": _toml('[capabilities]\n"stream.ordr" = "native"\n', "stream.ordr", "stream.order"),
    "file-unknown-support": _toml('[capabilities]\nstream = "nativ"\n', "nativ"),
    "file-unknown-dtype": _toml('[dtypes]\nfloat23 = "native"\n', "float23"),
    "file-number": _toml("[capabilities]\nstream = 1\n", "stream"),
    "file-boolean": _toml("[capabilities]\nstream = true\n", "stream"),
    "file-list": _toml('[operators]\n"*" = ["float32"]\n', "must be a table"),
    "file-wrong-mode": _toml('[operators]\n"*" = { trainng = ["float32"] }\n', "trainng", "training"),
    "file-no-mode": _toml('[operators]\n"*" = {}\n', "neither inference nor training"),
    "file-no-reason": _toml('[capabilities]\ntriton = { unsupported = "not-yet" }\n', "reason"),
    "file-twice": _toml('[capabilities]\nstream = "native"\nstream = "host"\n', "not valid TOML"),
    "file-not-a-table": _toml("capabilities = 3\n", "must be a table"),
}

#: Mistakes that a worker meets while it loads the accelerator.
LOADED = {
    "package-missing": _loading('package="torch_acme_of_nobody"', "torch_acme_of_nobody", "not installed"),
    "package-raises": _loading('package="acme_broken"', "acme_broken", "no driver"),
    "package-imports-missing": _loading('package="acme_lacks"', "acme_lacks", "acme_runtime"),
    "wrong-module": _loading('module="torch.acme"', "torch.acme"),
    "no-device": _loading('module="acme_absent"', "finds no device"),
    "load-raises": _loading(
        "", "driver 7 expected", before="class T(TorchAccelerator):\n    def load(self):\n"
        "        print('the vendor says hello')\n        raise RuntimeError('driver 7 expected')\nTorchAccelerator = T"
    ),
    "load-lacks-module": _loading(
        "", "acme_runtime", before="class T(TorchAccelerator):\n    def load(self): import acme_runtime\n"
        "TorchAccelerator = T"
    ),
    "load-exits": _loading(
        "", "SystemExit", before="class T(TorchAccelerator):\n    def load(self): raise SystemExit(0)\n"
        "TorchAccelerator = T"
    ),
    "wrong-device": _loading('device_type="acmee"', "acmee", "torch does not know"),
    "init-raises": Mistake(
        f"{_CLASS}\nclass ACME(Acme):\n    def __init__(self): raise RuntimeError('no driver')\n", ("no driver",),
        in_lint=False,
    ),
    "name-raises": Mistake(
        f"{_CLASS}\nclass ACME(Acme):\n    def device_name(self, device_index=None): raise RuntimeError('lost')\n"
        "    current_device_name = device_name\n", ("lost",), in_lint=False,
    ),
}  # fmt: skip
_T = "class T(TorchAccelerator):\n    def {}: {}\nTorchAccelerator = T"
#: Endings of the process, and code that never returns.
DEADLY = {
    "aborts-at-import": Mistake("import os\nprint('the vendor says hello', flush=True)\nos.abort()\n",
                                ("importing acme", "SIGABRT", "the vendor says hello")),
    "leaves-at-import": Mistake("import os\nos._exit(0)\n", ("importing acme", "exit status 0")),
    "sleeps-at-import": Mistake("import time\ntime.sleep(600)\n", ("importing acme", "no end within", "acme.py")),
    "aborts-in-package": _loading('package="acme_aborts"', "4 workers died", "SIGABRT", "acme_aborts", "vendor says"),
    "leaves-in-package": _loading('package="acme_leaves"', "4 workers died", "exit status 0"),
    "sleeps-in-package": _loading('package="acme_sleeps"', "did not load", "no end within", "acme_sleeps"),
    "aborts-in-load": _loading(
        "", "4 workers died", "SIGABRT", before=_T.format("load(self)", "__import__('os').abort()")
    ),
    "sleeps-in-load": _loading("", "did not load", before=_T.format("load(self)", "__import__('time').sleep(600)")),
    "crashes-in-the-first-operation": _loading(
        "", "4 workers died", "SIGSEGV",
        before=_T.format("synchronize(self, device_index=None)", "__import__('ctypes').string_at(0)"),
    ),
    "sleeps-in-the-first-operation": _loading(
        "", "did not load", "in synchronize",
        before=_T.format("synchronize(self, device_index=None)", "__import__('time').sleep(600)"),
    ),
    "sleeps-in-init": Mistake(
        f"{_CLASS}\nimport time\nclass ACME(Acme):\n    def __init__(self): time.sleep(600)\n", ("no end within",)
    ),
    "aborts-in-init": Mistake(
        f"{_CLASS}\nimport os\nclass ACME(Acme):\n    def __init__(self): os.abort()\n", ("SIGABRT",)
    ),
}  # fmt: skip

_IN_A_WORKER = (
    "import os\nif 'PYTEST_XDIST_WORKER' in os.environ:\n    print('the vendor says hello', flush=True)\n    {}\n"
)


def _in_a_worker(statement: str, *words: str) -> Mistake:
    """A module whose import succeeds in the controller and goes wrong in a worker, as of a device with one owner."""
    return Mistake(f"{_IN_A_WORKER.format(statement)}{_TORCH}\nACME = backend()\n", words, in_lint=False)


WORKERS = {
    "sleeps-at-import-in-a-worker": _in_a_worker(
        "import time; time.sleep(600)", "did not load", "no end within", "acme.py", "the vendor says hello"
    ),
    "aborts-at-import-in-a-worker": _in_a_worker(
        "os.abort()", "4 workers died while they load", "SIGABRT", "acme.py", "the vendor says hello"
    ),
    "crashes-at-import-in-a-worker": _in_a_worker(
        "import ctypes; ctypes.string_at(0)", "4 workers died while they load", "SIGSEGV", "acme.py", "vendor says"
    ),
    "raises-at-import-in-a-worker": _in_a_worker(
        "raise RuntimeError('the device has another owner')", "importing acme fails", "another owner", "vendor says"
    ),
    "leaves-at-import-in-a-worker": _in_a_worker("os._exit(0)", "4 workers died while they load", "exit status 0"),
}

#: A device that is lost for good as soon as the file ``dead`` exists.
FROM_A_FILE_ON = _loading(
    "", before="import os\nclass T(TorchAccelerator):\n    def load(self):\n"
    "        if os.path.exists('dead'): os.abort()\n"
    "        return super().load()\nTorchAccelerator = T"
)  # fmt: skip

#: Packages of the vendor that the mistakes above name.
PACKAGES = {
    "acme_broken": "raise RuntimeError('no driver')\n",
    "acme_lacks": "import acme_runtime\n",
    "acme_absent": "def is_available(): return False\n",
    "acme_aborts": "import os\nprint('the vendor says hello', flush=True)\nos.abort()\n",
    "acme_leaves": "import os\nos._exit(0)\n",
    "acme_sleeps": "import time\ntime.sleep(600)\n",
}
