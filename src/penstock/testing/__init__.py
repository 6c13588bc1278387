"""Assertions for your own tests: exact and elastic resume of your own pipelines."""

from penstock.testing.resume import assert_elastic as assert_elastic
from penstock.testing.resume import assert_exact_resume as assert_exact_resume
from penstock.testing.resume import assert_same as assert_same
from penstock.testing.resume import assert_same_batches as assert_same_batches
from penstock.testing.resume import global_batches as global_batches
