"""Metrics, rollouts and domain extension: one row per number."""
