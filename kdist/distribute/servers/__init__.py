"""The same store and step on parameter servers: packets, updates under a lock, contributions."""
