"""Engines that run the model elsewhere: vLLM's logits processors, and vLLM behind the library's own API.

Knows vLLM. It must not know gRPC, the service, or how decoders work.
"""
