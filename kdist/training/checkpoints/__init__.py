"""Checkpoints: resumable state in a form that no mode, bucket or cluster size shows in."""
