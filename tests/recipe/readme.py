"""Run of the README's recipes as they are written, in a new clone, with a key of their own.

``python -m tests.recipe.readme``. It does not install the suite, which is installed already.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.docs.pages import README, blocks, text
from tests.recipe.published import ROOT

TITLE = "## Four recipes"


def recipes() -> list[str]:
    """Return the commands of the vendor, the CI owner and the maintainer."""
    part = text(README).split(TITLE, 1)[1].split("\n## ", 1)[0]
    return [block.body for block in blocks(part, "console")]


def clone(folder: Path) -> Path:
    """Clone the committed files, and make a home folder with a key that has no passphrase; return the clone."""
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(folder / "clone")], check=True)
    (folder / ".ssh").mkdir()
    key = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / ".ssh" / "id_ed25519")]
    subprocess.run(key, check=True)
    return folder / "clone"


def main() -> int:
    """Run the recipes; return the status of the first one that fails, or 0."""
    with tempfile.TemporaryDirectory() as folder:
        here = clone(Path(folder))
        for recipe in recipes():
            print(f"+ {recipe.strip()}", flush=True)
            home = {**os.environ, "HOME": folder}
            status = subprocess.run(["bash", "-e", "-c", recipe], cwd=here, env=home, check=False).returncode
            if status:
                sys.stderr.write(f"a recipe of the README ended with {status}\n")
                return status
    return 0


if __name__ == "__main__":
    sys.exit(main())
