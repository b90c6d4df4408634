"""Presets: one function per experiment."""
