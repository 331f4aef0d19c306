"""Small experiments with untrained memories, and the tables of the command line."""
