"""Engines that run the model elsewhere: processors of logits in them, and vLLM behind the library's own API.

Knows vLLM and SGLang. It must not know gRPC, the service, or how decoders work.
"""
