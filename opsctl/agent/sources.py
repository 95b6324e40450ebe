"""Where does an installed package raise this message, under which condition, and who satisfies it?

Standard library only, Python 3.8 on: it runs on a node under the interpreter that has the package, or on a laptop over
an unpacked tree. Nothing is imported; everything comes from syntax trees. Results are plain JSON values.

    python -m opsctl.agent.sources ROOT PACKAGE MESSAGE [CLASS ...]     prints the JSON
"""

import os
import sys
import time
from typing import Any, Dict, Optional, Sequence, Tuple

from .sourceasks import explain
from .sourcesites import sites
from .sourcetree import Tree

Json = Dict[str, Any]

_MAX_SITES = 8


def search(
    root: str,
    message: str,
    package: Optional[str] = None,
    classes: Sequence[str] = (),
    limit: int = _MAX_SITES,
    deadline: float = 30.0,
) -> Json:
    """Find ``message`` (or a part of it) in the package below ``root``.

    ``root`` is a package directory, a folder that contains it, or an environment. ``classes`` are names of involved
    classes whose bases are to be examined; at most ``limit`` places, ``deadline`` in seconds. Gives {"package", "root",
    "version", "files", "seconds", "partial", "unparsed", "sites"}; ``unparsed`` are files that may hold the message but
    are written for a newer Python than this one. Raises LookupError when there is no such package.
    """
    start = time.time()
    top, name = find_package(root, package)
    tree = Tree(top, name)
    found = []
    partial = False
    unparsed = []
    best_rank = None
    for rank, path in tree.candidates(message):
        if best_rank is not None and rank < best_rank:
            break  # files that share fewer words with the message cannot hold a better match
        if time.time() - start > deadline:
            partial = True
            break
        if tree.module(path) is None:
            unparsed.append(tree.short(path))
            continue
        found.extend(sites(tree, path, message))
        if best_rank is None and any(site["score"] >= 0.75 for site in found):
            best_rank = rank
    found.sort(key=lambda site: (-site["score"], site["kind"] != "raise", site["file"], site["line"]))
    best = found[0]["score"] if found else 0
    shown = [site for site in found if site["score"] >= max(0.75 * best, 0.35)][:limit]
    for site in shown:
        explain(tree, site, list(classes))
    return {
        "package": name,
        "root": top,
        "version": version_of(top, name),
        "files": len(tree.paths),
        "seconds": round(time.time() - start, 3),
        "partial": partial,
        "unparsed": unparsed,
        "sites": shown,
    }


def find_package(root: str, package: Optional[str] = None) -> Tuple[str, str]:
    """The directory of the package and its name."""
    root = os.path.abspath(root)
    places = [root]
    for lib in ("lib", "lib64"):
        base = os.path.join(root, lib)
        if os.path.isdir(base):
            for entry in sorted(os.listdir(base)):
                places += [os.path.join(base, entry, leaf) for leaf in ("site-packages", "dist-packages")]
    if package is None:
        if os.path.exists(os.path.join(root, "__init__.py")):
            return root, os.path.basename(root)
        for place in places:
            for name in ("vllm", "sglang"):
                if os.path.isdir(os.path.join(place, name)):
                    return os.path.join(place, name), name
        raise LookupError("no package `vllm` or `sglang` below %s" % root)
    if os.path.basename(root) == package and os.path.exists(os.path.join(root, "__init__.py")):
        return root, package
    for place in [*places, os.path.join(root, "python"), os.path.join(root, "src")]:
        top = os.path.join(place, package)
        if os.path.isdir(top):
            return top, package
    raise LookupError("no package `%s` below %s" % (package, root))


def version_of(top: str, name: str) -> Optional[str]:
    """The version as the metadata beside the package says, or None."""
    beside = os.path.dirname(top)
    plain = name.replace("-", "_").lower()
    try:
        entries = sorted(os.listdir(beside))
    except OSError:
        return None
    for entry in entries:
        low = entry.lower()
        if low.endswith((".dist-info", ".egg-info")) and low.split("-")[0].replace(".", "_") in (plain, plain + "_cpu"):
            return entry[: entry.rindex(".")].split("-", 1)[-1]
    return None


def main(argv: Sequence[str]) -> int:
    """Run on a node: ROOT PACKAGE MESSAGE [CLASS ...]."""
    import json

    try:
        result = search(argv[0], argv[2], argv[1] or None, argv[3:])
    except LookupError as error:
        result = {"error": str(error)}
    os.write(1, json.dumps(result).encode("ascii") + b"\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
