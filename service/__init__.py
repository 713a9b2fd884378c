"""The service: gRPC and HTTP in front of the retrieval library, its client, and the command line.

Knows transport, queues, deadlines and processes. It must not know tokens, tries or beams. Importing the
package imports nothing heavy; import the modules you need.
"""

if __name__ != "genret.service":
    raise ImportError("this package is genret.service: import it by that name", name=__name__)
