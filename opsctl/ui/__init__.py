"""Renderers: the only part of opsctl, with the command line, that prints."""
