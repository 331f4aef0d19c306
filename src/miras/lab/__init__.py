"""The recall experiment with untrained memories, the recall laboratory, experiments as plans, and the tables they print."""
