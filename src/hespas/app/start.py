"""Serve the page of ``hespas app``."""

from __future__ import annotations

import errno
import socket
import webbrowser
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from threading import Timer
from typing import ClassVar

from hespas.app.guard import LOOPBACK, Guard, page_token
from hespas.app.pool import Limits, Pool
from hespas.app.searches import Searches
from hespas.base.fields import Group, Use, check_options, declare
from hespas.base.frozen import frozen
from hespas.base.home import data_home
from hespas.errors import ConfigError, ExtraMissingError, option
from hespas.study.executor import available_cores
from hespas.study.search import SEARCHES

PORT = 8642
_TIME_S = 120.0
"""The longest time of a modelled answer."""
_LONG_TIME_S = 1800.0
"""The longest time of an answer that compiles, or serves."""
PAGE = Use(" without the page")
STARTED = Use(" where a process is ended")
RESIDENT = Use(" without a process in the background", "drop it, or add --background")


@frozen
class AppOptions:
    """Where the page is served, and its processes' limits."""

    GROUP: ClassVar[Group] = Group.MAIN

    port: int | None = declare(
        help="The port.",
        least=1,
        default_text=f"{PORT}, or a free one",
        applies_to=(PAGE,),
    )
    host: str = declare(
        help="The address to listen on; others than the loopback let other machines ask.",
        metavar="ADDRESS",
        default="127.0.0.1",
        applies_to=(PAGE,),
    )
    browser: bool = declare(
        help="Open a browser.", negatable=True, default=True, applies_to=(PAGE,)
    )
    workers: int | None = declare(
        help="How many questions are answered at a time.",
        least=1,
        default_text="one a core, at most 4; 1 with --background",
        applies_to=(STARTED,),
    )
    memory: float = declare(
        help="Memory that a process of the page may address, as in 32GB.",
        unit="B",
        metavar="BYTES",
        default=32e9,
        applies_to=(PAGE,),
    )
    home: Path | None = declare(
        help="Where uploads and searches live.",
        metavar="DIR",
        default_text="~/.local/share/hespas",
        applies_to=(PAGE,),
    )
    background: bool = declare(
        help="Start a process that answers the user's commands, instead of the page.",
        one_of="process",
        default=False,
    )
    stop: bool = declare(help="End that process.", one_of="process", default=False)
    idle_s: float = declare(
        name="idle",
        help="After how long without a command that process ends, as in 30min.",
        unit="s",
        default=3600.0,
        applies_to=(RESIDENT,),
    )

    __post_init__ = check_options


_MOST_WORKERS = 4
_NAMES: Mapping[str, object] = {"ask": "names", "about": {}, "allowed": []}
_FIRST: Mapping[str, object] = {
    "ask": "quick",
    "about": {"model": "llama3-8b", "cluster": "8xH100_80GB"},
    "allowed": [],
}
"""The page's first question: who answers it has imported what the next ones need."""
_EVERYWHERE = ("0.0.0.0", "::")  # noqa: S104 - what a user asked for is recognised


def serve(options: AppOptions, say: Callable[[str], None]) -> None:
    """Serve the page until Ctrl-C; ``say`` receives the address.

    Raises `ExtraMissingError` without the extra ``app``, and `ConfigError` for an address that
    can't be listened on.
    """
    if find_spec("uvicorn") is None or find_spec("starlette") is None:
        raise ExtraMissingError("hespas app", extra="app")
    import uvicorn  # noqa: PLC0415 - an extra

    from hespas.app.server import Application, application  # noqa: PLC0415 - as above

    bound = _listen(options)
    port = int(bound.getsockname()[1])
    home = options.home or data_home()
    hosts = LOOPBACK if options.host in LOOPBACK else (*LOOPBACK, *_host_names(options.host))
    guard = Guard(token=page_token(home), port=port, hosts=hosts)
    count = options.workers or min(_MOST_WORKERS, available_cores())
    memory_bytes = int(options.memory)
    pool = Pool(limits=Limits(processes=count, time_s=_TIME_S, memory_bytes=memory_bytes))
    slow = Pool(limits=Limits(processes=1, time_s=_LONG_TIME_S, memory_bytes=memory_bytes))
    searches = Searches(home=home / SEARCHES, workers=available_cores())
    application_state = Application(pool=pool, slow=slow, searches=searches, guard=guard, home=home)
    pool.warm(_NAMES, then=_FIRST)
    shown = options.host if options.host not in _EVERYWHERE else socket.gethostname()
    address = f"http://{shown}:{port}/?token={guard.token}"
    say(f"hespas app: {address}")
    say("Ctrl-C ends it.")
    if options.browser:
        Timer(0.3, webbrowser.open, (address,)).start()
    config = uvicorn.Config(
        application(application_state),
        log_level="warning",
        lifespan="off",
        ws="none",
        server_header=False,
    )
    try:
        uvicorn.Server(config).run(sockets=[bound])
    finally:
        searches.close()
        pool.close()
        slow.close()


def _host_names(host: str) -> tuple[str, ...]:
    """Return the names under which other machines reach this one."""
    if host not in _EVERYWHERE:
        return (host,)
    name = socket.gethostname()
    try:
        addresses = {str(entry[4][0]) for entry in socket.getaddrinfo(name, None)}
    except OSError:
        addresses = set[str]()
    return (name, socket.getfqdn(), *sorted(addresses))


def _listen(options: AppOptions) -> socket.socket:
    """Return a listening socket, by default on a free port."""
    ports = [options.port] if options.port is not None else [PORT, 0]
    family = socket.AF_INET6 if ":" in options.host else socket.AF_INET
    for port in ports:
        bound = socket.socket(family, socket.SOCK_STREAM)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            bound.bind((options.host, port))
            # Who opens the address at once waits until the server answers.
            bound.listen()
        except (OSError, OverflowError) as error:
            bound.close()
            reason = "ports end at 65535" if isinstance(error, OverflowError) else error.strerror
            if port != ports[-1] and isinstance(error, OSError) and error.errno == errno.EADDRINUSE:
                continue
            address = f"{options.host}:{port}"
            raise ConfigError(
                f"{address} cannot be listened on: {reason}",
                hint=f"give another {option('port')} or {option('host')}",
            ) from error
        return bound
    raise ConfigError("there is no free port", hint=f"give {option('port')}")
