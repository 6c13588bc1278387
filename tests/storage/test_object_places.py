"""Credentials from the usual places, keys of any spelling, secrets that never show, and gs:// and az://."""

import json
import os
import sys
import traceback

import numpy as np
import pytest

import penstock as ps
from penstock.core.errors import PenstockError, StorageError, UsageError
from penstock.storage import filesystem, objects
from tests.storage import servers
from tests.storage.fake_gcs import FakeGCS

NAMES = ["a b", "50%", "a%20b", "a#b", "a+b", "a?b", "ünï", "ü", "a&b=c", "a*b", "a[b]", "nbsp\u00a0", "-", "~"]


def test_keys_of_any_spelling_are_read_exactly(s3, tmp_path):
    base = s3.url(tmp_path.name)
    for name in NAMES:
        assert objects.put_new(f"{base}/{name}.txt", name.encode(), s3.options)
    for name in NAMES:
        assert objects.read_all(f"{base}/{name}.txt", s3.options) == name.encode()
        assert filesystem.expand(f"{base}/{name}.txt", s3.options) == [f"{base}/{name}.txt"]
    assert sorted(filesystem.expand(base, s3.options, [".txt"])) == sorted(f"{base}/{name}.txt" for name in NAMES)
    rows = ps.read_text(base, storage_options=s3.options).peek(len(NAMES))
    assert sorted(row["text"] for row in rows) == sorted(NAMES)


@pytest.mark.parametrize("key", ["a//b", "/a", "a/../b", "../a", "a/./b", "a\nb", "a\x00b"])
def test_keys_that_would_be_read_as_another_are_refused(s3, key):
    for act in (objects.read_all, filesystem.stamp, filesystem.expand, objects.list_files):
        with pytest.raises(UsageError, match="single slashes"):
            act(f"s3://bucket/{key}", s3.options)
    with pytest.raises(UsageError):
        objects.put_new(f"s3://bucket/{key}", b"1", s3.options)
    with pytest.raises(UsageError, match="name the object"):
        objects.read_all("s3://bucket/folder/", s3.options)


@pytest.fixture
def stored(s3, tmp_path):
    url = s3.url(tmp_path.name, "one")
    assert objects.put_new(url, b"1", s3.options)
    return url


@pytest.fixture
def no_aws(monkeypatch, tmp_path):
    for name in [n for n in os.environ if n.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    return monkeypatch


def test_folders_named_like_globs_are_read_exactly(s3, tmp_path):
    for name in ("q?x=1", "[br]", "star*", "star2"):
        objects.put_new(s3.url(tmp_path.name, name, "a.txt"), name.encode(), s3.options)
    for name in ("q?x=1", "[br]", "star*"):
        assert filesystem.expand(s3.url(tmp_path.name, name) + "/", s3.options) == [
            s3.url(tmp_path.name, name, "a.txt")
        ]
    found = filesystem.expand(s3.url(tmp_path.name, "s*", "*.txt"), s3.options)
    assert [url.split("/")[-2] for url in found] == ["star*", "star2"]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("endpoint", "127.0.0.1:9000"), ("endpoint", "http://127.0.0.1:9000 "), ("endpoint", "http://[::"),
        ("endpoint", "http://127.0.0.1:99999"), ("endpoint", "http://"), ("access_key_id", "key\n"),
        ("secret_access_key", "secret-of-mine\r\n"), ("session_token", "a\nb"), ("region", "us-east-1\n"),
    ],
)  # fmt: skip
def test_what_cannot_be_part_of_a_request_is_refused(s3, name, value):
    with pytest.raises(ps.UsageError, match=name) as caught:  # obstore panics: not an Exception, and a long backtrace
        filesystem.stamp(s3.url("any"), s3.options | {name: value})
    assert "secret-of-mine" not in str(caught.value) and "s3://bucket" in str(caught.value)


def test_a_line_break_in_the_environment_and_spaces_in_a_bucket(s3, stored, no_aws, monkeypatch):
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key\n")
    with pytest.raises(ps.UsageError, match="AWS_ACCESS_KEY_ID without line breaks"):
        filesystem.stamp(s3.url("any"), {"endpoint": s3.endpoint})
    with pytest.raises(ps.UsageError, match="the name of a bucket without spaces"):
        filesystem.stamp("s3://buc ket/a", s3.options)


def test_credentials_from_the_environment(s3, stored, no_aws):
    no_aws.setenv("AWS_ACCESS_KEY_ID", servers.KEY)
    no_aws.setenv("AWS_SECRET_ACCESS_KEY", servers.SECRET)
    no_aws.setenv("AWS_ENDPOINT_URL", s3.endpoint)
    assert objects.read_all(stored) == b"1"


def test_credentials_from_profiles(s3, stored, no_aws, tmp_path):
    (tmp_path / "credentials").write_text(
        f"[default]\naws_access_key_id = nobody\naws_secret_access_key = nothing\n"
        f"[team]\naws_access_key_id = {servers.KEY}\naws_secret_access_key = {servers.SECRET}\n"
    )
    command = tmp_path / "command.py"
    answer = {"Version": 1, "AccessKeyId": servers.KEY, "SecretAccessKey": servers.SECRET}
    command.write_text(f"print({json.dumps(json.dumps(answer))})")
    (tmp_path / "config").write_text(
        f"[profile team]\nregion = eu-central-1\nendpoint_url = {s3.endpoint}\n"
        f"[default]\nendpoint_url = {s3.endpoint}\n"
        f"[profile process]\nendpoint_url = {s3.endpoint}\ncredential_process = {sys.executable} {command}\n"
        f"[profile role]\nrole_arn = arn:aws:iam::1:role/x\nsource_profile = team\n"
    )
    assert objects.read_all(stored, {"profile": "team"}) == b"1"
    assert objects.read_all(stored, {"profile": "process"}) == b"1"
    with pytest.raises(StorageError, match="credentials"):
        objects.read_all(stored)
    no_aws.setenv("AWS_PROFILE", "team")
    assert objects.read_all(stored) == b"1"
    no_aws.setenv("AWS_PROFILE", "role")
    with pytest.raises(StorageError, match="export-credentials"):
        objects.read_all(stored)
    no_aws.setenv("AWS_PROFILE", "other")
    with pytest.raises(UsageError, match="AWS profile 'other'"):
        objects.read_all(stored)


def test_names_of_s3fs_and_a_provider(s3, stored, no_aws):
    fsspec = {"key": servers.KEY, "secret": servers.SECRET, "client_kwargs": {"endpoint_url": s3.endpoint}}
    assert objects.read_all(stored, fsspec | {"default_block_size": 1, "use_listings_cache": False}) == b"1"

    def provider():
        return {"access_key_id": servers.KEY, "secret_access_key": servers.SECRET, "expires_at": None}

    assert objects.read_all(stored, {"endpoint": s3.endpoint, "credential_provider": provider}) == b"1"


def test_secrets_never_show(s3, tmp_path):
    url = s3.url(tmp_path.name, "a.jsonl")
    objects.put_new(url, b'{"text": "one"}\n' * 8, s3.options)
    secret = "s3cr3t-s3cr3t"
    wrong = s3.options | {"secret_access_key": secret, "session_token": secret + "-token"}
    with pytest.raises(PenstockError) as caught:
        ps.read_jsonl(url, storage_options=wrong)
    assert secret not in "".join(traceback.format_exception(caught.value))
    azure = {"account_name": "x", "sas_key": f"sv=1&sig={secret}", "endpoint": "http://127.0.0.1:9/x"}
    with pytest.raises(PenstockError) as caught:
        objects.read_all("az://box/key", azure | {"retry_config": {"max_retries": 0}})
    assert secret not in "".join(traceback.format_exception(caught.value))
    right = s3.options | {"user_agent_note": None}
    pipeline = ps.read_jsonl(url, storage_options=right).batch(2)
    loader = pipeline.to_numpy()
    next(iter(loader))
    for text in (repr(pipeline), str(pipeline), json.dumps(loader.state_dict(), default=str), repr(loader)):
        assert servers.SECRET not in text
    local = tmp_path / "a.jsonl"
    local.write_bytes(b'{"text": "one"}\n' * 8)
    assert pipeline.fingerprint() == ps.read_jsonl(local).batch(2).fingerprint()


def _exercise(base, options):
    data = os.urandom(200_000)
    url = objects.join(base, "folder", "a b#1.bin")
    assert objects.honours_create_only(base, options)
    assert objects.put_new(url, data, options) and not objects.put_new(url, b"other", options)
    stamp = filesystem.stamp(url, options)
    assert stamp.size == len(data)
    ranges = [(0, 10), (100_000, 150_000), (199_999, 200_000)]
    assert filesystem.read_ranges(url, ranges, options, expected=stamp) == [data[a:b] for a, b in ranges]
    assert [(one.url, one.size, one.tag) for one in objects.list_files(base, options)] == [(url, len(data), stamp.tag)]
    lines = objects.join(base, "lines.jsonl")
    objects.put_new(lines, b"".join(b'{"text": "%d"}\n' % n for n in range(100)), options)
    assert filesystem.expand(objects.join(base, "*.jsonl"), options) == [lines]
    source = ps.read_jsonl(lines, storage_options=options).definition.origin
    assert source.read(np.array([99, 0]))["text"].tolist() == ["99", "0"]
    objects.delete([lines], options)
    assert objects.put_new(lines, b"".join(b'{"text": "%d"}\n' % n for n in range(99, -1, -1)), options)
    with pytest.raises(StorageError, match="ETag differs"):
        source.read(np.array([5]))
    objects.delete([url, lines, lines], options)
    assert objects.list_files(base, options) == []


def test_google_cloud_storage():
    with FakeGCS() as server:
        _exercise("gs://bucket/x", {"endpoint_url": server.endpoint, "bearer_token": "t"})
        server.ignores_if_match = True  # then the ETag of the answer tells
        _exercise("gs://bucket/y", {"base_url": server.endpoint, "bearer_token": "t"})


def test_azure(tmp_path):
    with servers.azurite(tmp_path) as (endpoint, connection):
        options = {"connection_string": connection}
        _exercise("az://box/x", options)
        _exercise("abfs://box/y", {"account_name": "devstoreaccount1", "account_key": servers.AZURE_KEY,
                                    "endpoint": endpoint})  # fmt: skip
