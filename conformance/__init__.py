"""Conformance suite for AI accelerators. Importing this package imports nothing else."""

from pathlib import Path as _Path

_FOLDER = _Path(__file__).absolute().parent
if not (_FOLDER / "accelerators").is_dir():
    # In a checkout, the folders accelerators/, kernels/ and reports/ stand beside this one. `python -m pytest` imports
    # this folder even if the package is installed, because Python looks into the current folder first.
    __path__.append(str(_FOLDER.parent))


def __getattr__(name: str) -> str:
    """Return the version of the installed suite as ``conformance.__version__``."""
    if name != "__version__":
        raise AttributeError(f"module 'conformance' has no attribute {name!r}")
    from importlib import metadata

    return metadata.version("accelerator-conformance")
