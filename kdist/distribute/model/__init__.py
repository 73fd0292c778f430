"""What kdist knows of a user's model: variables, loss terms, lookups, and the types of a step."""
