"""opsctl: remote-ops orchestration over SSH for people who serve large models on GPU nodes."""

__version__ = "0.1.0"
