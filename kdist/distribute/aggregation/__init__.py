"""Synchronous parameter servers: shares dealt to replicas, N of M of which make an update."""
