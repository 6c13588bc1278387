"""`penstock doctor` names what is installed and missing, from the metadata of the installation."""

import json
from importlib import metadata

from penstock.cli.main import main
from tests.codecs.image.regions import OFF, installed, using


def test_versions_are_those_of_the_installed_packages(capsys):
    assert main(["doctor", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    extras = {extra["name"]: extra for extra in facts["extras"]}
    assert extras["torch"]["packages"] == {"torch": metadata.version("torch")}
    assert extras["torch"]["installed"]
    assert not {"all", "dev", "demo", "bench"} & set(extras)
    assert facts["machine"]["processors"] >= facts["machine"]["usable_processors"] > 0


def test_it_says_which_library_decodes_crops_of_jpegs(capsys):
    for named in (OFF, installed()):
        with using(named) as which:
            assert main(["doctor"]) == 0
            line = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("jpeg crops"))
            assert line.split(maxsplit=2)[2] == (f"full width ({which})" if named == OFF else which)


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
