"""The nodes of the node tier."""

from tests.node.conftest import make_node, node, project

__all__ = ["make_node", "node", "project"]
