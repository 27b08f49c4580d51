"""The server's side of a run, phase by phase."""
