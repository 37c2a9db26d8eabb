"""The gate: of a SuperLink's three APIs the network sees only the fleet API, which answers registered keys alone.

Flower serves all three on one port. Whoever reaches the control API may register keys and start apps, and whoever
reaches the runtime API may take the server's tasks; neither asks who is there. So the SuperLink listens on loopback,
and this stands before it.
"""

import re
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import httpx
import uvicorn
from starlette.background import BackgroundTask
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from pfed1bs.core.errors import UserError

FILES = ("ca.crt", "server.pem", "server.key")
FLEET = re.compile(rb"/v1/fleet/[a-z-]+")  # matched with the path as it was sent: no dots, no escapes
HOP = (b"connection", b"keep-alive", b"transfer-encoding", b"te", b"trailer", b"upgrade")  # for one connection only
OURS = (b"host", b"forwarded", b"x-forwarded-for", b"x-forwarded-proto")  # what the SuperLink believes of its peer
MOST = 64  # MiB of one call: a float32 model of 16 million weights
IDLE = 2.0  # seconds to keep a connection to the SuperLink, which closes its own after 5


def serve(keys: Path, address: tuple[str, int], superlink: str, most: int = MOST) -> None:
    """Listen with the certificate in `keys` and pass calls on to the SuperLink, until the process is told to stop."""
    trusted = ssl.create_default_context(cafile=keys / "ca.crt")
    client = httpx.AsyncClient(
        base_url=f"https://{superlink}",
        verify=trusted,
        timeout=60,
        limits=httpx.Limits(max_connections=None, keepalive_expiry=IDLE),
        trust_env=False,
    )
    config = uvicorn.Config(
        gate(client, most << 20),
        ssl_certfile=keys / "server.pem",
        ssl_keyfile=keys / "server.key",
        log_level="warning",
        lifespan="off",
        ws="none",
        proxy_headers=False,
        server_header=False,
        date_header=False,
    )
    with _listening(address) as listening, suppress(KeyboardInterrupt):
        uvicorn.Server(config).run([listening])


class TooLong(Exception):
    """A call with more bytes than any honest one."""


def gate(superlink: httpx.AsyncClient, most: int = MOST << 20) -> ASGIApp:
    """Pass calls of the fleet API on to the SuperLink, up to `most` bytes; to everything else the answer is 404."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        passes = request.method == "POST" and FLEET.fullmatch(scope["raw_path"]) and not scope["query_string"]
        answer = (
            await _passed(request, superlink, most) if passes else PlainTextResponse("only the fleet API is here", 404)
        )
        await answer(scope, receive, send)

    return app


async def _bounded(request: Request, most: int) -> AsyncIterator[bytes]:
    """The bytes of a call as they come, until they are too many."""
    async for part in request.stream():
        most -= len(part)
        if most < 0:
            raise TooLong
        yield part


async def _passed(request: Request, superlink: httpx.AsyncClient, most: int) -> Response:
    """What the SuperLink answers; 502, after which SuperNodes try again, if it does not."""
    headers = [(name, value) for name, value in request.headers.raw if name not in HOP + OURS]
    peer = request.client.host if request.client else ""
    question = superlink.build_request(
        "POST",
        request.scope["raw_path"].decode(),
        headers=[*headers, (b"x-forwarded-for", peer.encode())],
        content=_bounded(request, most),
    )
    try:
        answer = await superlink.send(question, stream=True)
    except TooLong:
        return PlainTextResponse(f"a call has at most {most} bytes", 413)
    except (httpx.TransportError, ClientDisconnect) as error:
        return PlainTextResponse(f"the SuperLink does not answer: {type(error).__name__}", 502)
    passed = StreamingResponse(answer.aiter_raw(), answer.status_code, background=BackgroundTask(answer.aclose))
    passed.raw_headers = [(name.lower(), value) for name, value in answer.headers.raw if name.lower() not in HOP]
    return passed


def _listening(address: tuple[str, int]) -> socket.socket:
    try:
        return socket.create_server(address, family=socket.AF_INET6 if ":" in address[0] else socket.AF_INET)
    except OSError as error:
        hint = "the SuperLink needs --host 127.0.0.1, and the gate an address of this machine that the network knows"
        raise UserError(f"cannot listen on {address[0]}:{address[1]}: {error.strerror}", hint) from error
