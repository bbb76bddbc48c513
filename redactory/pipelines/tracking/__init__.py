"""Other programs' records of finished work: MLflow's and OpenLineage's, in files of this machine alone.

What is told is numbers, hashes, choices of settings and where shards lie: never text; nothing is sent.
"""
