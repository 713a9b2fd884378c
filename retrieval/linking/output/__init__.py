"""The output folder of a run: part files, records of finished shards, the run's identity."""
