"""Turns `storage_options` and the usual configuration of each cloud into the settings of an obstore client.

Names of obstore and the common names of s3fs, gcsfs and adlfs are understood; names that only tune those libraries are
ignored; any other name is refused by obstore. What is not said comes from the environment (obstore reads AWS_*,
GOOGLE_* and AZURE_STORAGE_* itself) and, for S3, from the profile in ~/.aws.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any
from urllib.parse import urlsplit

from penstock.core.errors import UsageError
from penstock.core.signals import surface
from penstock.storage import aws_profile
from penstock.storage.retry import Policy

IN_FLIGHT = 32
READ_TIMEOUT = timedelta(seconds=10)  # without a byte: the request is given up and made again
SMALL_WRITE = 4 << 20
_TIMEOUTS = {"read": 300, "list": 300, "small write": 60, "write": 1800}
_NAMES = {
    "s3": {
        "key": "access_key_id", "secret": "secret_access_key", "token": "session_token", "anon": "skip_signature",
        "endpoint_url": "endpoint", "region_name": "region", "requester_pays": "request_payer",
        "aws_access_key_id": "access_key_id", "aws_secret_access_key": "secret_access_key",
        "aws_session_token": "session_token",
    },
    "gs": {"anon": "skip_signature", "endpoint_url": "base_url", "endpoint": "base_url"},
    "az": {
        "anon": "skip_signature", "sas_token": "sas_key", "endpoint_url": "endpoint", "account_host": "endpoint",
    },
}  # fmt: skip
# Of s3fs, gcsfs and adlfs: they change how those libraries work, not what is read.
_IGNORED = frozenset(
    {
        "asynchronous", "batch_size", "block_size", "blocksize", "cache_regions", "cache_timeout", "cache_type",
        "consistency", "default_block_size", "default_cache_type", "default_fill_cache", "listings_expiry_time",
        "max_concurrency", "max_paths", "project", "secure_serialize", "session_kwargs", "skip_instance_cache",
        "use_listings_cache", "version_aware",
    }
)  # fmt: skip


_NEVER_IN_NAMES = frozenset(' "<>^`{|}\\')
_IN_REQUESTS = {
    "s3": (
        "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_REGION", "AWS_DEFAULT_REGION",
    ),
    "gs": (),
    "az": ("AZURE_STORAGE_ACCOUNT_NAME", "AZURE_STORAGE_ACCOUNT_KEY", "AZURE_STORAGE_SAS_TOKEN"),
}  # fmt: skip


@dataclass
class Settings:
    """The settings of a client. `extra` are arguments of obstore's store classes besides the configuration."""

    bucket: str
    config: dict[str, Any]
    client_options: dict[str, Any]
    policy: Policy
    hedge: bool = True
    in_flight: int = IN_FLIGHT
    read_twice: bool = False  # what there is nothing to compare with is read until two answers agree
    extra: dict[str, Any] = field(default_factory=dict)

    def __repr__(self) -> str:
        return f"Settings({self.bucket!r})"  # the rest may hold secrets

    def client(self, use: str) -> dict[str, Any]:
        """Client options for a use (see `Bucket.client`). An upload has no answer to wait for until it has ended."""
        options = {"timeout": timedelta(seconds=_TIMEOUTS[use]), **self.client_options}
        if use in ("read", "list"):
            options.setdefault("read_timeout", READ_TIMEOUT)
        else:
            options.pop("read_timeout", None)
        return options


def settings(kind: str, bucket: str, options: Mapping[str, Any]) -> Settings:
    """The settings for a bucket: what was said, then the environment, then the config files."""
    said = {**options.get("client_kwargs", {}), **options}
    said.pop("client_kwargs", None)
    client_options = dict(said.pop("client_options", {}))
    made, said = requests(said, f"{kind}://{bucket}")
    provider = said.pop("credential_provider", None)
    if said.pop("verify", True) is False:
        client_options.setdefault("allow_invalid_certificates", True)
    secure = said.pop("use_ssl", True)
    family = "az" if kind == "abfs" else kind
    profile = said.pop("profile", None)
    bucket, config = _translated(family, bucket, said)
    if family == "s3":
        found, found_provider = aws_profile.settings(config, profile, provider)
        config, provider = {**found, **config}, provider or found_provider
        config.setdefault("region", "us-east-1") if not _set("AWS_REGION", "AWS_DEFAULT_REGION") else None
    endpoint = str(config.get("endpoint") or config.get("base_url") or _endpoint(family))
    if endpoint.startswith("http://") or not secure:
        client_options.setdefault("allow_http", True)
    _check(family, bucket, config, endpoint)
    extra = {} if provider is None else {"credential_provider": provider}
    return replace(made, bucket=bucket, config=config, client_options=client_options, extra=extra)


def requests(said: dict[str, Any], where: str = "storage_options") -> tuple[Settings, dict[str, Any]]:
    """The settings of how requests are made, to any storage, and the options that are left."""
    policy = Policy.of(said.pop("retry_config", None))
    hedge, in_flight = bool(said.pop("hedge", True)), int(said.pop("in_flight", IN_FLIGHT))
    read_twice = bool(said.pop("read_twice", False))
    if in_flight < 1:
        raise UsageError("in_flight of at least 1 request", got=repr(in_flight), where=where)
    return Settings("", {}, {}, policy, hedge, in_flight, read_twice), said


def _check(family: str, bucket: str, config: Mapping[str, Any], endpoint: str) -> None:
    """Refuses what cannot be part of a request: obstore would panic. Values may be secrets, and are not shown."""
    where = f"{family}://{bucket}"
    if not bucket.isprintable() or set(bucket) & _NEVER_IN_NAMES:
        raise UsageError(
            "the name of a bucket without spaces and quotes", got=repr(bucket), where=where, fix="correct the URL"
        )
    if endpoint and not _is_endpoint(endpoint):
        raise UsageError(
            "an endpoint such as http://127.0.0.1:9000 or https://s3.example.com", got=repr(endpoint), where=where,
            fix=f"endpoint={'http://' + endpoint!r}, if that is meant" if "://" not in endpoint else "correct it",
        )  # fmt: skip
    said = {name: value for name, value in config.items() if isinstance(value, str) and name != "service_account_key"}
    said |= {name: os.environ[name] for name in _IN_REQUESTS[family] if name in os.environ}
    for name, value in said.items():
        if any(ord(letter) < 32 or ord(letter) == 127 for letter in value):
            raise UsageError(
                f"{name} without line breaks and control characters", got=f"{len(value)} letters with some",
                where=where, fix="remove the line break at its end",
            )  # fmt: skip


def _is_endpoint(text: str) -> bool:
    try:
        parts = urlsplit(text)
        known = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError as error:
        surface(error)
        return False
    return known and text.isprintable() and not set(text) & _NEVER_IN_NAMES


def _set(*names: str) -> bool:
    return any(os.environ.get(name) for name in names)


def _endpoint(family: str) -> str:
    names = {
        "s3": ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"), "gs": ("GOOGLE_BASE_URL",),
        "az": ("AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT"),
    }[family]  # fmt: skip
    return next((os.environ[name] for name in names if os.environ.get(name)), "")


def _translated(family: str, bucket: str, said: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """Names of fsspec's libraries as obstore's."""
    config: dict[str, Any] = {}
    for name, value in said.items():
        if name == "config_kwargs":
            style = dict(value.get("s3", {})).get("addressing_style")
            if style is not None:
                config["virtual_hosted_style_request"] = style == "virtual"
        elif name not in _IGNORED and value is not None:
            config[_NAMES[family].get(name, name)] = value
    if family == "gs":
        _google(config)
    if family == "az":
        return _azure(bucket, config), config
    return bucket, config


def _google(config: dict[str, Any]) -> None:
    """gcsfs's `token`: "anon", a service account as dict, or the path of its file."""
    token = config.pop("token", None)
    if token == "anon":
        config["skip_signature"] = True
    elif isinstance(token, Mapping):
        config["service_account_key"] = json.dumps(dict(token))
    elif isinstance(token, str | os.PathLike) and token not in ("google_default", "cloud", "cache"):
        config["application_credentials"] = os.fspath(token)


def _azure(bucket: str, config: dict[str, Any]) -> str:
    """The container; the account from `container@account.dfs...` or from a connection string."""
    container, at, host = bucket.partition("@")
    if at:
        config.setdefault("account_name", host.partition(".")[0])
    text = config.pop("connection_string", None)
    if text is None and not any(k in config for k in ("account_name", "account_key", "sas_key", "endpoint")):
        text = os.environ.get("AZURE_STORAGE_CONNECTION_STRING")
    if text:
        parts = dict(part.split("=", 1) for part in str(text).split(";") if "=" in part)
        names = {
            "AccountName": "account_name", "AccountKey": "account_key", "SharedAccessSignature": "sas_key",
            "BlobEndpoint": "endpoint",
        }  # fmt: skip
        for theirs, ours in names.items():
            if theirs in parts:
                config.setdefault(ours, parts[theirs])
    credential = config.pop("credential", None)
    if isinstance(credential, str):
        config.setdefault("sas_key" if "sig=" in credential else "account_key", credential)
    elif credential is not None:
        raise UsageError("credential as str", got=type(credential).__name__, fix='pass {"credential_provider": ...}')
    return container
