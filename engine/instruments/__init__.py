"""Instruments: measurements beside a run, each giving one `Measured(kind, data)`.

Contract: `LoadedPair.measure(kind, ...)` runs one; data are plain JSON values, and every view of
`app/views` needs nothing else. Seconds are wall seconds, probabilities are of the laws after the
user's processors, `where` is that of `Started`. Kinds and their data:

`cost_curve`   what passes and drafts cost here. passes: [16] seconds of a target pass over
    k = 1 .. 16 tokens; context: tokens before them; repeats; drafts: method -> {start, step,
    overhead, overhead_step} seconds, a proposal of g takes start + g * step, and its round overhead
    + g * overhead_step on top (older traces have no such step); plain_overhead; where; date (ISO).
`run_lengths`  how far the drafter would have come from every place of a greedy text. method;
    longest: tokens proposed at most; token_ids, labels: [n] the text's tokens; lengths: [n - 1],
    entry i is how many drafts match the text when its first i + 1 tokens are known (at most
    `longest` and what is left of the text); proposed: [n - 1] how many there were; driven: the
    rounds of whole runs, each [gamma, drafted, accepted], by draft length "1" .. "8" and "auto",
    from the same drafter on the same text; exact: whether a real run went round by round like its
    driven twin; checked: its rounds; stop: whether the run ended by itself.
`divergence`   why two greedy texts differ. method; methods: [2]; position: the first place that
    differs; context, texts: the shared end and both goings-on; width: tokens of the wide pass;
    one, wide: {labels: [2], logits: [2], gap} of the target's two likeliest tokens there, read by
    itself and in a pass over `width` tokens; gap: between the two tokens that differ, read by
    itself; difference: largest distance between the logits of both passes; dtype; verdict: "tie"
    or "fault".
`lab`          whether drawn tokens follow the target's law. method; rule; num_draws; temperature;
    labels, target: [m] the likeliest tokens and their probability (the rest last, labelled "");
    with_draft, without: [m] shares drawn; distance, distance_without: total variation distance from
    the whole law; band: [2] the 1 % and 99 % points of that distance for exact draws; lossless:
    whether `distance` lies at or below the band's upper end; acceptance; expected: sum min(p, q).
`canary`       whether a drafter is wired at all, on a text that repeats. method; rounds; drafted;
    accepted; least: accepted share to expect at least; identical: text equals plain's; ok.
"""

KINDS = ("cost_curve", "run_lengths", "divergence", "lab", "canary")
"""Each is a module of this package with a function `measure`."""
