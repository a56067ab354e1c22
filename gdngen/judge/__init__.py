"""Is a plan right? Statements replayed on shared bytes, sharing no code with the planner; fuzz and planted faults."""
