"""The service: gRPC and HTTP in front of the retrieval library, its client, and the command line.

Knows transport, queues, deadlines and processes. It must not know tokens, tries or beams. Importing the
package imports nothing heavy; import the modules you need.
"""
