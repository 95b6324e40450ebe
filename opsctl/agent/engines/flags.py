"""Arguments checked against what the engine's own `--help` lists."""

import difflib
import re
from typing import Any, List, Mapping, Optional, Sequence, Set

from ..coerce import Bad
from .launch import _program, style_of

_OPTION = re.compile(r"(?<![\w-])(--?[A-Za-z][\w-]*)")
#: A line that introduces options: `  --model MODEL, -m MODEL`, `  -tp TENSOR_PARALLEL_SIZE, --tensor-...`.
_LINE = re.compile(r"^ {0,8}(?=-)")


def help_argv(spec: Mapping[str, Any]) -> Optional[List[str]]:
    """The command that prints all of the engine's flags; None if the engine has none that could be asked."""
    if spec.get("engine") == "vllm":
        return [*_program(spec), "--help=all"]
    if spec.get("engine") == "sglang":
        return [*_program(spec), "--help"]
    return None


def known_flags(help_text: str) -> Set[str]:
    """All flags that a help text introduces (`--max-model-len`, `-tp`); empty if it is no help of argparse."""
    known: Set[str] = set()
    usage = False
    for line in help_text.splitlines():
        usage = line.startswith("usage:") or (usage and line.startswith(" "))
        if usage:
            known.update(_OPTION.findall(re.sub(r"\{[^}]*\}", "", line)))
            continue
        if _LINE.match(line):
            # Only what stands before the description: options are separated by commas, text by two blanks.
            head = re.split(r"(?<=\S) {2,}", line.strip())[0]
            known.update(_OPTION.findall(re.sub(r"\{[^}]*\}|\[[^\]]*\]", "", head)))
    return known


def check_flags(argv: Sequence[str], known: Set[str], style: str = "vllm") -> List[str]:
    """What is wrong with the flags of ``argv``, one sentence each; nothing if ``known`` is empty.

    Abbreviations that argparse takes, and vLLM's nested forms (`--compilation-config.mode`, `-O3`), are right.
    """
    out: List[str] = []
    if not known:
        return out
    for word in argv:
        if not re.match(r"--?[A-Za-z]", word):
            continue
        flag = word.split("=", 1)[0].split(".", 1)[0]
        flag = flag.replace("_", "-") if flag.startswith("--") else flag
        if flag in known or re.match(r"-O\d?$", flag):
            continue
        if flag.startswith("--") and any(one.startswith(flag) for one in known):
            continue
        if flag.startswith("--no-") and "--" + flag[5:] in known:
            out.append("%s is not known to the engine: %s cannot be negated" % (flag, "--" + flag[5:]))
            continue
        near = difflib.get_close_matches(flag, sorted(known), n=1, cutoff=0.7)
        out.append("%s is not known to the engine%s" % (flag, "; did you mean %s?" % near[0] if near else ""))
    return out


def refuse_unknown(spec: Mapping[str, Any], argv: Sequence[str], known: Set[str]) -> None:
    """Raise `Bad` for the flags of ``argv`` that the engine does not know; those of the interpreter before it are not its."""
    program = _program(spec)
    own = list(argv)[len(program) :] if list(argv)[: len(program)] == program else argv
    problems = check_flags(own, known, style_of(spec))
    if problems:
        listing = " ".join(help_argv(spec) or [])
        raise Bad("`args`: " + "; ".join(problems), "see the engine's own list with `%s`" % listing)
