"""Datasets by index and by batch: the base class for one's own, and the wrappers around others."""
