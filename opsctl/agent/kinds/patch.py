"""`patch`: statements about the source of an installed package. What to write is decided by the controller.

The node has no parser for syntax trees: it says what is there, the controller answers with what would be written,
and it is written here, all of it or nothing.
"""

import os
from typing import TYPE_CHECKING, Any, Dict, List, Optional, Sequence

from .. import files
from ..patchcall import Operation, as_owner
from . import Change, Fail, Kind, Pair

if TYPE_CHECKING:
    from ..node import Node

Args = Dict[str, Any]


class Patch(Kind):
    """Patch sets are true in an environment, or undone."""

    def watches(self, args: Args) -> Sequence[Pair]:
        return [("tree", _folder(args))]

    def probe(self, args: Args, node: "Node") -> Dict[str, Any]:
        where = {"env": args["env"]}
        look = {"where": where, "package": args["package"], "files": args["files"], "recover": not node.check}
        try:
            seen = dict(_do("observe", look, node, needs=[("path", _folder(args))]))
        except Fail as exc:
            if not args.get("rehearse"):
                raise
            return {"left_out": exc.msg}
        blobs = seen.pop("blobs")
        question = {
            "sets": args["sets"], "package": args["package"], "state": args["state"], "force": args["force"],
            "named": args.get("named"), "diff": node.diff, "seen": seen, "blobs": {},
        }  # fmt: skip
        answer = node.ask("patch", question)
        if answer.get("want"):
            question["blobs"] = {digest: blobs[digest] for digest in answer["want"] if digest in blobs}
            answer = node.ask("patch", question)
        plan = answer.get("plan")
        if plan is not None and plan["writes"]:
            paths = [item["path"] for item in plan["writes"]]
            _do("writable", {"found": seen["found"], "paths": paths}, node, needs=[("path", seen["root"])])
        return {"found": seen["found"], "answer": answer, "check": node.check}

    def decide(self, args: Args, seen: Dict[str, Any]) -> Optional[Change]:
        if "left_out" in seen:
            return None
        answer = seen["answer"]
        refused = answer.get("refused")
        if refused is not None:
            raise Fail(
                refused["what"], cause=refused.get("cause") or "", hint=refused.get("hint") or "",
                **self.report(args, seen),
            )  # fmt: skip
        plan = answer.get("plan")
        # Without a change of a file only the record of what belongs to which set is new.
        if plan is None or (seen["check"] and not answer["changed"]):
            return None
        root = seen["found"]["root"]
        return Change(
            answer["before"], answer["after"], answer.get("diffs"),
            [("path", os.path.join(root, *item["path"].split("/"))) for item in plan["writes"]],
            msg=answer["says"],
        )  # fmt: skip

    def report(self, args: Args, seen: Dict[str, Any]) -> Dict[str, Any]:
        if "left_out" in seen:
            return {"warnings": ["left out in a rehearsal: " + seen["left_out"]]}
        answer = seen["answer"]
        return {
            "package": args["package"], "installed": seen["found"]["installed"], "root": seen["found"]["root"],
            "sets": answer["before"], "notes": answer["notes"],
        }  # fmt: skip

    def apply(self, args: Args, seen: Dict[str, Any], change: Change, node: "Node") -> Dict[str, Any]:
        answer, found = seen["answer"], seen["found"]
        plan = answer["plan"]
        texts = {item["path"]: item["data"] for item in plan["writes"] if item["path"].endswith(".py")}
        complaint = _do("check", {"found": found, "texts": texts}, node) if texts else None
        if complaint is not None:
            raise Fail(
                "the environment's Python does not accept the patched source", cause=complaint,
                hint="nothing was written; the patch set is wrong for this release",
            )  # fmt: skip
        done = _do("commit", {"found": found, "plan": plan}, node)
        restart: List[Dict[str, Any]] = _do("importers", {"found": found}, node) if answer["changed"] else []
        notes = [*answer["notes"], *done["notes"], *("the edited file is kept as %s" % name for name in done["copies"])]
        if restart:
            words = ", ".join("pid %d (%s)" % (one["pid"], one["name"]) for one in restart)
            node.progress("running with the old source: %s" % words)
        return {
            **self.report(args, seen), "changed": answer["changed"], "sets": answer["after"], "written": done["written"],
            "notes": notes, "needs_restart": restart,
        }  # fmt: skip


def _folder(args: Args) -> str:
    """The environment's folder; of an interpreter, that of the environment that it is in."""
    path = os.path.abspath(files.expand(args["env"]))
    inside = os.path.basename(os.path.dirname(path)) == "bin" and os.path.basename(path).startswith("python")
    return os.path.dirname(os.path.dirname(path)) if inside else path


def _do(op: str, args: Dict[str, Any], node: "Node", needs: Sequence[Pair] = ()) -> Any:
    answer = as_owner(op, args, node.state_dir)
    failed = answer.get("failed")
    if failed is not None:
        raise Fail(failed["what"], needs=needs, cause=failed.get("cause") or "", hint=failed.get("hint") or "")
    return answer["value"]


__all__ = ["Operation", "Patch"]
