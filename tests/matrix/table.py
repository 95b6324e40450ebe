"""The table of docs/patch-matrix.md, from the releases themselves."""

from __future__ import annotations

from pathlib import Path

from opsctl.patching import verbs
from opsctl.patching.sets import PatchSet
from opsctl.patching.site import local_site

from . import releases, wheels

DOC = Path(__file__).parents[2] / "docs" / "patch-matrix.md"

HEAD = """# Which releases need which patch set

Written by `python -m tests.matrix.table` from the wheels on the package index; do not edit. Each cell is
what `opsctl patch-vllm status` says of the pristine release: **applies** (clean: apply makes it true), `upstreamed`
(already true, nothing to do), `-` (not applicable: the release lacks what the set is for). Each cell that applies was
applied, applied again (no byte changed) and reverted (the wheel's bytes again).
"""


def render(folder: Path) -> str:
    """The whole page."""
    sets = releases.built_in()
    titles = " | ".join(f"`{name}`" for name in releases.SETS)
    rows = [
        HEAD,
        "## vLLM",
        "",
        f"| release | {titles} | files written |",
        "|---|" + "---|" * (len(releases.SETS) + 1),
    ]
    for version in releases.VLLM:
        root = folder / f"vllm-{version}"
        wheels.unpack("vllm", version, releases.files_of("vllm"), root)
        cells, count = [], []
        for name in releases.SETS:
            cell, files = _cell(sets[name], root)
            cells.append(cell)
            count.append(str(files) if files else "-")
        rows.append(f"| {version} | " + " | ".join(cells) + f" | {' / '.join(count)} |")
    rows += ["", "## SGLang", "", "| release | `sglang-kimi-k25-eagle3` |", "|---|---|"]
    for version in releases.SGLANG:
        root = folder / f"sglang-{version}"
        wheels.unpack("sglang", version, releases.files_of("sglang"), root)
        rows.append(f"| {version} | {_cell(sets['sglang-kimi-k25-eagle3'], root)[0]} |")
    return "\n".join(rows) + "\n"


def _cell(patch_set: PatchSet, root: Path) -> tuple[str, int]:
    report = verbs.report_status(local_site(root=str(root)), [patch_set])[0].sets[0]
    files = {item.file for item in report.patches if item.state == "clean"} if report.state == "clean" else set()
    word = releases.STATES[report.state]
    return (f"**{word}**" if report.state == "clean" else word), len(files)


if __name__ == "__main__":
    import tempfile

    with tempfile.TemporaryDirectory() as scratch:
        DOC.write_text(render(Path(scratch)), encoding="utf-8")
