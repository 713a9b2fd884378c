"""The text policy of titles: `retrieval.normalize`, which training follows too."""

from retrieval.normalize import find_control, normalize

__all__ = ["find_control", "normalize"]
