"""What a caller may do, and what each method asks for."""

from __future__ import annotations

from enum import Enum


class Scope(Enum):
    """What a token allows; ADMIN allows what READ does."""

    READ = "read"
    ADMIN = "admin"

    def allows(self, needed: Scope) -> bool:
        """Whether who holds this may do what asks for `needed`."""
        return self is Scope.ADMIN or needed is Scope.READ


_PACKAGE = "genret.v1"
# Full names of methods, as gRPC spells them. What is not listed here is refused where tokens are needed: a
# method that is added must say what it asks for. Health asks for nothing.
METHOD_SCOPES: dict[str, Scope | None] = {
    f"/{_PACKAGE}.RetrievalService/Retrieve": Scope.READ,
    f"/{_PACKAGE}.RetrievalService/BatchRetrieve": Scope.READ,
    f"/{_PACKAGE}.RetrievalService/RetrieveStream": Scope.READ,
    f"/{_PACKAGE}.RetrievalService/Link": Scope.READ,
    f"/{_PACKAGE}.RetrievalService/Answer": Scope.READ,
    f"/{_PACKAGE}.RetrievalService/Score": Scope.READ,
    f"/{_PACKAGE}.IndexService/ListIndexes": Scope.READ,
    f"/{_PACKAGE}.IndexService/GetIndex": Scope.READ,
    f"/{_PACKAGE}.IndexService/ReloadIndex": Scope.ADMIN,
    "/grpc.health.v1.Health/Check": None,
    "/grpc.health.v1.Health/List": None,
    "/grpc.health.v1.Health/Watch": None,
    "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo": Scope.READ,
    "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo": Scope.READ,
}
