"""Settings: documented defaults, files in three formats, and misspelt names."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import pytest

from penstock.core.errors import DataError, UsageError
from penstock.facades.capibara.config import CapibaraConfig, DataLoaderConfig, settings_of


def test_documented_defaults() -> None:
    config = DataLoaderConfig()
    named = ("batch_size", "shuffle", "num_workers", "max_length", "dataset_name", "cache_dir")
    assert [getattr(config, name) for name in named] == [32, True, 4, 2048, "wikitext", None]
    assert [f.name for f in fields(config)][:6] == list(named)
    assert CapibaraConfig().data == config


@pytest.mark.parametrize("suffix", ["toml", "yaml", "yml", "json"])
def test_files_give_back_what_was_saved(tmp_path: Path, suffix: str) -> None:
    data = DataLoaderConfig(
        batch_size=8,
        shuffle=False,
        dataset_name={"de": 'a "quoted"\npath\\ü', "zh-Hant": "漢字"},
        cache_dir="/somewhere else",
        shapes=[64, 128],
        batch_tokens=1024,
        temperature=2.5,
    )
    path = tmp_path / f"settings.{suffix}"
    data.save(path)
    assert DataLoaderConfig.load(path) == data
    whole = CapibaraConfig(seed=9, data=DataLoaderConfig(normalize="NFC"))
    whole.save(path)
    assert CapibaraConfig.load(path) == whole
    assert settings_of(path, {"batch_size": 2}).seed == 9
    assert settings_of(path, {"batch_size": 2}).batch_size == 2


@pytest.mark.parametrize(("suffix", "text"), [("toml", "bach_size = 4"), ("json", '{"bach_size": 4}')])
def test_unknown_keys_name_the_nearest(tmp_path: Path, suffix: str, text: str) -> None:
    path = tmp_path / f"settings.{suffix}"
    path.write_text(text)
    with pytest.raises(UsageError) as met:
        DataLoaderConfig.load(path)
    assert str(met.value).splitlines() == [
        "expected a setting of DataLoaderConfig",
        "  got:   'bach_size'",
        f"  where: {path}",
        "  fix:   did you mean 'batch_size'?",
    ]
    with pytest.raises(UsageError, match="known are seed, data"):
        CapibaraConfig.from_dict({"zzz": 1})
    with pytest.raises(UsageError, match="did you mean 'max_length'"):
        CapibaraConfig.from_dict({"data": {"maxlength": 1}})


def test_files_that_are_not_settings(tmp_path: Path) -> None:
    broken = tmp_path / "a.toml"
    broken.write_text("batch_size = ")
    with pytest.raises(DataError, match="settings in TOML"):
        DataLoaderConfig.load(broken)
    listed = tmp_path / "a.json"
    listed.write_text("[1]")
    with pytest.raises(DataError, match="names and values"):
        DataLoaderConfig.load(listed)
    unsafe = tmp_path / "a.yaml"
    unsafe.write_text("!!python/object/apply:os.getcwd []")
    with pytest.raises(DataError, match="settings in YAML"):
        DataLoaderConfig.load(unsafe)
    with pytest.raises(UsageError, match="no such file"):
        DataLoaderConfig.load(tmp_path / "b.toml")
    with pytest.raises(UsageError, match="a file ending in"):
        DataLoaderConfig().save(tmp_path / "b.ini")
    with pytest.raises(UsageError, match="register_dataset"):
        DataLoaderConfig(dataset_name=object()).save(tmp_path / "b.toml")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"layout": "rows"}, "layout= one of 'documents', 'windows'"),
        ({"sampling": "even"}, "sampling= one of"),
        ({"normalize": "nfc"}, "normalize= one of None, 'NFC'"),
        ({"shuffle": 1}, "True or False for shuffle="),
        ({"num_workers": -1}, "at least 0 for num_workers="),
        ({"shapes": [8]}, "batch_tokens= with shapes="),
        ({"batch_tokens": 64, "layout": "windows"}, 'layout="documents" with batch_tokens='),
    ],
)
def test_values_that_cannot_be_meant(given: dict[str, object], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        settings_of(None, given)
