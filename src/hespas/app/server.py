"""Answer requests of the page."""

from __future__ import annotations

import json
import re
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from importlib import resources
from pathlib import Path
from threading import Lock
from typing import Any, cast

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from hespas.app.guard import HEADERS, Guard
from hespas.app.network import imperfections_text
from hespas.app.pool import Pool
from hespas.app.searches import Searches
from hespas.base.files import write_file
from hespas.base.version import __version__
from hespas.errors import ConfigError, HespasError

Answer = dict[str, Any]
_FILES = {
    "page.css": "text/css",
    "page.js": "text/javascript",
    "answers.js": "text/javascript",
    "draw.js": "text/javascript",
    "predict.js": "text/javascript",
    "search.js": "text/javascript",
    "serve.js": "text/javascript",
    "cluster.js": "text/javascript",
    "icon.svg": "image/svg+xml",
}
_UPLOADED = re.compile(r"[^/\\\0-\x1f.][^/\\\0-\x1f]{0,100}\.(json|mlir|hlo|txt)")
_UNUSUAL = re.compile(r"[^A-Za-z0-9._-]+")
"""What names of files have that browsers wrote: ``config (1).json``."""
_MOST_ANSWERS = 256
MOST_BODY_BYTES = 1 << 20
"""Of a question."""
MOST_UPLOAD_BYTES = 32 << 20
"""Of a ``config.json`` or a program."""
_SLOW = frozenset({"serve"})
_PREDICTIONS = frozenset({"quick", "whole", "serve"})


@dataclass(slots=True, kw_only=True)
class Application:
    """The state of the server.

    ``home`` has uploads, imperfections and searches.
    """

    pool: Pool
    slow: Pool
    searches: Searches
    guard: Guard
    home: Path
    _allowed: set[str] = field(default_factory=set[str])
    _answers: OrderedDict[str, Answer] = field(default_factory=OrderedDict[str, Answer])
    _lock: Lock = field(default_factory=Lock)

    def answer(self, body: Mapping[str, Any]) -> Answer:
        """Return the answer to a question, cached where possible."""
        kind, about, tab = str(body["ask"]), body["about"], str(body.get("tab", ""))
        key = json.dumps([kind, about], sort_keys=True)
        with self._lock:
            if key in self._answers:
                self._answers.move_to_end(key)
                return self._answers[key]
        pool = self.slow if kind in _SLOW or body.get("is_slow") else self.pool
        question = {"ask": kind, "about": about, "allowed": sorted(self._allowed)}
        topic = _topic(about) if kind in _PREDICTIONS else ""
        answer = pool.ask(question, tab, topic=topic, can_wait=bool(body.get("can_wait")))
        if "error" not in answer and "code" not in answer and not _names_a_file(about):
            with self._lock:
                self._answers[key] = answer
                while len(self._answers) > _MOST_ANSWERS:
                    self._answers.popitem(last=False)
        return answer

    def cancel(self, body: Mapping[str, Any]) -> Answer:
        """End the question that a tab waits for."""
        tab = str(body["tab"])
        return {"cancelled": self.slow.cancel(tab) or self.pool.cancel(tab)}

    def allow(self, body: Mapping[str, Any]) -> Answer:
        """Let code that the user confirmed run from now on."""
        self._allowed.add(str(body["code"]))
        return {}

    def imperfect(self, body: Mapping[str, Any]) -> Answer:
        """Write marks of the page as a file of ``--imperfect``."""
        try:
            text = imperfections_text(body)
        except (ValueError, TypeError, AttributeError) as error:
            raise ConfigError(f"marks cannot be read: {error}") from error
        if not text:
            return {"path": "", "text": ""}
        name = sha256(text.encode()).hexdigest()[:16]
        path = self.home / "clusters" / f"{name}.yml"
        path.parent.mkdir(parents=True, exist_ok=True)
        write_file(path, text.encode())
        return {"path": str(path), "text": text}

    def upload(self, name: str, content: bytes) -> Answer:
        """Store a file of the user's for workers."""
        if not _UPLOADED.fullmatch(name):
            raise ConfigError(
                f"{name[:60]!r} is no file that can be predicted",
                hint="choose a config.json, or a program (.mlir, .hlo, .txt)",
            )
        directory = self.home / "uploads" / sha256(content).hexdigest()[:16]
        directory.mkdir(parents=True, exist_ok=True)
        path = directory / _UNUSUAL.sub("-", name)
        write_file(path, content)
        return {"path": str(path)}

    def search(self, body: Mapping[str, Any]) -> Answer:
        """Begin, stop, resume or show a search."""
        match str(body["do"]):
            case "start":
                return {"name": self.searches.start(body["keys"])}
            case "stop":
                self.searches.stop(str(body["name"]))
            case "resume":
                self.searches.resume(str(body["name"]))
            case "list":
                return {"searches": self.searches.listed()}
            case "show":
                return self.searches.show(str(body["name"]))
            case action:
                raise ConfigError(f"{action!r} is nothing that a search can do")
        return {}


def _topic(about: object) -> str:
    """Return the traced model that a process caches."""
    if not isinstance(about, Mapping):
        return ""
    keys = cast("Mapping[str, object]", about)
    return f"{keys.get('model')} {keys.get('prefill')} {keys.get('decode')}"


def _names_a_file(about: object) -> bool:
    """Return whether a question depends on a file, which changes."""
    return isinstance(about, Mapping) and any(
        isinstance(value, str) and Path(value).is_absolute()
        for value in cast("Mapping[str, object]", about).values()
    )


Do = Callable[[Mapping[str, Any]], Answer]
Endpoint = Callable[[Request], Awaitable[Response]]


def application(state: Application) -> ASGIApp:
    """Return the server of the page, behind its guard."""
    posts: dict[str, Do] = {
        "/api/ask": state.answer,
        "/api/cancel": state.cancel,
        "/api/allow": state.allow,
        "/api/imperfect": state.imperfect,
        "/api/search": state.search,
    }
    routes = [
        Route("/", _page),
        Route("/files/{name}", _file),
        Route("/api/about", _about),
        Route("/api/upload", _upload(state), methods=["POST"]),
        *(Route(path, _posted(do), methods=["POST"]) for path, do in posts.items()),
    ]
    return _Guarded(application=Starlette(routes=routes), guard=state.guard)


@dataclass(slots=True, kw_only=True)
class _Guarded:
    """Refuses requests by the guard, whose headers all answers have."""

    application: ASGIApp
    guard: Guard

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        request = Request(scope)
        headers = {name.lower(): value for name, value in request.headers.items()}
        token = request.query_params.get("token", "")
        refused = self.guard.refusal(request.method, headers, request.cookies, token)
        answer: ASGIApp = self.application
        if refused:
            answer = Response(f"hespas: {refused}\n", status_code=403, media_type="text/plain")
        elif token:
            answer = RedirectResponse(request.url.path, status_code=303)
            answer.set_cookie(self.guard.cookie, token, httponly=True, samesite="lax", path="/")
            answer.headers.update(HEADERS)
            await answer(scope, receive, send)
            return

        async def sent(message: Any) -> None:
            if message["type"] == "http.response.start":
                added = [(name.lower().encode(), text.encode()) for name, text in HEADERS.items()]
                message["headers"] = [*message["headers"], *added]
            await send(message)

        await answer(scope, receive, sent)


async def _page(_: Request) -> Response:
    return Response(_read("page.html"), media_type="text/html; charset=utf-8")


async def _file(request: Request) -> Response:
    name = str(request.path_params["name"])
    if name not in _FILES:
        return Response("no such file", status_code=404)
    return Response(_read(name), media_type=_FILES[name])


async def _about(_: Request) -> Response:
    return JSONResponse({"version": __version__})


def _read(name: str) -> bytes:
    return (resources.files("hespas.app") / "page" / name).read_bytes()


async def _body(request: Request, most_bytes: int) -> bytes | None:
    """Return the body of a request, unless it exceeds the limit or its sender goes."""
    content = bytearray()
    try:
        async for piece in request.stream():
            content += piece
            if len(content) > most_bytes:
                return None
    except ClientDisconnect:
        return None
    return bytes(content)


def _posted(do: Do) -> Endpoint:
    async def answer(request: Request) -> Response:
        content = await _body(request, MOST_BODY_BYTES)
        if content is None:
            return _refused(f"a question has at most {MOST_BODY_BYTES >> 20} MiB", 413)
        return await _answered(lambda: do(json.loads(content)))

    return answer


def _upload(state: Application) -> Endpoint:
    async def answer(request: Request) -> Response:
        content = await _body(request, MOST_UPLOAD_BYTES)
        if content is None:
            return _refused(f"a file has at most {MOST_UPLOAD_BYTES >> 20} MiB", 413)
        name = request.query_params.get("name", "")
        return await _answered(lambda: state.upload(name, content))

    return answer


async def _answered(do: Callable[[], Answer]) -> Response:
    try:
        return JSONResponse(await run_in_threadpool(do))
    except (ValueError, KeyError, TypeError) as error:
        return _refused(f"the question cannot be read: {type(error).__name__}: {error}", 400)
    except HespasError as error:
        return JSONResponse({"error": error.text(str)})


def _refused(text: str, code: int) -> Response:
    return JSONResponse({"error": text}, status_code=code)
