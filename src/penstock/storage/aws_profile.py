"""Credentials, region and endpoint from the profile in ~/.aws/credentials and ~/.aws/config, as AWS's own tools do.

Looked at when neither `storage_options` nor the environment name credentials. The profile is `profile` of the options,
AWS_PROFILE, or "default". Keys and `credential_process` are read here; profiles with a role or single sign-on need
boto3, or credentials exported by the AWS command line.
"""

from __future__ import annotations

import configparser
import json
import os
import shlex
import subprocess
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from penstock.core.errors import StorageError, UsageError

_CREDENTIALS = ("access_key_id", "skip_signature", "web_identity_token_file", "container_credentials_relative_uri")
_ENVIRONMENT = ("AWS_ACCESS_KEY_ID", "AWS_SKIP_SIGNATURE", "AWS_WEB_IDENTITY_TOKEN_FILE")


def settings(said: Mapping[str, Any], profile: str | None, provider: Any) -> tuple[dict[str, Any], Any]:
    """obstore's configuration from the profile, and a credential provider if the profile needs one."""
    wanted = profile or os.environ.get("AWS_PROFILE") or os.environ.get("AWS_DEFAULT_PROFILE")
    name = wanted or "default"
    found = _profile(name)
    if not found:
        if wanted and not any(key in said for key in _CREDENTIALS):
            raise UsageError(
                f"the AWS profile {name!r} in {_file('config')} or {_file('credentials')}", got="none of that name",
                fix="check AWS_PROFILE, or the profile of storage_options",
            )  # fmt: skip
        return {}, None
    config = _places(found)
    known = provider is not None or any(key in said for key in _CREDENTIALS)
    if known or (profile is None and any(os.environ.get(key) for key in _ENVIRONMENT)):
        return config, None
    if "aws_access_key_id" in found and "role_arn" not in found:
        config["access_key_id"] = found["aws_access_key_id"]
        config["secret_access_key"] = found.get("aws_secret_access_key", "")
        if "aws_session_token" in found:
            config["session_token"] = found["aws_session_token"]
        return config, None
    if "credential_process" in found:
        return config, Process(found["credential_process"], name)
    if any(key in found for key in ("role_arn", "sso_session", "sso_start_url", "source_profile")):
        return config, _with_boto3(name)
    return config, None


def _file(which: str) -> Path:
    name = {"config": "AWS_CONFIG_FILE", "credentials": "AWS_SHARED_CREDENTIALS_FILE"}[which]
    return Path(os.environ.get(name) or Path("~/.aws", which)).expanduser()


def _profile(name: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for which in ("config", "credentials"):
        parsed = configparser.RawConfigParser(strict=False, allow_no_value=True)
        try:
            parsed.read(_file(which), encoding="utf-8")
        except (OSError, configparser.Error, UnicodeDecodeError) as error:
            # Not the text of the error: it quotes lines, which may be secrets.
            raise StorageError(
                "an AWS config file that can be read", got=type(error).__name__, where=str(_file(which)),
                fix="repair the file, or pass credentials in storage_options",
            ) from None  # fmt: skip
        section = name if which == "credentials" or name == "default" else f"profile {name}"
        for part in (f"profile {name}", section):
            if parsed.has_section(part):
                found |= {key: value for key, value in parsed.items(part) if value is not None}
    if "services" in found:
        found |= _service(found["services"])
    return found


def _service(name: str) -> dict[str, str]:
    """The endpoint of `s3` in a [services] section: indented lines under `s3 =`."""
    parsed = configparser.RawConfigParser(strict=False, allow_no_value=True)
    parsed.read(_file("config"), encoding="utf-8")
    text = parsed.get(f"services {name}", "s3", fallback="") or ""
    pairs = (line.partition("=") for line in text.splitlines())
    return {key.strip(): value.strip() for key, _, value in pairs if key.strip() == "endpoint_url"}


def _places(found: Mapping[str, str]) -> dict[str, Any]:
    config = {}
    if "region" in found and not (os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")):
        config["region"] = found["region"]
    if "endpoint_url" in found and not (
        os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
        or os.environ.get("AWS_IGNORE_CONFIGURED_ENDPOINT_URLS", "").lower() == "true"
    ):  # fmt: skip
        config["endpoint"] = found["endpoint_url"]
    return config


class Process:
    """Credentials from a profile's `credential_process`, called again when they expire."""

    def __init__(self, command: str, profile: str) -> None:
        self.command, self.profile = command, profile

    def __repr__(self) -> str:
        return f"Process({self.profile!r})"

    def __call__(self) -> dict[str, Any]:
        where = f"credential_process of the AWS profile {self.profile!r}"
        try:
            made = subprocess.run(shlex.split(self.command), capture_output=True, check=True, timeout=60)
            answer = json.loads(made.stdout)
            key, secret = answer["AccessKeyId"], answer["SecretAccessKey"]
            expires = answer.get("Expiration")
            until = datetime.fromisoformat(expires.replace("Z", "+00:00")) if expires else None
        except (OSError, subprocess.SubprocessError, ValueError, KeyError, AttributeError) as error:
            raise StorageError(
                "credentials", got=f"{type(error).__name__} from the command", where=where,
                fix="run the command by hand and see what it says",
            ) from None  # fmt: skip
        token = answer.get("SessionToken")
        return {"access_key_id": key, "secret_access_key": secret, "token": token, "expires_at": until}


def _with_boto3(name: str) -> Any:
    try:
        import boto3
        from obstore.auth.boto3 import Boto3CredentialProvider
    except ImportError:
        raise StorageError(
            "credentials in the AWS profile", got=f"profile {name!r} uses a role or single sign-on, and no boto3",
            where=str(_file("config")),
            fix=f'pip install boto3, or: eval "$(aws configure export-credentials --profile {name} --format env)"',
        ) from None  # fmt: skip
    return Boto3CredentialProvider(boto3.session.Session(profile_name=name))
