"""What things cost: always as ratios within one run."""
