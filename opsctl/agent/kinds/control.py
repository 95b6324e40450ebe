"""`assert`, `debug`, `fail`, `set_fact`, `ping`, `setup`: nothing changes on the node."""

from __future__ import annotations

from . import Change, Fail, Kind

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, Optional

    from ..node import Node

    Args = Dict[str, Any]



class _Pure(Kind):
    pure = True

    def decide(self, args: Args, seen: Dict[str, Any]) -> Optional[Change]:
        return None


class _Blind(_Pure):
    blind = True


class Assert(_Blind):
    """`that` holds booleans by now, `that_text` the expressions that gave them."""

    def probe(self, args: Args, node: Node) -> Dict[str, Any]:
        that = args["that"] if isinstance(args["that"], list) else [args["that"]]
        texts = args.get("that_text", args["that"])
        if not isinstance(texts, list):
            texts = [texts]
        for value, text in zip(that, texts):
            if not isinstance(value, bool):
                raise Fail(
                    "assert: `%s` gives %r, not true or false" % (text, value),
                    hint="compare it with something, or convert it with `| bool`", assertion=text, evaluated_to=value,
                )  # fmt: skip
            if not value:
                raise Fail(args.get("fail_msg") or "Assertion failed: %s" % text, assertion=text, evaluated_to=False)
        return {}

    def report(self, args: Args, seen: Dict[str, Any]) -> Dict[str, Any]:
        told = {"msg": args.get("success_msg") or "All assertions passed"}
        return {**told, "quiet": True} if args.get("quiet") else told


class Debug(_Blind):
    """Shows `msg`, or the value of `var` under the text of its expression."""

    def report(self, args: Args, seen: Dict[str, Any]) -> Dict[str, Any]:
        if "var" in args:
            return {str(args.get("var_text", "var")): args["var"]}
        return {"msg": args.get("msg", "Hello world!")}


class FailTask(_Blind):
    """Fails."""

    def probe(self, args: Args, node: Node) -> Dict[str, Any]:
        raise Fail(args["msg"])


class SetFact(_Blind):
    """The arguments become variables of the host."""

    def report(self, args: Args, seen: Dict[str, Any]) -> Dict[str, Any]:
        return {"ansible_facts": {name: value for name, value in args.items() if name != "cacheable"}}


class Ping(_Pure):
    """Sends back what it got."""

    def report(self, args: Args, seen: Dict[str, Any]) -> Dict[str, Any]:
        return {"ping": args["data"]}


class Setup(_Pure):
    """The facts, gathered now."""

    def probe(self, args: Args, node: Node) -> Dict[str, Any]:
        from .. import facts

        patterns = args.get("filter")
        return {"facts": facts.gather(facts.matching(patterns) if patterns else args.get("want"))}

    def report(self, args: Args, seen: Dict[str, Any]) -> Dict[str, Any]:
        return {"ansible_facts": seen["facts"]}
