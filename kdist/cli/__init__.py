"""The command line: Hydra, the environment and exit codes."""
