"""Between the wire and the library: what the methods of retrieval are called."""

from __future__ import annotations

from service.pb.genret.v1 import retrieval_service_pb2 as pb

METHODS: dict[int, str] = {
    pb.RETRIEVAL_METHOD_UNSPECIFIED: "beam",
    pb.RETRIEVAL_METHOD_BEAM: "beam",
    pb.RETRIEVAL_METHOD_DISC: "disc",
}
METHOD_NUMBERS = {"beam": pb.RETRIEVAL_METHOD_BEAM, "disc": pb.RETRIEVAL_METHOD_DISC}
