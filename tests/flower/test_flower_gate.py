"""What the network sees of a SuperLink: an outsider with the certificate alone gets nowhere, registered keys work."""

import asyncio
import re
from pathlib import Path

import httpx
import pytest
from flwr.supercore.routers.runtime.router import router as runtime
from flwr.superlink.routers.control import router as control
from flwr.superlink.routers.fleet.router import router as fleet

from pfed1bs.cli.main import main
from pfed1bs.flower.gate import gate

PAGE = (Path(__file__).parents[2] / "docs/flower.md").read_text()


def paths(router):
    return [route.path.encode() for route in router.routes]


def asked(path, method="POST", query=b"", headers=(), superlink=None, **bounds):
    """Status of the gate's answer to one call, and the requests that reached the SuperLink behind it."""
    reached, said, body = [], [], [b"question"]

    async def backwards(data):
        yield data[::-1]

    def echo(request):
        reached.append(request)
        own = {"connection": "close", "x-own": "kept"}
        return httpx.Response(200, content=backwards(request.content), headers=own)

    async def receive():
        if body:
            return {"type": "http.request", "body": body.pop(), "more_body": False}
        await asyncio.Event().wait()  # nobody hangs up

    async def send(message):
        said.append(message)

    async def call():
        async with httpx.AsyncClient(transport=httpx.MockTransport(superlink or echo), base_url="https://it") as client:
            peer = {"client": ("10.0.0.9", 4711), "headers": [(b"host", b"gate"), *headers], "query_string": query}
            await gate(client, **bounds)({"type": "http", "method": method, "raw_path": path, **peer}, receive, send)

    asyncio.run(call())
    return said[0]["status"], reached, said


def test_every_call_of_the_fleet_api_passes_and_none_of_the_others():
    assert len(paths(fleet)) > 8 and len(paths(control)) > 20 and len(paths(runtime)) > 10
    for path in paths(fleet):
        status, reached, said = asked(path)
        assert status == 200 and [one.url.raw_path for one in reached] == [path]
        assert b"".join(one.get("body", b"") for one in said) == b"noitseuq"
    for path in [*paths(control), *paths(runtime), b"/health", b"/docs", b"/openapi.json", b"/"]:
        assert asked(path)[:2] == (404, []), path
        assert asked(path, method="GET")[:2] == (404, []), path


@pytest.mark.parametrize(
    "path",
    [
        b"/v1/fleet/../control/start-run",
        b"/v1/fleet/%2e%2e/control/start-run",
        b"/v1/fleet/..%2fcontrol%2fstart-run",
        b"/v1/fleet/..;/control/start-run",
        b"/v1/fleet/\\..\\control\\start-run",
        b"/v1/control/start-run/v1/fleet/get-run",
        b"https://it/v1/control/start-run",
        b"//v1/fleet/get-run",
        b"/v1/fleet/get-run\n",
        b"/v1/fleet/",
        b"/v1/fleet",
    ],
)
def test_no_spelling_of_a_path_leads_around_the_gate(path):
    assert asked(path)[:2] == (404, [])


def test_a_call_arrives_with_the_headers_of_the_node_and_the_address_it_came_from():
    forged = [(b"x-forwarded-for", b"127.0.0.1"), (b"forwarded", b"for=127.0.0.1"), (b"connection", b"x-key")]
    status, (request,), said = asked(b"/v1/fleet/get-run", headers=[(b"x-key", b"signed"), *forged])
    assert status == 200 and request.headers["x-key"] == "signed" and request.headers["host"] == "it"
    assert request.headers.get_list("x-forwarded-for") == ["10.0.0.9"] and "forwarded" not in request.headers
    assert (b"x-own", b"kept") in said[0]["headers"] and b"connection" not in dict(said[0]["headers"])
    assert asked(b"/v1/fleet/get-run", query=b"a=1")[:2] == (404, [])
    assert asked(b"/v1/fleet/get-run", method="GET")[:2] == (404, [])


def test_a_call_that_is_too_long_is_cut_off_before_the_superlink_has_it():
    status, reached, _ = asked(b"/v1/fleet/get-run", most=7)
    assert status == 413 and not reached
    assert asked(b"/v1/fleet/get-run", most=8)[0] == 200


def test_while_the_superlink_is_away_nodes_are_told_to_try_again():
    def away(request):
        raise httpx.ConnectError("refused", request=request)

    assert asked(b"/v1/fleet/get-run", superlink=away)[0] == 502


def test_the_gate_says_what_it_needs(tmp_path, capsys):
    assert main(["flower", "gate", str(tmp_path), "--host", "127.0.0.2"]) == 2
    assert "ca.crt is missing" in capsys.readouterr().err
    assert main(["flower", "certificates", str(tmp_path / "keys"), "--nodes", "1"]) == 0
    assert f"pfed1bs flower gate {tmp_path}/keys --host" in capsys.readouterr().out
    assert main(["flower", "gate", str(tmp_path / "keys"), "--host", "192.0.2.1"]) == 2  # nobody's address
    assert "needs --host 127.0.0.1" in capsys.readouterr().err


def test_no_command_of_the_document_opens_the_superlink_itself_to_a_network():
    commands = re.findall(r"flower-superlink .*", PAGE)
    assert len(commands) > 2 and all("--host 127.0.0.1 " in command for command in commands)
