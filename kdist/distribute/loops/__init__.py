"""Inner loops, one for each way to drive steps, with what they feed and evaluate."""
