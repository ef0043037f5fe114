"""``hespas app``: a local page, or a resident process."""

from __future__ import annotations

from typing import Any

import click

from hespas.app.start import PAGE, RESIDENT, STARTED, AppOptions, serve
from hespas.base.fields import refuse_unused
from hespas.cli import flags
from hespas.cli.answers import Answer, answering
from hespas.cli.resident_server import start, stop


@answering("app", example="hespas app --port 9000", has_json=False, has_log=False)
@flags.derived(AppOptions)
def app(**values: Any) -> Answer | int:
    """Ask questions on a page by mouse, and see answers as knobs move.

    It listens on the loopback interface alone, and sends nothing anywhere. The address holds a
    token: a browser with that address can ask.

    With --background no page is opened: a process stays, with all that commands import and trace,
    and the user's commands are answered by it from then on, with the same output.
    """
    options = flags.built(AppOptions, values)
    has_page = not (options.background or options.stop)
    absent = {PAGE: not has_page, RESIDENT: not options.background, STARTED: options.stop}
    refuse_unused(options, absent)
    if options.stop:
        stop(click.echo)
    elif options.background:
        start(workers=options.workers or 1, idle_s=options.idle_s, say=click.echo)
    else:
        serve(options, click.echo)
    return 0
