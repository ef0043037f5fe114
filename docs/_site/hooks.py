"""Add pages to the site that are not files of docs/: generated ones, and those of the root folder.

MkDocs runs this in an environment without hespas; the generated pages come from the environment
that has it (.venv), or the one that HESPAS_PYTHON names.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[2]
FROM_ROOT = {"contributing.md": "CONTRIBUTING.md", "changelog.md": "CHANGELOG.md"}


def _generated() -> dict[str, str]:
    python = os.environ.get("HESPAS_PYTHON", str(ROOT / ".venv" / "bin" / "python"))
    with TemporaryDirectory() as directory:
        script = ROOT / "docs" / "_site" / "generate.py"
        subprocess.run([python, str(script), directory], check=True)
        pages = sorted(Path(directory).rglob("*.md"))
        return {str(page.relative_to(directory)): page.read_text() for page in pages}


def on_files(files: Files, config: Any) -> Files:
    """Add the pages; links from the root folder into docs/ become links within the site."""
    for name, source in FROM_ROOT.items():
        text = (ROOT / source).read_text().replace("](docs/", "](")
        files.append(File.generated(config, name, content=text))
    for name, text in _generated().items():
        files.append(File.generated(config, name, content=text))
    return files
