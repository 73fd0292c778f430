"""What a run shows and writes about itself: pure facts in, text and plots out.

The training loop hands over facts; nothing here asks the model, the strategy or the environment.
Reporting never ends a run: a console that went away or a full disk costs the report, and a
warning says which part.
"""
