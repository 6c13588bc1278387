"""Video decoding."""
