"""Where low precision breaks the encodings as published, and that it does not in local coordinates."""
