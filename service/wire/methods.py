"""Between the wire and the library: what the methods of retrieval are called."""

from __future__ import annotations

from service.pb.genret.v1 import retrieval_service_pb2 as pb

METHOD_NUMBERS = {
    "beam": pb.RETRIEVAL_METHOD_BEAM,
    "disc": pb.RETRIEVAL_METHOD_DISC,
    "shortlist": pb.RETRIEVAL_METHOD_SHORTLIST,
    "auto": pb.RETRIEVAL_METHOD_AUTO,
}
METHODS: dict[int, str] = {
    pb.RETRIEVAL_METHOD_UNSPECIFIED: "auto",
    **{number: name for name, number in METHOD_NUMBERS.items()},
}
# What may decode for auto.
DECODER_NUMBERS = {
    None: pb.RETRIEVAL_METHOD_UNSPECIFIED,
    "beam": pb.RETRIEVAL_METHOD_BEAM,
    "disc": pb.RETRIEVAL_METHOD_DISC,
}
DECODERS: dict[int, str | None] = {number: name for name, number in DECODER_NUMBERS.items()}
