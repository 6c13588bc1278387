"""`penstock doctor` names what is installed and missing, from the metadata of the installation."""

import json
from importlib import metadata

from penstock.cli.main import main


def test_versions_are_those_of_the_installed_packages(capsys):
    assert main(["doctor", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    extras = {extra["name"]: extra for extra in facts["extras"]}
    assert extras["torch"]["packages"] == {"torch": metadata.version("torch")}
    assert extras["torch"]["installed"]
    assert not {"all", "dev", "demo", "bench"} & set(extras)
    assert facts["machine"]["processors"] >= facts["machine"]["usable_processors"] > 0


def test_a_missing_package_is_named_with_the_line_that_installs_it(capsys, monkeypatch):
    found = metadata.version

    def version(name):
        if name == "soxr":
            raise metadata.PackageNotFoundError(name)
        return found(name)

    monkeypatch.setattr(metadata, "version", version)
    assert main(["doctor"]) == 0
    out = capsys.readouterr().out
    assert "missing  audio" in out
    assert "soxr (missing)" in out
    assert "pip install 'penstock-data[audio]'" in out
    assert "missing  torch" not in out
