"""The problems that farfield knows: one folder each."""
