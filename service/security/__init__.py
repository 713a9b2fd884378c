"""Who may call: TLS, tokens and scopes."""
