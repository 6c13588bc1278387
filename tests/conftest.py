"""For all tests: worker processes come from a fork server, never from a fork of a process that runs JAX's threads."""

from __future__ import annotations

import multiprocessing

multiprocessing.set_start_method("forkserver", force=True)
multiprocessing.set_forkserver_preload(
    ["torch", "datasets", "penstock.facades.preprocessed.streaming", "penstock.facades.preprocessed.dataset"]
)
