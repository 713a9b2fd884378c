"""The OpenAPI document of the HTTP face, made from the `.proto`: its messages, its comments, its methods."""
