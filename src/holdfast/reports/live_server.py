"""A local server of one live page: `/` is the document, `/changes` what is new. Nothing else is answered, no path leads
to a file, and nothing can be changed from outside.

A page of another site can make a browser ask for `http://127.0.0.1:PORT/`, and its name can be made to resolve to
127.0.0.1 (DNS rebinding), so that the browser takes the answer for that site's own. Such a request names the other site
in its Host header, and is refused.
"""

from __future__ import annotations

import contextlib
import errno
import gzip
import ipaddress
import json
import socket
import sys
from collections.abc import Iterable, Iterator
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from holdfast.errors import ConfigError
from holdfast.reports.live import LivePage

PORTS = range(8642, 8662)
"""Those that are tried where none was asked for."""
LOCAL = "127.0.0.1"
_TAKEN = {errno.EADDRINUSE: "is in use", errno.EACCES: "may not be opened by this user"}


class LiveServer(ThreadingHTTPServer):
    """Serves a live page.

    Args:
        live: the page.
        host: name or address to listen at.
        port: 0 for any that is free.
        names: host names by which it may be asked for, beside addresses and `localhost`.

    Raises:
        OSError: the port cannot be had.
    """

    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, live: LivePage, host: str, port: int, names: Iterable[str] = ()) -> None:
        self.live = live
        self.names = {"localhost", host.lower(), *(name.lower() for name in names)} - {""}
        self.local_only = _is_local(host)
        if ":" in host:
            self.address_family = socket.AF_INET6
        super().__init__((host, port), _Handler)

    @property
    def url(self) -> str:
        """Where the page is."""
        host, port = self.server_address[:2]
        host = {"0.0.0.0": socket.gethostname(), "::": socket.gethostname()}.get(str(host), str(host))
        return f"http://{f'[{host}]' if ':' in host else host}:{port}/"

    def allows(self, host: str) -> bool:
        """Whether a Host header names this server: by an address, which no other site's name is, or by a name of its
        own."""
        try:
            name = urlsplit(f"//{host}").hostname or ""
        except ValueError:
            return False
        try:
            address = ipaddress.ip_address(name)
        except ValueError:
            return name in self.names
        return address.is_loopback or not self.local_only

    def server_bind(self) -> None:
        """Without the look-up of a domain name, which may take seconds."""
        import socketserver

        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A browser that went away in the middle of an answer is nothing to speak of."""
        if not isinstance(sys.exception(), (ConnectionError, TimeoutError)):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    server: LiveServer
    protocol_version = "HTTP/1.1"
    server_version, sys_version = "holdfast", ""
    timeout = 60

    def do_GET(self) -> None:
        """Answers with the document, with what is new, or with a refusal."""
        asked = urlsplit(self.path)
        if not self.server.allows(self.headers.get("Host", "")):
            self._answer(HTTPStatus.FORBIDDEN, "text/plain", b"This server does not answer to that host name.\n")
        elif asked.path == "/":
            self._answer(HTTPStatus.OK, "text/html", self.server.live.document.encode())
        elif asked.path == "/changes":
            since = parse_qs(asked.query).get("since", [""])[0]
            found = json.dumps(self.server.live.changes(since), ensure_ascii=False, allow_nan=False)
            self._answer(HTTPStatus.OK, "application/json", found.encode("utf-8", "replace"))
        else:
            self._answer(HTTPStatus.NOT_FOUND, "text/plain", b"Not found.\n")

    def _refuse(self) -> None:
        self.close_connection = True  # a body that was sent is not read
        self._answer(HTTPStatus.METHOD_NOT_ALLOWED, "text/plain", b"Only GET.\n", Allow="GET")

    do_HEAD = do_POST = do_PUT = do_DELETE = do_PATCH = do_OPTIONS = do_TRACE = do_CONNECT = _refuse

    def _answer(self, status: HTTPStatus, kind: str, content: bytes, **headers: str) -> None:
        packed = "gzip" in self.headers.get("Accept-Encoding", "") and kind == "application/json"
        content = gzip.compress(content, compresslevel=1) if packed else content
        self.send_response(status)
        about = {
            "Content-Type": f"{kind}; charset=utf-8",
            "Content-Length": str(len(content)),
            "Cache-Control": "no-store",
            "X-Content-Type-Options": "nosniff",
            "X-Frame-Options": "DENY",
            "Referrer-Policy": "no-referrer",
            "Cross-Origin-Resource-Policy": "same-origin",
            **({"Content-Encoding": "gzip"} if packed else {}),
            **({"Connection": "close"} if self.close_connection else {}),
            **headers,
        }
        for name, value in about.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: a line each second would bury what the terminal shows."""


@contextlib.contextmanager
def serving(live: LivePage, *, host: str = LOCAL, port: int | None = None) -> Iterator[LiveServer]:
    """A server that listens; `serve_forever` answers.

    Args:
        live: the page.
        host: where to listen.
        port: None: the first free one of `PORTS`; 0: any.

    Raises:
        ConfigError: the port is in use, or the host is not this machine's.
    """
    names = () if _is_local(host) else (socket.gethostname(), socket.getfqdn())
    server = _opened(live, host, [port] if port is not None else [*PORTS, 0], names)
    try:
        yield server
    finally:
        server.server_close()


def _opened(live: LivePage, host: str, ports: list[int], names: Iterable[str]) -> LiveServer:
    for port in ports:
        try:
            return LiveServer(live, host, port, names)
        except OSError as error:
            taken = _TAKEN.get(error.errno or 0)
            if taken is None:
                raise ConfigError(
                    f"--host: expected a name or an address of this machine, got '{host}' ({error.strerror or error}). "
                    f"{LOCAL} is for this machine alone, 0.0.0.0 for the whole network."
                ) from None
            if port == ports[-1]:
                raise ConfigError(
                    f"--port: port {port} of {host} {taken}. Give another one, as in '--port {port + 1}', or '--port "
                    f"0' for any that is free."
                ) from None
    raise AssertionError("the last port decides")


def _is_local(host: str) -> bool:
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return host == "localhost"
