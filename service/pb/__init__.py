"""Generated protobuf and gRPC code; `regenerate.py` makes it from `proto/`. Never edited by hand."""
