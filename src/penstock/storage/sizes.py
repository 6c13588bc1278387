"""Sizes of what is requested from storage. Without NumPy, so that `penstock --help` does not import it."""

PAGE = 64 << 10  # the unit that is fetched and verified
GAP = 1 << 20  # unused bytes that one request may read over, where bytes cost nothing
AGAIN = 64 << 10  # bytes among them that are there already, or on their way: more cost more than a second request
FULL_GAP = 4  # pages that one request may read over if the cache has no room for them
LARGEST = 8 << 20  # the longest request; AWS names 8 to 16 MB as typical
