"""Tables, figures and the page, from saved rows only."""
