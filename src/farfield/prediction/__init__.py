"""Trained models at work: loading, stepping and files; without the training loop and without a solver."""
