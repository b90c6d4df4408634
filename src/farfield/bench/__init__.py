"""What things cost: always as ratios within one run."""

# What a page shows, in a sentence, and what its columns mean; by the name of the benchmark.
LEADS = {
    "attention": (
        "Attention over the keys in reach (tiled) against attention over all pairs (dense), as the domain grows: "
        "from the size on at which the speed-up exceeds one, tiles pay.\n\n"
        "Columns: s, the domain's size over the training domain's along each axis; plan, the time to find out "
        "which keys are in reach, once per set of points; speed-up, dense over tiled time; error, the mean "
        "difference of the outputs over their mean size; pairs, query-key pairs: read, or only sounded, which takes "
        "the logit alone; least, what must be read for the tolerance by who knows every weight beforehand, with four "
        "queries and tiles of 64 keys, or each query with keys of its own; cost per pair, time per pair read or "
        "sounded over that of dense attention; certified / estimated, the same with the proved bound over that with "
        "an estimate."
    ),
    "break_even": (
        "From how many points on tiled attention is faster than dense attention, and whether `auto` takes the faster "
        "one where nothing is differentiated: from about 2,000 points on, whatever the decay length.\n\n"
        "Columns: axes, dimensions of the domain, which is 1000 wide; decay length, in the same unit; dense, tiled, "
        "auto, CPU seconds of one call, the plan included; auto takes, the backend that it chose; auto / better, its "
        "time over that of the faster one of the two."
    ),
    "adversarial_attention": (
        "Clouds made to break the certified tolerance of tiled attention: random sizes, densities, encodings, tiles "
        "and magnitudes, each compared with the formula in float64.\n\n"
        "Columns: clouds, how many were tried; 0.01 and so on, by tolerance the largest error of any query over what "
        "the tolerance allows, so that more than 1 would be a violation; above, how many clouds had one."
    ),
    "certainty": (
        "What a certified error costs beside an estimated one, on the attention layers of shipped models.\n\n"
        "Columns: pairs read / all, query-key pairs that were read over all there are; certified / estimated, pairs "
        "read and CPU time with the proved bound over those with an estimate (`certify=False`); auto tiles from, the "
        "number of points from which on `auto` takes tiles in this layer, dense attention below."
    ),
    "packed_clouds": (
        "64 clouds of 500 to 5,000 points in one packed call, against the loop over them, which takes for each cloud "
        "what `auto` chooses, or one backend for all.\n\n"
        "Columns: over packed, CPU seconds over those of the packed call; difference, the largest between outputs of "
        "one query, over the largest value."
    ),
    "inference": (
        "A predicted wind against the CFD that taught it: CPU time on one core, and the error at that price.\n\n"
        "Columns: s, the city's width over that of training; ratio, OpenFOAM's time over the prediction's; "
        "velocity error, relative L1 among the buildings and in the wake."
    ),
    "steps": (
        "A predicted step in time against our own solver, by the size of the domain: time, memory and error.\n\n"
        "Columns: s, the domain's size over that of training; network and solver, wall seconds for one saved step;"
        " L1, the relative error of the change, by field."
    ),
    "training": (
        "How fast the paper's model trains here, against the same model with attention written the plain way.\n\n"
        "Columns: ratio, over the plain variant; memory, the peak of the process; of the machine's GEMM, the share"
        " of what a matrix product of the same machine reaches."
    ),
    "solvers": (
        "How fast the solvers that make the data are, against NumPy and against what the machine allows.\n\n"
        "Columns: million cells/s, cells updated by one time step; times NumPy, over the same in NumPy; allows, "
        "the bound by the machine's arithmetic or bandwidth; limit / ours, the lower of the two bounds over our "
        "speed."
    ),
    "peers": (
        "Other networks, trained and evaluated by the same code for the same CPU time as ours.\n\n"
        "Columns: weights, how many; s, the domain's size over that of training; [%], the relative L1 error of one"
        " step by field; CPU s, to predict one state."
    ),
    "scaling": (
        "One domain over one to many processes: what splitting it saves, and what the exchange costs.\n\n"
        "Columns: scaling, strong for the same points whatever the processes, weak for so many points each; CPU, "
        "busiest, CPU seconds of the busiest process; speed-up, of CPU time over one process; of one, memory over "
        "that of one process; exchange, what is spent on sending keys across the cuts; keys received, beside what "
        "the geometry says."
    ),
}
