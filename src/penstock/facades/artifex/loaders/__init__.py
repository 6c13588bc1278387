"""Loaders over datasets: one epoch, many epochs, prefetched, cached, paired."""
