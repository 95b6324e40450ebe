"""`command`, `shell`, `script`, `raw`: run what the user wrote. Their state is only what `creates`/`removes` say."""

from __future__ import annotations

import os
import time

from ..files import expand
from . import Change, Fail, Kind

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List, Optional, Sequence, Union

    from ..node import Node
    from ..process import Completed
    from . import Pair

    Args = Dict[str, Any]



class Command(Kind):
    """A program without a shell."""

    opaque = True
    shell = False

    def watches(self, args: Args) -> Sequence[Pair]:
        base = expand(args.get("chdir") or "")
        patterns = [args[name] for name in ("creates", "removes") if args.get(name)]
        return [(_sort(pattern), os.path.join(base, _fixed(expand(pattern)))) for pattern in patterns]

    def probe(self, args: Args, node: Node) -> Dict[str, Any]:
        chdir = expand(args["chdir"]) if args.get("chdir") else None
        skip, why = "", ""
        for name, present in (("creates", True), ("removes", False)):
            pattern = args.get(name)
            if pattern and matches(pattern, chdir) == present:
                state = "exists" if present else "does not exist"
                skip, why = "skipped, since %s %s" % (pattern, state), "Did not run command since '%s' %s" % (pattern, state)
        return {"skip": skip, "why": why, "chdir": chdir}

    def decide(self, args: Args, seen: Dict[str, Any]) -> Optional[Change]:
        if seen["skip"]:
            return None
        writes = [("path", args["creates"])] if args.get("creates") else []
        return Change(writes=[*writes, ("any", "")], msg="would run %s" % _text(self.words(args)))

    def words(self, args: Args) -> Union[str, List[str]]:
        """What is run: a list of words, or a line for the shell. Raises `Fail`."""
        if args.get("argv"):
            words = list(args["argv"])
        else:
            import shlex

            try:
                words = shlex.split(args.get("cmd", ""))
            except ValueError as exc:
                hint = "quotes must be closed; text for a shell belongs into the `shell` task"
                raise Fail("command: cannot split %r into words" % args["cmd"], cause=str(exc), hint=hint) from None
        if not words:
            raise Fail("command: there is nothing to run")
        return words

    def apply(self, args: Args, seen: Dict[str, Any], change: Change, node: Node) -> Dict[str, Any]:
        words = self.words(args)
        if isinstance(words, list) and args.get("expand_argument_vars", True):
            env = {**os.environ, **node.env}
            words = [expand(_variables(word, env)) for word in words]
        stdin = args.get("stdin")
        if stdin is not None and args.get("stdin_add_newline", True):
            stdin += "\n"
        done = run(
            node, words, shell=self.shell, stdin=stdin, cwd=seen["chdir"], executable=args.get("executable"), live=True
        )
        return finish(done, args, words)

    def report(self, args: Args, seen: Dict[str, Any]) -> Dict[str, Any]:
        if not seen["skip"]:
            return {}
        said = {"stdout": seen["skip"], "stdout_lines": [seen["skip"]]}
        return {"cmd": self.words(args), "rc": 0, "msg": seen["why"], **_silence(), **said}


class Shell(Command):
    """A command line for a shell."""

    shell = True

    def words(self, args: Args) -> Union[str, List[str]]:
        return str(args["cmd"])


class Raw(Shell):
    """A command line without anything around it."""


class Script(Command):
    """A script that came from the controller."""

    def words(self, args: Args) -> Union[str, List[str]]:
        return str(args["cmd"])

    def apply(self, args: Args, seen: Dict[str, Any], change: Change, node: Node) -> Dict[str, Any]:
        import shlex

        from ..temporary import Folder
        from .copying import Source

        try:
            arguments = shlex.split(args.get("arguments", ""))
            interpreter = shlex.split(args["executable"]) if args.get("executable") else []
        except ValueError as exc:
            raise Fail("script: cannot split %r into words" % args["cmd"], cause=str(exc)) from None
        source = Source(args)
        with Folder(node.state_dir, "script-") as folder:  # /tmp may be mounted with noexec
            path = os.path.join(folder, os.path.basename(args["name"]))
            fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o700)
            with os.fdopen(fd, "wb") as stream:
                for chunk in source.chunks(node):
                    stream.write(chunk)
            done = run(node, [*interpreter, path, *arguments], cwd=seen["chdir"], live=True)
        return finish(done, args, args["cmd"])

    def report(self, args: Args, seen: Dict[str, Any]) -> Dict[str, Any]:
        told = super().report(args, seen)
        return {**told, "skipped": True} if told else told  # as in Ansible, where only `script` says so


def _fixed(pattern: str) -> str:
    """The part of a glob pattern before the first folder that has a wildcard; all of a plain path."""
    first = min([pattern.find(char) for char in "*?[" if char in pattern], default=-1)
    return pattern if first < 0 else pattern[:first].rpartition("/")[0] or "."


def _sort(pattern: str) -> str:
    return "tree" if any(char in pattern for char in "*?[") else "path"


def matches(pattern: str, chdir: Optional[str]) -> bool:
    """Whether a path or glob pattern matches something, a broken link too."""
    path = os.path.join(chdir or "", expand(pattern))
    if os.path.lexists(path):
        return True
    if not any(char in path for char in "*?["):
        return False
    import glob

    return bool(glob.glob(path))


def run(node: Node, command: Union[str, List[str]], **how: Any) -> Completed:
    """`Node.run` for a task; one that cannot be started has a result with no output. Raises `Fail`."""
    try:
        return node.run(command, **how)
    except Fail as exc:
        exc.result = {**_silence(), **exc.result}
        raise


def _silence() -> Dict[str, Any]:
    return {"stdout": "", "stderr": "", "stdout_lines": [], "stderr_lines": []}


def finish(done: Completed, args: Args, command: Any) -> Dict[str, Any]:
    """Ansible's result keys of a command that has run. Raises `Fail` for another end than exit status 0."""
    stdout, stderr = done.stdout, done.stderr
    if args.get("strip_empty_ends", True):
        stdout, stderr = stdout.rstrip("\r\n"), stderr.rstrip("\r\n")
    out: Dict[str, Any] = {
        "cmd": command, "rc": done.rc, "stdout": stdout, "stderr": stderr,
        "stdout_lines": stdout.splitlines(), "stderr_lines": stderr.splitlines(),
        "start": _stamp(done.start), "end": _stamp(done.end), "delta": _delta(done.end - done.start),
    }  # fmt: skip
    if done.truncated:
        out["truncated"] = True
        out["output_files"] = done.files
    if done.rc < 0:
        out["signal"] = done.signal
    if done.rc == 0 and not done.timed_out:
        return {**out, "msg": ""}
    if done.timed_out:
        out["timed_out"] = True
    # What has run may have changed something, whatever its status.
    raise Fail("`%s` failed: %s" % (_text(command), done.why()), cause=done.tail(), changed=True, **out)


def _text(command: Any) -> str:
    import shlex

    text = command if isinstance(command, str) else " ".join(shlex.quote(word) for word in command)
    text = " ".join(text.split())
    return text if len(text) <= 100 else text[:97] + "..."


def _variables(word: str, env: Dict[str, str]) -> str:
    """``word`` with `$NAME` and `${NAME}` replaced; unknown names stay as they are."""
    if "$" not in word:
        return word
    import re

    return re.sub(
        r"\$(?:(\w+)|\{([^}]*)\})", lambda match: str(env.get(match.group(1) or match.group(2), match.group(0))), word
    )


def _stamp(moment: float) -> str:
    # Whole microseconds, so that two stamps differ by `delta`.
    whole, part = divmod(int(moment * 1000000), 1000000)
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(whole)) + ".%06d" % part


def _delta(seconds: float) -> str:
    whole, part = divmod(int(max(0.0, seconds) * 1000000), 1000000)
    days, rest = divmod(whole, 86400)
    text = "%d:%02d:%02d.%06d" % (rest // 3600, rest // 60 % 60, rest % 60, part)
    return "%d day%s, %s" % (days, "" if days == 1 else "s", text) if days else text
