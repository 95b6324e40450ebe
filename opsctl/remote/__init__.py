"""The way to a node: transports below, the framed session above. Nothing outside this room knows SSH."""
