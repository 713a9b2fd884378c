"""The service room: gRPC in front of the retrieval library, and the command line.

It knows transport, queues, deadlines and processes; it knows nothing of tokens, tries or beams. Importing
the package imports nothing heavy; import the modules you need.
"""
