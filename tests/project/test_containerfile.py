"""The image's recipe, by its text: what is copied is there, and versions are those of the lock."""

from __future__ import annotations

import re
import shlex
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LOCK = ROOT / "requirements" / "dev.lock"


def steps() -> list[tuple[str, str]]:
    """Return the instructions with their arguments, continued lines joined."""
    text = (ROOT / "Containerfile").read_text().replace("\\\n", " ")
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return [(line.split(None, 1)[0], line.split(None, 1)[1]) for line in lines]


def test_two_stages_of_one_python_that_is_supported() -> None:
    bases = [arguments.split()[0] for name, arguments in steps() if name == "FROM"]
    assert len(bases) == 2
    assert bases[0] == bases[1]
    version = re.search(r":(\d+)\.(\d+)-slim$", bases[0])
    assert version is not None
    wanted = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["requires-python"]
    least = re.fullmatch(r">=\s*(\d+)\.(\d+).*", wanted)
    assert least is not None
    assert tuple(map(int, version.groups())) >= tuple(map(int, least.groups()))


def test_what_is_copied_from_the_checkout_is_there_and_is_no_secret() -> None:
    copied = [shlex.split(arguments) for name, arguments in steps() if name == "COPY"]
    sources = [word for words in copied if "--from=build" not in words for word in words[:-1]]
    assert "." not in sources
    for source in sources:
        assert (ROOT / source).exists(), source


def test_packages_have_the_versions_of_the_lock() -> None:
    (install,) = [text for name, text in steps() if name == "RUN" and "pip install" in text]
    assert "--constraint requirements/dev.lock" in install
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [*project["dependencies"], *project["optional-dependencies"]["app"]]
    locked = {line.split("==")[0].lower() for line in LOCK.read_text().splitlines() if "==" in line}
    for requirement in wanted:
        name = re.match(r"[\w.-]+", requirement)
        assert name is not None
        assert name[0].lower().replace("_", "-") in locked, requirement
    assert '".[app]"' in install
    assert not re.search(r"\[(app,)?(gpu|tpu|torch)", install)


def test_the_last_stage_runs_as_a_user_and_has_no_compiler() -> None:
    last = steps()[max(n for n, (name, _) in enumerate(steps()) if name == "FROM") :]
    names = [name for name, _ in last]
    assert names.index("USER") > names.index("COPY")
    (user,) = [arguments for name, arguments in last if name == "USER"]
    assert user not in {"root", "0"}
    assert not any(
        "apt" in arguments or "pip" in arguments for name, arguments in last if name == "RUN"
    )
    assert ("ENTRYPOINT", '["hespas"]') in last
