"""``hespas app``: questions by mouse, on a local page."""

from __future__ import annotations

from typing import Any

import click

from hespas.app.options import AppOptions
from hespas.app.start import serve
from hespas.cli import flags
from hespas.cli.answers import Answer, answering


@answering("app", example="hespas app --port 9000", has_json=False, has_log=False)
@flags.derived(AppOptions)
def app(**given: Any) -> Answer | int:
    """Open a page on this machine to ask questions by mouse, and see answers as knobs move.

    It listens on the loopback interface alone, and sends nothing anywhere. The address holds a
    token: a browser with that address can ask.
    """
    serve(flags.built(AppOptions, given), click.echo)
    return 0
