"""The gRPC face: servicers and interceptors."""
