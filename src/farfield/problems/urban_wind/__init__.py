"""Urban wind in three dimensions: the steady flow of neutral air around buildings."""
