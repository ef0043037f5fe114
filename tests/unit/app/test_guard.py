"""Requests that try to get in."""

from __future__ import annotations

from pathlib import Path

import pytest

from hespas.app.guard import Guard, page_token

GUARD = Guard(token="t" * 40, port=8642)
GOOD = {"host": "127.0.0.1:8642", "x-hespas": "1", "origin": "http://127.0.0.1:8642"}
COOKIES = {"hespas-8642": "t" * 40}


def test_the_page_itself_is_answered() -> None:
    assert GUARD.refusal("POST", GOOD, COOKIES, "") == ""
    assert GUARD.refusal("GET", {"host": "localhost:8642"}, {}, "t" * 40) == ""


@pytest.mark.parametrize(
    ("headers", "said"),
    [
        ({**GOOD, "host": "evil.example:8642"}, "this address is not"),
        ({**GOOD, "host": "127.0.0.1:8642.evil.example"}, "this address is not"),
        ({**GOOD, "host": "127.0.0.1"}, "this address is not"),
        ({**GOOD, "host": ""}, "this address is not"),
        ({**GOOD, "origin": "http://evil.example"}, "are not answered"),
        ({**GOOD, "origin": "null"}, "are not answered"),
        ({**GOOD, "origin": "http://127.0.0.1:9999"}, "are not answered"),
        ({**GOOD, "sec-fetch-site": "cross-site"}, "other sites"),
        ({**GOOD, "sec-fetch-site": "same-site"}, "other sites"),
        ({"host": "127.0.0.1:8642"}, "only the page"),
    ],
)
def test_others_are_refused(headers: dict[str, str], said: str) -> None:
    assert said in GUARD.refusal("POST", headers, COOKIES, "")


@pytest.mark.parametrize("token", ["", "t" * 39, "t" * 41, "ü" * 40])
def test_another_token_is_refused(token: str) -> None:
    assert "token" in GUARD.refusal("POST", GOOD, {"hespas-8642": token}, "")
    assert "token" in GUARD.refusal("GET", GOOD, {}, token)


def test_a_cookie_of_another_port_is_no_token() -> None:
    assert "token" in GUARD.refusal("POST", GOOD, {"hespas-8000": "t" * 40}, "")


def test_a_link_of_another_site_opens_the_page_and_no_more() -> None:
    opened = {
        "host": "localhost:8642",
        "sec-fetch-site": "cross-site",
        "sec-fetch-mode": "navigate",
    }
    assert GUARD.refusal("GET", opened, COOKIES, "") == ""
    assert GUARD.refusal("POST", {**opened, "x-hespas": "1"}, COOKIES, "") != ""
    assert GUARD.refusal("GET", {**opened, "sec-fetch-mode": "no-cors"}, COOKIES, "") != ""


def test_the_token_stays_and_is_the_users_alone(tmp_path: Path) -> None:
    token = page_token(tmp_path / "home")
    assert len(token) >= 40
    assert page_token(tmp_path / "home") == token
    assert (tmp_path / "home" / "token").stat().st_mode & 0o077 == 0
