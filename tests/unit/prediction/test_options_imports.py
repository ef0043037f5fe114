from __future__ import annotations

import subprocess
import sys

HEAVY = ("simulate.models", "split.flatten", "price.driver", "work", "tasks.graph", "lower", "xla")


def test_options_import_neither_stages_nor_engines() -> None:
    shown = "import sys, hespas.prediction.options; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", shown], capture_output=True, text=True, check=True)
    modules = {name for name in done.stdout.split() if name.startswith("hespas.")}
    assert not [name for name in HEAVY if f"hespas.{name}" in modules]
    assert len(modules) <= 80
