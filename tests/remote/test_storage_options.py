"""Every public function that takes the path of data takes storage_options, or says that it reads local files only."""

import inspect

import penstock as ps

PATHS = {"path", "paths", "root", "prefix", "folder", "out", "train_path", "val_path", "data_path", "data_paths"}
# Read by the library itself, which knows local folders.
LOCAL = {"from_tfds", "read_array_record"}


def _taking_paths():
    found = {}
    for name in ps.__all__:
        value = getattr(ps, name)
        if callable(value) and not (isinstance(value, type) and issubclass(value, BaseException)):
            try:
                parameters = inspect.signature(value).parameters
            except (TypeError, ValueError):
                continue
            if PATHS & set(parameters):
                found[name] = set(parameters)
    return found


def test_every_reader_takes_storage_options():
    found = _taking_paths()
    assert len(found) > 12
    assert {name for name, parameters in found.items() if "storage_options" not in parameters} == LOCAL
