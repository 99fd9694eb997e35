"""Backends of other people: how each is installed beside this torch, and how it is named to the suite."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path

HERE = Path(__file__).parent
#: Where Debian's mesa-vulkan-drivers puts the description of llvmpipe, Vulkan on a CPU.
LLVMPIPE = Path("/usr/share/vulkan/icd.d/lvp_icd.x86_64.json")


class NotHere(Exception):
    """A backend cannot be installed or used on this machine; the text says why."""


@dataclass(frozen=True)
class Backend:
    """One backend. ``packages`` are installed without their dependencies, so that torch is not replaced.

    ``cells`` is the number of operator cells of a seeded sample, for a backend that cannot finish all in the time
    limit; None runs all. ``built_here`` says that its C++ is compiled against this torch, and ``torch`` is the release
    that it needs: run it in an environment of that release.
    ``checkout`` is the environment variable that names the folder of its source, for a backend that no package has.
    """

    name: str
    accelerator: str
    packages: tuple[str, ...] = ()
    dependencies: tuple[str, ...] = ()
    imports: str = ""
    needs: Path | None = None
    advice: str = ""
    environment: dict[str, str] = field(default_factory=dict)
    server: tuple[str, ...] = ()
    cells: int | None = None
    checkout: str = ""
    built_here: bool = False
    torch: str = "2.13"

    def install(self, folder: Path) -> dict[str, str]:
        """Install the backend into ``folder``; return the environment for its run, or raise NotHere."""
        if self.needs is not None and not self.needs.exists():
            raise NotHere(f"{self.needs} does not exist; {self.advice}")
        paths = [str(HERE / "declarations"), str(HERE)]
        if self.checkout:
            source = Path(os.environ.get(self.checkout, ""))
            if not os.environ.get(self.checkout) or not source.is_dir():
                raise NotHere(f"{self.checkout} names no folder; {self.advice}")
            paths.insert(0, str(source.resolve()))
        if self.packages:
            _pip(folder, self.dependencies, with_dependencies=True)
            _pip(folder, self.packages, with_dependencies=False, built_here=self.built_here)
            paths.insert(0, str(folder))
        inherited = [os.environ["PYTHONPATH"]] if os.environ.get("PYTHONPATH") else []
        environment = {**os.environ, **self.environment, "PYTHONPATH": os.pathsep.join([*paths, *inherited])}
        self._try(environment)
        return environment

    def _try(self, environment: dict[str, str]) -> None:
        code = f"import torch; assert torch.__version__.startswith('{self.torch}.'), torch.__version__"
        code += f"; import {self.imports}"
        tried = subprocess.run(
            [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=300, check=False
        )
        if tried.returncode:
            raise NotHere(f"import {self.imports} fails: {_last_line(tried.stderr)}")

    def serving(self, environment: dict[str, str]) -> AbstractContextManager[None]:
        """Return a context in which the backend's server runs, if it has one."""
        return _running(self.server, environment) if self.server else contextlib.nullcontext()


def _pip(folder: Path, packages: tuple[str, ...], *, with_dependencies: bool, built_here: bool = False) -> None:
    if not packages:
        return
    words = [sys.executable, "-m", "pip", "install", "-q", "--upgrade", "--target", str(folder), *packages]
    words += [] if with_dependencies else ["--no-deps"]
    words += ["--no-build-isolation"] if built_here else []
    # torch loads every registered backend when it is imported, also one that is about to be replaced.
    environment = {**os.environ, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise NotHere(f"pip install {' '.join(packages)} fails: {_last_line(done.stderr)}")


def _last_line(text: str) -> str:
    return (text.strip().splitlines() or ["no message"])[-1][:200]


@contextlib.contextmanager
def _running(command: tuple[str, ...], environment: dict[str, str]) -> Iterator[None]:
    process = subprocess.Popen(
        [sys.executable, *command], env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        time.sleep(10)  # it imports torch before it listens
        if process.poll() is not None:
            raise NotHere(f"its server ended with status {process.returncode}")
        yield
    finally:
        process.terminate()
        process.wait()


BACKENDS = (
    Backend("heron", "heron_accelerator:HERON", imports="torch_heron"),
    Backend(
        "heron-opaque",
        "heron_accelerator:HERON",
        imports="torch_heron",
        environment={"TORCH_HERON_OPAQUE": "1"},
    ),
    Backend(
        "deepspeed-cpu",
        "deepspeed:cpu",
        packages=("deepspeed==0.19.8",),
        dependencies=(
            "einops",
            "hjson",
            "msgpack",
            "ninja",
            "packaging>=20",
            "psutil",
            "py-cpuinfo",
            "pydantic>=2",
            "tqdm",
        ),
        imports="deepspeed",
    ),
    Backend(
        "rgpu",
        "rgpu_accelerator:RGPU",
        packages=("rgpu==0.1.1",),
        imports="rgpu",
        server=("-m", "rgpu.server", "--device", "cpu"),
        cells=400,
    ),
    Backend(
        "torchvulkan",
        "torchvulkan_accelerator:VULKAN",
        packages=("torchvulkan==0.2.1",),
        imports="torchvulkan",
        needs=LLVMPIPE,
        advice="install it with: apt-get install mesa-vulkan-drivers libvulkan1",
        environment={"VK_ICD_FILENAMES": str(LLVMPIPE), "VK_DRIVER_FILES": str(LLVMPIPE)},
    ),
    # The last release that imports with torch 2.13: later ones look for overloads with named dimensions.
    Backend(
        "torchax",
        "torchax_accelerator:TORCHAX",
        packages=("torchax==0.0.4",),
        dependencies=("jax[cpu]",),
        imports="torchax",
        environment={"JAX_PLATFORMS": "cpu"},
        cells=100,
    ),
    # tinygrad compiles each kernel, which takes seconds.
    Backend(
        "tinygrad",
        "tiny_accelerator:TINY",
        imports="extra.torch_backend.backend",
        advice="clone tinygrad's repository, install clang, and set TINYGRAD to the clone",
        environment={"DEV": "CPU"},
        cells=150,
        checkout="TINYGRAD",
    ),
    # PyTorch's reference of a C++ backend on PrivateUse1, which no package has. Its folder needs build products.
    Backend(
        "openreg",
        "openreg_accelerator:OPENREG",
        imports="torch_openreg",
        advice="set OPENREG to a folder that has the package torch_openreg, built with this torch",
        cells=100,
        checkout="OPENREG",
    ),
    # Kernels in OpenCL, which pocl compiles for the CPU: minutes for a convolution. pocl 3.1 lacks functions of OpenCL
    # 2.0, so the build has to ask for `-cl-std=CL1.2` and `CUSTOM_REDUCE`, which dlprimitives has for older drivers.
    Backend(
        "dlprimitives",
        "ocl_accelerator:OCL",
        imports="pytorch_ocl",
        advice="set DLPRIMITIVES to a folder that has the package pytorch_ocl, built with this torch, and install "
        "pocl-opencl-icd",
        environment={"POCL_MAX_PTHREAD_COUNT": "1"},
        cells=100,
        checkout="DLPRIMITIVES",
    ),
    # It sends calls in batches to a machine, which here is this process, and reads their errors with the next value.
    Backend(
        "mycelya",
        "mycelya_accelerator:MYCELYA",
        packages=("mycelya-torch==0.1.7",),
        dependencies=("modal>=1.1.0", "cloudpickle"),
        imports="mycelya_torch",
        built_here=True,
        cells=150,
    ),
    # It compiles each kernel when it is used first, which takes 13 to 80 s.
    Backend(
        "mojo",
        "mojo_accelerator:MOJO",
        packages=("torch-mojo-backend==0.3.1",),
        dependencies=("max==26.5", "mojo==1.0", "beartype>=0.17.0", "tabulate"),
        imports="torch_mojo_backend",
        cells=40,
    ),
    # Kernels for a GPU under development, of which it has a dozen. Its declaration names these, and no training.
    Backend(
        "verigpu",
        "verigpu_accelerator:VERIGPU",
        imports="verigpu_registered",
        advice="set VERIGPU to a folder that has the extension _verigpu_C, built with this torch from the folder "
        "pytorch_backend of the branch develop",
        checkout="VERIGPU",
    ),
    Backend(
        "tvarant",
        "tvarant_accelerator:TVARANT",
        imports="torch_tvarant",
        advice="set TVARANT to a folder that has the package torch_tvarant, built with this torch",
        cells=711,
        checkout="TVARANT",
    ),
    # Kernels in Vulkan's shaders, which use more of Vulkan than llvmpipe has; SwiftShader has it.
    Backend(
        "nova",
        "nova_accelerator:NOVA",
        imports="novatorch",
        advice="set NOVATORCH to a folder that has the package novatorch, built with this torch, and VK_ICD_FILENAMES "
        "to a driver of Vulkan 1.3",
        checkout="NOVATORCH",
    ),
    # PyTorch/XLA on its CPU client. It compiles each graph, so that five cells take a minute.
    Backend(
        "xla",
        "xla_accelerator:XLA",
        packages=("torch_xla==2.9.0",),
        dependencies=("absl-py", "pyyaml", "requests"),
        imports="torch_xla",
        environment={"PJRT_DEVICE": "CPU"},
        cells=100,
        torch="2.9",
    ),
    # Twenty operators over OpenCL, here on the CPU by pocl.
    Backend(
        "opencl",
        "opencl_accelerator:OPENCL",
        packages=("torch-opencl==0.1.0.dev23",),
        imports="torch_opencl",
        needs=Path("/etc/OpenCL/vendors/pocl.icd"),
        advice="install it with: apt-get install pocl-opencl-icd",
        torch="2.12",
    ),
    # PyTorch's LazyTensor with its TorchScript backend, which every build of torch has. It records operators into a
    # graph, and runs it when somebody reads a value. Forward mode ends the process, so most training cells cost a new
    # worker.
    Backend("lazy", "lazy_accelerator:LAZY", imports="torch._lazy.ts_backend", cells=60),
)
