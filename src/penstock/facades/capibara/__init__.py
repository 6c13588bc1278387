"""Named datasets into JAX: `CapibaraDataLoader`, its configs, and how a name becomes data."""
