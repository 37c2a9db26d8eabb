"""Downloads from a server on this machine: whole, wrong, cut off, resumed."""

import gzip
import hashlib
import threading
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest

from pfed1bs.data import download as module
from pfed1bs.data import load
from pfed1bs.data.catalogue import CATALOGUE
from pfed1bs.data.download import download, fetch

CONTENT = bytes(range(256)) * 4000  # about a megabyte, so that it comes in several pieces
MD5 = hashlib.md5(CONTENT).hexdigest()


class Handler(BaseHTTPRequestHandler):
    """Serves `server.files`, with Range where `server.ranges`; stops after `server.cut` bytes of a body once."""

    def do_GET(self):
        server = self.server
        wanted = self.headers.get("Range")
        server.asked.append((self.path, wanted))
        if self.path == "/moved":
            self.send_response(302)
            self.send_header("Location", server.target)
            self.end_headers()
            return
        if self.path not in server.files:
            self.send_error(404)
            return
        body = server.files[self.path]
        start = int(wanted.removeprefix("bytes=").removesuffix("-")) if wanted and server.ranges else 0
        if start and start >= len(body):
            self.send_error(416)
            return
        self.send_response(206 if start else 200)
        self.send_header("Content-Length", str(len(body) - start))
        self.end_headers()
        cut, server.cut = server.cut, None
        self.wfile.write(body[start:cut])

    def log_message(self, *_):
        pass


@pytest.fixture
def server(monkeypatch):
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(module, "TIMEOUT", 5.0)
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.files, server.asked, server.ranges, server.cut, server.target = {"/file": CONTENT}, [], True, None, ""
        server.base = f"http://127.0.0.1:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        yield server
        server.shutdown()
        thread.join(10)


def test_a_good_file_arrives_whole_and_leaves_nothing_beside_it(server, tmp_path):
    download(f"{server.base}/file", tmp_path / "new" / "file", MD5)
    assert (tmp_path / "new" / "file").read_bytes() == CONTENT
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["file"]


def test_progress_is_shown_on_a_terminal_and_only_on_stderr(server, tmp_path, monkeypatch, capsys):
    download(f"{server.base}/file", tmp_path / "quiet", MD5)
    assert capsys.readouterr() == ("", "")
    monkeypatch.setenv("FORCE_COLOR", "1")  # rich takes this for a terminal
    download(f"{server.base}/file", tmp_path / "shown", MD5)
    out, err = capsys.readouterr()
    assert out == "" and "shown" in err and "1.0/1.0" in err


def test_a_wrong_checksum_removes_the_file(server, tmp_path):
    with pytest.raises(ValueError, match=f"arrived with MD5 {MD5}, but 0000 is expected; it was removed; try again"):
        download(f"{server.base}/file", tmp_path / "file", "0000")
    assert list(tmp_path.iterdir()) == []


def test_a_cut_download_is_kept_and_continued(server, tmp_path):
    server.cut = 300_000
    with pytest.raises(
        ConnectionError, match=r"cut off after 300000 of 1024000 bytes; the 300000 bytes in .*file\.part"
    ):
        download(f"{server.base}/file", tmp_path / "file", MD5)
    assert (tmp_path / "file.part").read_bytes() == CONTENT[:300_000]
    assert not (tmp_path / "file").exists()
    download(f"{server.base}/file", tmp_path / "file", MD5)
    assert (tmp_path / "file").read_bytes() == CONTENT
    assert server.asked == [("/file", None), ("/file", "bytes=300000-")]


def test_a_server_without_ranges_sends_everything_again(server, tmp_path):
    server.ranges = False
    (tmp_path / "file.part").write_bytes(b"x" * 2_000_000)  # longer than the file: the rest must go
    download(f"{server.base}/file", tmp_path / "file", MD5)
    assert (tmp_path / "file").read_bytes() == CONTENT


def test_a_part_that_is_whole_already_is_only_checked(server, tmp_path):
    (tmp_path / "file.part").write_bytes(CONTENT)
    download(f"{server.base}/file", tmp_path / "file", MD5)
    assert (tmp_path / "file").read_bytes() == CONTENT


def test_a_part_of_something_else_is_removed_and_the_next_try_succeeds(server, tmp_path):
    (tmp_path / "file.part").write_bytes(b"x" * 1000)
    with pytest.raises(ValueError, match="it was removed; try again"):
        download(f"{server.base}/file", tmp_path / "file", MD5)
    download(f"{server.base}/file", tmp_path / "file", MD5)
    assert (tmp_path / "file").read_bytes() == CONTENT


def test_a_missing_file_and_a_silent_port_say_what_to_do(server, tmp_path):
    with pytest.raises(ConnectionError, match="answered 404 Not Found; check the network, or put the file by hand"):
        download(f"{server.base}/other", tmp_path / "other", MD5)
    with pytest.raises(ConnectionError, match="could not be downloaded: .*refused.*; check the network"):
        download("http://127.0.0.1:1/file", tmp_path / "other", MD5)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("address", ["file:///etc/hostname", "ftp://127.0.0.1/file", "file"])
def test_only_http_is_spoken(tmp_path, address):
    with pytest.raises(ValueError, match="only http and https addresses"):
        download(address, tmp_path / "file", MD5)


def test_redirects_are_followed_but_not_out_of_http(server, tmp_path):
    server.target = f"{server.base}/file"
    download(f"{server.base}/moved", tmp_path / "file", MD5)
    assert (tmp_path / "file").read_bytes() == CONTENT
    server.target = "ftp://127.0.0.1:1/file"
    with pytest.raises(ConnectionError, match="answered 302 Found"):
        download(f"{server.base}/moved", tmp_path / "other", MD5)


def test_a_whole_data_set_comes_from_a_mirror_into_the_cache_once(server, tmp_path, monkeypatch):
    files = {}
    for name in CATALOGUE["mnist"].files:
        shape = (12, 28, 28) if "images" in name else (12,)
        header = b"\0\0\x08" + bytes([len(shape)]) + b"".join(size.to_bytes(4, "big") for size in shape)
        files[name] = gzip.compress(header + bytes(int(np.prod(shape))))
    server.files = {f"/data/mnist/{name}": content for name, content in files.items()}
    sums = {name: hashlib.md5(content).hexdigest() for name, content in files.items()}
    mnist = replace(CATALOGUE["mnist"], address="http://127.0.0.1:1", files=sums)
    monkeypatch.setitem(CATALOGUE, "mnist", mnist)
    monkeypatch.delenv("PFED1BS_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("PFED1BS_MIRROR", f"{server.base}/data/")
    assert len(load("mnist").train_labels) == 12
    assert sorted(path.name for path in (tmp_path / "pfed1bs" / "mnist").iterdir()) == sorted(files)
    load("mnist")
    fetch("mnist", tmp_path / "pfed1bs" / "mnist", server.base)
    assert len(server.asked) == 4


def test_every_downloadable_set_names_an_md5_for_every_file():
    found = [name for name, known in CATALOGUE.items() if known.files]
    published = [CATALOGUE[name] for name in found]
    assert found == ["mnist", "fmnist", "cifar10", "cifar100", "svhn"]
    assert set(CATALOGUE) - {*found} == {"digits", "audiomnist", "shakespeare"}
    for known in published:
        assert known.address.startswith(("http://", "https://")) and not known.address.endswith("/")
        assert all(len(md5) == 32 and int(md5, 16) for md5 in known.files.values()) and known.files


def test_the_catalogue_knows_what_samples_look_like():
    digits, known = load("digits"), CATALOGUE["digits"]
    assert (digits.shape, digits.num_classes, digits.mean) == (known.shape, known.num_classes, known.mean)
    for known in CATALOGUE.values():
        assert len(known.mean) == len(known.std) == (known.shape[0] if len(known.shape) == 3 else 0)
