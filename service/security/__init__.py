"""Who may call: TLS, tokens and scopes, read again when their files change.

It must not know what is called, nor any message.
"""
