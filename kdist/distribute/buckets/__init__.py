"""Variables joined in buckets, in pieces or as tables: planned, packed, dealt to servers, read."""
