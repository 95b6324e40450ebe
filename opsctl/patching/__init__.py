"""Patches as statements about code: conditions on syntax trees that can be checked, made true and explained.

`source` keeps the bytes that a tree cannot hold, `patterns` match Python source with placeholders, `statements/`
are the conditions, `sets` the YAML that names them, `engine` decides (pure), `tree` and `verbs` do (docs/patching.md).
"""
