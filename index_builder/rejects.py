"""Bad rows of a source: `retrieval.rejects`, which training reports with too."""

from retrieval.rejects import SHOWN, Reason, Reject, Rejects

__all__ = ["SHOWN", "Reason", "Reject", "Rejects"]
