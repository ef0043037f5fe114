"""Refuse requests that do not come from the page.

The token keeps other users of the machine out, the check of ``Host`` pages whose name was bound to
this address (DNS rebinding), the check of ``Origin`` and the header of the page requests that other
sites make. https://owasp.org/www-community/attacks/csrf describes the attacks.
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Mapping
from pathlib import Path

from hespas.base.files import write_file
from hespas.base.frozen import frozen

PAGE_HEADER = "x-hespas"
"""What the page sends with each request: another site's can't without being asked first."""
HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
LOOPBACK = ("127.0.0.1", "localhost", "[::1]", "::1")


@frozen
class Guard:
    """A request's required token, hosts and port."""

    token: str
    port: int
    hosts: tuple[str, ...] = LOOPBACK

    @property
    def cookie(self) -> str:
        """The cookie's name: cookies are of a host, not port."""
        return f"hespas-{self.port}"

    def refusal(
        self, method: str, headers: Mapping[str, str], cookies: Mapping[str, str], token: str
    ) -> str:
        """Return why a request is refused, empty if answered.

        ``headers`` have names in small letters; ``token`` is the one in the address.

        >>> guard = Guard(token="abc", port=80)
        >>> guard.refusal("GET", {"host": "localhost"}, {"hespas-80": "abc"}, "")
        ''
        >>> guard.refusal("GET", {"host": "evil.example"}, {"hespas-80": "abc"}, "")
        'this address is not evil.example'
        """
        host = headers.get("host", "")
        if host not in self._hosts():
            return f"this address is not {host}"
        origin = headers.get("origin")
        if origin is not None and origin not in {f"http://{name}" for name in self._hosts()}:
            return f"requests of {origin} are not answered"
        is_opened = method == "GET" and headers.get("sec-fetch-mode") == "navigate"
        if headers.get("sec-fetch-site", "none") not in {"same-origin", "none"} and not is_opened:
            return "requests of other sites are not answered"
        shown = token or cookies.get(self.cookie, "")
        if not hmac.compare_digest(shown.encode(), self.token.encode()):
            return "the token is missing: open the address that hespas app prints"
        if method != "GET" and headers.get(PAGE_HEADER) != "1":
            return "only the page may ask"
        return ""

    def _hosts(self) -> set[str]:
        addresses = {f"{host}:{self.port}" for host in self.hosts}
        return addresses | set(self.hosts) if self.port == 80 else addresses


def page_token(home: Path) -> str:
    """Return a directory's token, which only its user reads."""
    file = home / "token"
    try:
        token = file.read_text(encoding="ascii").strip()
    except OSError:
        token = ""
    if len(token) < 32:
        home.mkdir(parents=True, exist_ok=True)
        token = secrets.token_urlsafe(32)
        write_file(file, token.encode())
    file.chmod(0o600)
    return token
