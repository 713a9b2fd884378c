"""Authentication and encryption: TLS, tokens and scopes. It must not know any message."""
