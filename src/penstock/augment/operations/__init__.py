"""One operation: its definition, the parameters it draws, and what it does to arrays, together in one class."""
