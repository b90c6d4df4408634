"""What a sample is, how it is stored, normalised, generated and read."""

from farfield.datasets.sample import SampleSpec
from farfield.datasets.step_pairs import Sample, Standardiser, StepPairs
from farfield.datasets.storage import Split, open_split

__all__ = ["Sample", "SampleSpec", "Split", "Standardiser", "StepPairs", "open_split"]
