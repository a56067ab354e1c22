"""gdngen."""
