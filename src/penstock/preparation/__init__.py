"""Raw text to a token store: read, encode, write, once."""
