"""Requests to the server, good ones and those that try to get in."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import pytest

from hespas.app.guard import Guard
from hespas.app.pool import Limits, Pool
from hespas.app.searches import Searches
from hespas.app.server import MOST_BODY_BYTES, MOST_UPLOAD_BYTES, Application, application

TOKEN = "t" * 40
GOOD = {"host": "127.0.0.1:8642", "x-hespas": "1", "cookie": f"hespas-8642={TOKEN}"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    code: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@pytest.fixture
def chosen(tmp_path: Path) -> Application:
    none = Pool(limits=Limits(processes=0, time_s=1.0))
    searches = Searches(home=tmp_path / "searches", workers=1)
    guard = Guard(token=TOKEN, port=8642)
    return Application(pool=none, slow=none, searches=searches, guard=guard, home=tmp_path)


def send(
    chosen: Application,
    method: str,
    path: str,
    *,
    headers: Mapping[str, str] = GOOD,
    body: bytes = b"",
    query: str = "",
    stays: bool = True,
) -> Answered:
    sent: list[dict[str, Any]] = []
    pieces = [body[at : at + (1 << 20)] for at in range(0, len(body), 1 << 20)] or [b""]
    messages = [
        {"type": "http.request", "body": piece, "more_body": piece is not pieces[-1] or not stays}
        for piece in pieces
    ]

    async def receive() -> dict[str, Any]:
        return messages.pop(0) if messages else {"type": "http.disconnect"}

    async def keep(message: Any) -> None:
        sent.append(message)

    scope = {
        "type": "http",
        "method": method,
        "path": path,
        "query_string": query.encode(),
        "headers": [(name.encode(), text.encode()) for name, text in headers.items()],
        "http_version": "1.1",
        "scheme": "http",
        "server": ("127.0.0.1", 8642),
        "root_path": "",
    }
    asyncio.run(application(chosen)(scope, receive, keep))  # pyright: ignore[reportArgumentType]
    start = next(each for each in sent if each["type"] == "http.response.start")
    content = b"".join(each.get("body", b"") for each in sent)
    named = {name.decode(): text.decode() for name, text in start["headers"]}
    return Answered(code=start["status"], headers=named, body=content)


def test_the_page_comes_with_a_policy_that_lets_nothing_else_in(chosen: Application) -> None:
    page = send(chosen, "GET", "/")
    assert page.code == 200
    policy = page.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert "frame-ancestors 'none'" in policy
    modules = sorted((resources.files("hespas.app") / "page").iterdir(), key=str)
    for name in (each.name for each in modules if each.name.endswith(".js")):
        assert send(chosen, "GET", f"/files/{name}").code == 200


def test_the_token_of_the_address_becomes_a_cookie(chosen: Application) -> None:
    opened = send(chosen, "GET", "/", headers={"host": "localhost:8642"}, query=f"token={TOKEN}")
    assert opened.code == 303
    assert opened.headers["location"] == "/"
    assert "HttpOnly" in opened.headers["set-cookie"]


@pytest.mark.parametrize("path", ["/", "/files/page.js", "/api/about"])
def test_nothing_is_answered_without_the_token(chosen: Application, path: str) -> None:
    refused = send(chosen, "GET", path, headers={"host": "localhost:8642"})
    assert refused.code == 403
    assert b"token" in refused.body


@pytest.mark.parametrize(
    "path", ["/files/../server.py", "/files/server.py", "/files/%2e%2e/guard.py"]
)
def test_other_files_are_not_served(chosen: Application, path: str) -> None:
    assert send(chosen, "GET", path).code == 404


def test_another_site_cannot_allow_code(chosen: Application) -> None:
    body = json.dumps({"code": "os:system"}).encode()
    for changed in ({"origin": "http://evil.example"}, {"x-hespas": ""}, {"host": "evil:8642"}):
        assert (
            send(chosen, "POST", "/api/allow", headers={**GOOD, **changed}, body=body).code == 403
        )
    assert send(chosen, "GET", "/api/allow", query="code=os:system").code == 405


def test_large_bodies_are_refused_before_they_are_held(chosen: Application) -> None:
    large = b" " * (MOST_BODY_BYTES + 1)
    assert send(chosen, "POST", "/api/ask", body=large).code == 413
    file = b" " * (MOST_UPLOAD_BYTES + 1)
    refused = send(chosen, "POST", "/api/upload", body=file, query="name=config.json")
    assert refused.code == 413


@pytest.mark.parametrize("path", ["/api/ask", "/api/upload"])
def test_a_sender_that_goes_leaves_no_trace(chosen: Application, path: str) -> None:
    gone = send(chosen, "POST", path, body=b"{", query="name=a.json", stays=False)
    assert gone.code == 413
    assert not (chosen.home / "uploads").exists()


@pytest.mark.parametrize(
    "name",
    [
        "../../evil.json",
        "evil.py",
        "evil.sh",
        ".json",
        "a/b.json",
        "config.json%00.py",
        "a%5Cb.json",
        "a%00b.json",
    ],
)
def test_uploads_have_plain_names_of_what_is_read(chosen: Application, name: str) -> None:
    refused = send(chosen, "POST", "/api/upload", body=b"{}", query=f"name={name}")
    assert "no file that can be predicted" in refused.json["error"]


@pytest.mark.parametrize("name", ["config%20(1).json", "%C3%A4%20b.json", "a;b%26c.json"])
def test_uploads_may_have_names_of_browsers(chosen: Application, name: str) -> None:
    kept = send(chosen, "POST", "/api/upload", body=b"{}", query=f"name={name}").json
    path = Path(kept["path"])
    assert path.read_bytes() == b"{}"
    assert re.fullmatch(r"[A-Za-z0-9._-]+\.json", path.name)


def test_an_upload_is_kept_and_not_read(chosen: Application, tmp_path: Path) -> None:
    kept = send(chosen, "POST", "/api/upload", body=b"{nonsense", query="name=config.json").json
    path = Path(kept["path"])
    assert path.is_relative_to(tmp_path / "uploads")
    assert path.read_bytes() == b"{nonsense"


@pytest.mark.parametrize("body", [b"", b"[", b"[]", b"{}", b'{"ask": 1}', b"null"])
def test_nonsense_is_refused_in_words(chosen: Application, body: bytes) -> None:
    refused = send(chosen, "POST", "/api/ask", body=body)
    assert refused.code == 400
    assert "cannot be read" in refused.json["error"]


def test_marks_become_the_file_of_imperfections(chosen: Application, tmp_path: Path) -> None:
    marks = json.dumps({"devices": {"3": 2}, "links": {"dim1.up.3": 0.5}}).encode()
    written = send(chosen, "POST", "/api/imperfect", body=marks).json
    assert Path(written["path"]).is_relative_to(tmp_path / "clusters")
    assert "compute_scale: 2.0" in written["text"]
    assert send(chosen, "POST", "/api/imperfect", body=b'{"devices": {"x": 1}}').json["error"]


@pytest.mark.parametrize("name", ["../..", "a/../b", "", "x" * 300])
def test_searches_are_named_from_the_list_alone(chosen: Application, name: str) -> None:
    body = json.dumps({"do": "show", "name": name}).encode()
    assert "there is no search" in send(chosen, "POST", "/api/search", body=body).json["error"]
