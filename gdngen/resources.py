"""Where the files are that gdngen comes with: templates, specs, what they render, the reference.

In a checkout they lie beside the package; a wheel has a copy of them inside it (`setup.py`).
"""

from pathlib import Path

PACKAGE = Path(__file__).resolve().parent
INSIDE = PACKAGE / "_data"
ROOT = INSIDE if INSIDE.is_dir() else PACKAGE.parent

TEMPLATES = ROOT / "templates"
GENERATED = ROOT / "generated"
SPECS = ROOT / "specs"
REFERENCE = ROOT / "docs" / "spec.md"
