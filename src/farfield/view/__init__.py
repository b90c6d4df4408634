"""Pages to look at: wind in three dimensions, and rollouts in time; each is one HTML file that needs no server."""
