"""What a dataset looks like, on one page: one HTML file that needs nothing else."""
