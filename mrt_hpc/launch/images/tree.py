"""The files that a container image of mrt-hpc is built from: those of a checkout, or those that came with the wheel."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

import mrt_hpc
from mrt_hpc.errors import UserError
from mrt_hpc.recipe.find import installed_folders

OF_CHECKOUT = {"pyproject.toml": "pyproject.toml", "README.md": "README.md", "env": "env", "recipes": "recipes",
               "slurm/sites": "slurm/sites", "containers": "containers"}  # fmt: skip
OF_WHEEL = {"build/pyproject.toml": "pyproject.toml", "build/README.md": "README.md", "build/env": "env",
            "recipes": "recipes", "sites": "slurm/sites", "containers": "containers"}  # fmt: skip
"""Where the files lie, and their places in the tree that an image is built from."""


@dataclass(frozen=True)
class BuildFiles:
    """The folder with the files beside the package, and their places in the tree."""

    root: Path
    places: dict[str, str]

    @staticmethod
    def found() -> BuildFiles:
        """The files of the checkout that the package runs from, or those that were installed with it.

        Raises:
            UserError: neither is there.
        """
        checkout = Path(mrt_hpc.__file__).resolve().parents[1]
        if (checkout / "pyproject.toml").is_file() and (checkout / "containers").is_dir():
            return BuildFiles(checkout, OF_CHECKOUT)
        for folder in installed_folders():
            if (folder / "build" / "pyproject.toml").is_file():
                return BuildFiles(folder, OF_WHEEL)
        raise UserError(
            "the files that images are built from are not there",
            where=checkout,
            expected="a checkout, or an installation of the wheel",
            advice="pip install mrt-hpc again, or type the command with the .venv of a checkout",
        )

    def copy_to(self, tree: Path) -> None:
        """Copy the package and these files, so that the tree is like a checkout.

        Args:
            tree: a folder that exists and is empty.
        """
        without_caches = shutil.ignore_patterns("__pycache__")
        shutil.copytree(Path(mrt_hpc.__file__).parent, tree / "mrt_hpc", ignore=without_caches)
        for name, place in self.places.items():
            source, target = self.root / name, tree / place
            target.parent.mkdir(parents=True, exist_ok=True)
            if source.is_dir():
                shutil.copytree(source, target, ignore=without_caches)
            else:
                shutil.copy(source, target)
