"""What lies beside the package in a checkout goes inside it in a wheel: see gdngen/resources.py.

Everything else is in pyproject.toml.
"""

import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

DATA = ("templates", "specs", "generated", "docs/spec.md")


class Build(build_py):
    def run(self) -> None:
        if self.editable_mode:  # the checkout itself is used
            return super().run()
        package = Path(self.build_lib) / "gdngen"
        shutil.rmtree(package, ignore_errors=True)  # nothing of an earlier build
        super().run()
        inside = package / "_data"
        for name in DATA:
            target = inside / name
            target.parent.mkdir(parents=True, exist_ok=True)
            if Path(name).is_dir():
                shutil.copytree(name, target, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copyfile(name, target)


setup(cmdclass={"build_py": Build})
