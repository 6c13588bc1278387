"""Other sites, other users and other methods cannot reach the viewer."""

from __future__ import annotations

import http.client
import logging
import re
import threading
from urllib.parse import urlsplit

import pytest

import penstock as ps


@pytest.fixture
def client(viewer):
    return viewer(ps.from_texts(["a SECRET text"]))


def test_only_the_token_lets_in_and_then_the_cookie(client) -> None:
    split = urlsplit(client.viewer.url)
    entry = client.enter()
    assert entry.status == 200 and 'content="0;url=/"' in entry.text
    assert re.search(r"penstock-\d+=\S+; Path=/; HttpOnly; SameSite=Strict$", entry.headers["set-cookie"])
    token = split.query.removeprefix("token=")
    assert token not in client.cookie  # an address in a history is not the cookie
    assert client.get("/data").status == 200
    for path in ("/data", "/data?token=", "/data?token=wrong", f"/data?token={token[:-1]}", f"/data?x={token}",
                 "/static/view.js", "/", "/data?token=%ff%fe"):  # fmt: skip
        answer = client.get(path, Cookie="")
        assert answer.status == 403 and "SECRET" not in answer.text and "set-cookie" not in answer.headers, path
    for cookie in (client.cookie[:-1], client.cookie.replace("penstock", "other"), "a=;;\x01=", f"x={token}"):
        assert client.get("/data", Cookie=cookie).status == 403
    onward = client.get(f"/data?q=a%20b%3C&token={token}", Cookie="").text
    assert "0;url=/data?q=a+b%3C" in onward and token not in onward
    assert "0;url=/evil.example" in client.get(f"//evil.example?token={token}", Cookie="").text  # stays on this host


def test_a_site_that_resolves_to_this_machine_is_refused(client) -> None:
    port = client.viewer.port
    for host in ("evil.example", f"evil.example:{port}", "127.0.0.1", f"127.0.0.1:{port + 1}", f"127.0.0.1:{port}.x",
                 f"127.0.0.1:{port}@evil", ""):  # fmt: skip
        answer = client.get("/data", Host=host)
        assert answer.status in (400, 403) and "SECRET" not in answer.text, host
    assert client.get("/data", Host=f"localhost:{port}").status == 200


def test_other_origins_and_methods_are_refused(client) -> None:
    port = client.viewer.port
    for origin in ("http://evil.example", "null", f"http://127.0.0.1:{port + 1}", f"https://127.0.0.1:{port}"):
        assert client.get("/data", Origin=origin).status == 403, origin
    assert client.get("/data", Origin=f"http://127.0.0.1:{port}").status == 200
    for site in ("cross-site", "same-site"):  # another port of this machine is the same site, and gets our cookie
        assert client.get("/data", Sec_Fetch_Site=site, Sec_Fetch_Mode="no-cors", Sec_Fetch_Dest="image").status == 403
        framed = {"Sec_Fetch_Mode": "navigate", "Sec_Fetch_Dest": "iframe"}
        assert client.get("/data", Sec_Fetch_Site=site, **framed).status == 403
    for method in ("POST", "PUT", "DELETE", "OPTIONS", "PATCH"):
        assert client.request("/data", method).status in (403, 405), method
    assert client.request("/data", "HEAD").status == 200


def test_every_answer_forbids_scripts_frames_sniffing_and_caching(client) -> None:
    for answer in (client.get("/data"), client.get("/data", Cookie=""), client.get("/nothing"), client.enter(),
                   client.get("/static/view.js"), client.get("/static/view.css")):  # fmt: skip
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'" in policy and "unsafe" not in policy and "frame-ancestors 'none'" in policy
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["referrer-policy"] == "no-referrer"
        assert answer.headers["cache-control"] == "no-store"
        assert "access-control-allow-origin" not in answer.headers and "server" not in answer.headers
    assert client.get("/nothing").status == 404


def test_no_path_leads_to_files(client) -> None:
    for path in ("/../../etc/passwd", "/static/../session.py", "/static/%2e%2e/session.py", "/static/..%2fguard.py",
                 "/data/../../etc/passwd", "/static/view.js/../../guard.py", "//etc/passwd"):  # fmt: skip
        answer = client.get(path)
        assert answer.status == 404 and "root:" not in answer.text and "Guard" not in answer.text, path


def test_it_listens_on_this_machine_only_logs_nothing_and_ends(viewer, caplog, capfd) -> None:
    with caplog.at_level(logging.DEBUG):
        client = viewer(ps.from_texts(["a"]))
        client.get("/data?q=SECRET")
        client.get("/wrong", Cookie="")
    assert client.viewer._socket.getsockname()[0] == "127.0.0.1"
    out, err = capfd.readouterr()
    for text in (caplog.text, out, err):
        assert "SECRET" not in text and "token=" not in text and client.cookie.partition("=")[2] not in text
    client.viewer.close()
    assert not [thread for thread in threading.enumerate() if thread.name == "penstock view" and thread.is_alive()]
    assert "closed" in repr(client.viewer)
    with pytest.raises(OSError, match=r"refused"):
        client.get("/data")


def test_a_header_that_is_sent_twice_is_refused(client) -> None:
    own = f"http://127.0.0.1:{client.viewer.port}"
    connection = http.client.HTTPConnection("127.0.0.1", client.viewer.port, timeout=60)
    connection.putrequest("GET", "/data")
    for name, value in (("Cookie", client.cookie), ("Origin", "http://evil.example"), ("Origin", own)):
        connection.putheader(name, value)
    connection.endheaders()
    answer = connection.getresponse()
    assert answer.status == 400 and b"sent twice" in answer.read()
    connection.close()
