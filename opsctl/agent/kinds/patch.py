from ..patchcall import Operation

__all__ = ["Operation"]
