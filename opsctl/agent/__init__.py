"""The part of opsctl that runs on the node: standard library only, Python 3.8 or newer.

It is sent as source, cached there by its hash, and imported under the name ``opsctl_agent``;
the controller imports the same files as ``opsctl.agent``. Therefore: relative imports only.
"""
