"""What operators see: metrics, logs and traces of calls and batches.

Knows Prometheus and OpenTelemetry. It must not know messages, nor decide anything.
"""
