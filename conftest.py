"""Leave modules of extras that are not installed out of the search for doctests."""

from importlib.util import find_spec

collect_ignore_glob = [] if find_spec("flwr") else ["src/fedpage/flower/*"]
if not find_spec("torch"):
    collect_ignore_glob.append("src/fedpage/problems/torch/*")
