"""The history of the counts: rebuilt from Prometheus or from own samples, kept in Redis for every replica."""
