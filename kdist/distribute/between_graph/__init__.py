"""Between-graph replication: every worker is a client of its own of the parameter servers."""
