"""What data is: one contract (``spec``), how it is read, written, standardised and shown to a network."""
