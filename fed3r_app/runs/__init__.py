"""A run on disk: its directory, snapshots, model, ledger, contributions, report.

What is written here can be read by later versions. Nothing here sends a message; may
ask ``features``, ``training``, ``wire`` and what lies below them.
"""
