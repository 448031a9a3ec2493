"""The engine: what happens, without any page around it.

Read in this order:

* `events`      the types that flow out of a run (standard library only)
* `verify`      the acceptance rule
* `decode`      the loop: `decode(...) -> Iterator[Event]`
* `models/base` and `proposers/base`   the two protocols; `toy` and `synthetic` are their fakes
* `sampling`    temperature, top-k, top-p, min-p, repetition penalty
* `text`        tokens to text, stop strings
* `metrics`, `books`, `ledger`, `theory`   counts, their laws, where the time went, formulas
  (standard library only)
* `catalog`, `preflight`, `errors`   models and methods as data, what can be said before loading
* `foreign_logs`   what other engines' log lines say, in our words (standard library only)
* `models/lean`, `models/static`   the fast ways to read: on a CPU, on a GPU
* `step`, `fused`   one round, in parts or in one recorded piece
* `runtime`     a loaded pair and how a request becomes a run
* `bench`, `bench_shapes`, `training`   measuring, and making the bundled drafters
* `instruments`   measurements beside a run, for the views of the page

This package never imports gradio, plotly or pandas, and importing it imports nothing but `os`.
"""

import os

# Read when torch is imported. GNU OpenMP's threads spin while they wait, which makes a model many
# times slower as soon as a browser or another user wants the same cores; threads that sleep at once
# lose a third when nobody does. A spin of this length, measured, costs a few per cent alone and
# little more than sleeping beside others.
if "OMP_WAIT_POLICY" not in os.environ:
    os.environ.setdefault("GOMP_SPINCOUNT", "20000")
