"""OpenAPI documents, made when asked for: v3 for each group version, v2 in JSON and in gnostic's protobuf."""

from tinykube.apiserver.openapi.documents import OpenAPI

__all__ = ["OpenAPI"]
