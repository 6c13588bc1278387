"""The report of a dataset as one self-contained HTML page."""
