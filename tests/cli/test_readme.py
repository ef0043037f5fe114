from __future__ import annotations

from pathlib import Path

COMMAND = "hespas run examples/llama3_100m_fsdp4.mlir"
PRESETS = "--node A100_SXM_40GB --system A100_SXM_40GB_4GPU"


def test_the_readme_shows_what_make_demo_prints() -> None:
    readme, makefile = (Path(name).read_text() for name in ("README.md", "Makefile"))
    assert f"DEMO := {COMMAND.removeprefix('hespas run ')} {PRESETS}\n" in makefile
    for words in ("", " --as-exported"):
        assert f"hespas run $(DEMO){words}" in makefile
        assert f"<!-- recorded -->\n```text\n$ {COMMAND} {PRESETS}{words}\n" in readme
