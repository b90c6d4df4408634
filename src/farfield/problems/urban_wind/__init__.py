"""Wind around buildings."""
