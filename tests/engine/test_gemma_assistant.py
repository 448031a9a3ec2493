"""The Gemma 4 assistant equals a reference without any cache, and wrong wirings do not."""

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.events import Settings
from engine.models.gemma_assistant import Assistant
from engine.models.hf import HFModel
from engine.proposers import gemma_assistant
from engine.proposers.base import Context
from engine.proposers.gemma_assistant import GemmaAssistant
from engine.sampling import Sampler, Streams
from engine.step import EagerStep
from engine.verify import verify
from tests.engine.gemma import VOCAB, WIDTH, WINDOW, gemma, library_assistant
from tests.engine.tiny import CPU, argmax_decode, finished, llama, nothing, rounds, run, toy_pair

PROMPT = [3, 5, 7]  # shorter than the window; the runs grow past it
TARGET = gemma()
NEAR = 1e-5
FAR = 1e-2
HEADS = ("whole", "masked")
GAMMAS = (1, 3, 5)


# --- a reference without any cache, on the library's untouched model ---


@torch.no_grad()
def read_afresh(ids):
    """The target's state of the last position, keys and values of all: from one pass, no cache."""
    out = TARGET(
        torch.tensor([ids]),
        use_cache=False,
        output_hidden_states=True,
        return_shared_kv_states=True,
    )
    return out.hidden_states[-1][:, -1:], dict(out.shared_kv_states)


@torch.no_grad()
def states(model, ids, drafted):
    """The assistant's normed states that predict each drafted token.  [g, D]"""
    hidden, shared = read_afresh(ids[:-1])
    distance = torch.arange(len(ids) - 1).flip(0)  # from the last position the target has read
    masks = {
        "full_attention": torch.ones(1, 1, 1, len(ids) - 1, dtype=torch.bool),
        "sliding_attention": (distance <= WINDOW)[None, None, None],
    }
    found = []
    for token in [ids[-1], *drafted[:-1]]:
        embedded = TARGET.model.embed_tokens.weight[token] * WIDTH**0.5
        out = model.model(
            inputs_embeds=model.pre_projection(torch.cat([embedded[None, None], hidden], -1)),
            position_ids=torch.tensor([[len(ids) - 1]]),
            attention_mask=masks,
            shared_kv_states=shared,
            use_cache=False,
        )
        found.append(out.last_hidden_state[0, 0])
        hidden = model.post_projection(out.last_hidden_state)
    return torch.stack(found)


def scored_tokens(model, state):
    """The tokens of the clusters that a masked head scores, best first."""
    head = model.masked_embedding
    size = len(head.token_ordering) // head.num_centroids
    scores = (head.centroids.weight @ state).tolist()
    best = sorted(range(len(scores)), key=lambda i: -scores[i])[: head.centroid_intermediate_top_k]
    return [int(t) for c in best for t in head.token_ordering[c * size : (c + 1) * size]]


def reference_logits(model, ids, drafted):
    """Logits of every drafted place.  [g, V]"""
    rows = []
    for state in states(model, ids, drafted):
        row = model.lm_head.weight @ state
        if model.masked_embedding is not None:
            scored = scored_tokens(model, state)
            row = torch.full_like(row, -torch.inf).index_copy(0, torch.tensor(scored), row[scored])
        rows.append(row)
    return torch.stack(rows)


def difference(model, seen):
    """The largest difference of any logit from the reference, as a share of the largest logit."""
    worst = 0.0
    for ids, draft in seen:
        expected = reference_logits(model, ids, draft.token_ids.tolist())
        if not torch.equal(draft.logits.isfinite(), expected.isfinite()):
            return float("inf")
        finite = expected.isfinite()
        gap = (draft.logits - expected)[finite].abs().max() / expected[finite].abs().max()
        worst = max(worst, float(gap))
    return worst


@torch.no_grad()
def made_to_agree(model):
    """Choose the head by least squares: it then often drafts what the target says."""
    text = [*PROMPT, *argmax_decode(TARGET, PROMPT, 40)]
    places = range(len(PROMPT) + 1, len(text))
    inputs = torch.cat([states(model, text[:i], [0]) for i in places])  # [n, D]
    wanted = torch.nn.functional.one_hot(torch.tensor(text[places[0] :]), VOCAB).float() * 8
    model.lm_head.weight.copy_(torch.linalg.lstsq(inputs, wanted).solution.T)
    return model


def library_model(head, **changes):
    return made_to_agree(library_assistant(masked=head == "masked", scored=6, **changes))


MODELS = {head: library_model(head) for head in HEADS}


def bound(head, kind=Assistant):
    """Our side of the same assistant."""
    return kind(library_model(head), TARGET)


ASSISTANTS = {head: bound(head) for head in HEADS}


class Watched(GemmaAssistant):
    """Remembers every proposal with its context."""

    def __init__(self, assistant, **chosen):
        super().__init__(assistant, Sampler(Settings(**chosen)), torch.Generator().manual_seed(1))
        self.seen = []

    def propose(self, context, gamma):
        draft = super().propose(context, gamma)
        if gamma:
            self.seen.append((list(context.token_ids), draft))
        return draft


def watched_run(assistant, gamma=4, *, target=None, count=40, temperature=0.0, **options):
    proposer = Watched(assistant, temperature=temperature)
    chosen = Settings(gamma=gamma, max_new_tokens=count, temperature=temperature, seed=2)
    events = run(target or HFModel(TARGET), proposer, PROMPT, chosen, **options)
    return proposer.seen, events


def in_turn(*counts):
    """A rule that accepts so many tokens, whatever they are, round by round."""
    turns = itertools.cycle(counts)

    def rule(token_ids, q, p, u):
        right = verify(token_ids, q, p, u)
        n = min(next(turns), len(token_ids))
        return right._replace(num_accepted=n, next_probs=p[n])

    return rule


# --- drafts ---


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("gamma", GAMMAS)
def test_every_proposal_of_a_run_equals_the_reference_without_a_cache(gamma, temperature, head):
    seen, events = watched_run(ASSISTANTS[head], gamma, temperature=temperature)
    accepted = {done.verdict.num_accepted for done in rounds(events)}
    assert {0, 1} <= accepted
    assert len(seen[0][0]) < WINDOW
    assert len(seen[-1][0]) > 4 * WINDOW
    assert difference(MODELS[head], seen) < NEAR


@pytest.mark.parametrize("head", HEADS)
def test_whatever_number_is_accepted_the_next_proposal_equals_the_reference(head):
    seen, events = watched_run(ASSISTANTS[head], 4, count=60, rule=in_turn(0, 4, 2, 1, 3, 4, 0, 0))
    assert len(rounds(events)) > 16
    assert difference(MODELS[head], seen) < NEAR


class Stale(HFModel):
    """Leaves the keys and values of rejected tokens visible."""

    def shared_kv(self, length):
        return super().shared_kv(len(self._held))


class Late(HFModel):
    """Hides the last position."""

    def shared_kv(self, length):
        return super().shared_kv(max(length - 1, 1))


@pytest.mark.parametrize("wrong", [Stale, Late])
def test_keys_and_values_of_other_positions_give_other_drafts(wrong):
    seen, _ = watched_run(ASSISTANTS["whole"], target=wrong(TARGET))
    assert difference(MODELS["whole"], seen) > FAR


def test_stale_keys_show_only_behind_a_rejection():
    """So the test above notices the rejected tokens and nothing else."""
    seen, _ = watched_run(ASSISTANTS["whole"], target=Stale(TARGET), rule=in_turn(4))
    assert difference(MODELS["whole"], seen) < NEAR


class Moving(Assistant):
    """Goes on to the next position at every step."""

    start = None

    def step(self, token_id, hidden, position, shared):
        if self.start != position:
            self.start, self.steps = position, 0
        self.steps += 1
        return super().step(token_id, hidden, position + self.steps - 1, shared)


class OneBehind(Assistant):
    def step(self, token_id, hidden, position, shared):
        return super().step(token_id, hidden, position - 1, shared)


class Unscaled(Assistant):
    def __init__(self, model, target):
        super().__init__(model, target)
        weight = target.get_input_embeddings().weight
        self.embedding = lambda ids: weight[ids]


class KeepingTheFirstState(Assistant):
    """Chains the target's state instead of the assistant's own."""

    def step(self, token_id, hidden, position, shared):
        return super().step(token_id, hidden, position, shared)[0], hidden


class Turned(Assistant):
    """Puts the state first."""

    def __init__(self, model, target):
        super().__init__(model, target)
        weight = self.model.pre_projection.weight
        weight.copy_(weight.roll(WIDTH, 1))


class Narrow(Assistant):
    """Sees one position less in its sliding layers."""

    def __init__(self, model, target):
        super().__init__(model, target)
        self.model.config.get_text_config().sliding_window -= 1


class WithoutWindow(Assistant):
    def __init__(self, model, target):
        super().__init__(model, target)
        self.model.config.get_text_config().sliding_window = 500


WRONG = (Moving, OneBehind, Unscaled, KeepingTheFirstState, Turned, Narrow, WithoutWindow)


@pytest.mark.parametrize("wrong", WRONG)
def test_a_wrong_wiring_gives_other_drafts(wrong):
    seen, _ = watched_run(bound("whole", wrong))
    assert difference(MODELS["whole"], seen) > FAR


# --- text ---


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("gamma", GAMMAS)
def test_greedy_text_is_that_of_plain_decoding_and_of_the_library(gamma, head):
    _, events = watched_run(ASSISTANTS[head], gamma)
    ids = list(finished(events).token_ids)
    assert ids == argmax_decode(TARGET, PROMPT, 40)
    model = library_model(head)
    model.generation_config.num_assistant_tokens = gamma
    theirs = TARGET.generate(
        torch.tensor([PROMPT]), assistant_model=model, max_new_tokens=40, do_sample=False
    )
    assert ids == theirs[0, len(PROMPT) :].tolist()
    assert sum(done.verdict.num_accepted for done in rounds(events)) > 5


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("length", [3, WINDOW - 1, WINDOW, WINDOW + 1, WINDOW + 2, 25])
def test_the_librarys_own_loop_drafts_the_same_behind_a_prompt(length, head):
    """Behind the prompt nothing is stale yet, so there its drafts can be compared."""
    prompt = [*PROMPT, *argmax_decode(TARGET, PROMPT, length)][:length]
    model, theirs = library_model(head), []
    model.generation_config.num_assistant_tokens = 4
    hook = model.register_forward_hook(lambda _, __, out: theirs.append(out.logits[0, 0]))
    TARGET.generate(
        torch.tensor([prompt]), assistant_model=model, max_new_tokens=12, do_sample=False
    )
    hook.remove()
    proposer = Watched(ASSISTANTS[head])
    run(HFModel(TARGET), proposer, prompt, Settings(gamma=4, max_new_tokens=12))
    (_, draft), *_ = proposer.seen
    assert len(draft) == 4
    scored = draft.logits.isfinite()
    assert torch.allclose(draft.logits[scored], torch.stack(theirs[:4])[scored], atol=1e-4)


# --- keys and values ---


def test_the_final_feature_is_the_state_the_head_reads():
    model = HFModel(TARGET)
    model.tap(("final",))
    reading = model.read([*PROMPT, 1, 2, 9, 4, 4], features=3)
    logits = TARGET.lm_head(reading.features)
    assert torch.allclose(torch.tanh(logits / 30)[-1] * 30, reading.logits[-1], atol=1e-5)


tokens = st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=9)


@given(steps=st.lists(st.tuples(st.integers(0, 30), tokens, st.integers(0, 8)), max_size=6))
@settings(deadline=None, max_examples=25)
def test_what_is_shared_is_what_a_fresh_pass_computes_whatever_was_read_before(steps):
    model, context = HFModel(TARGET), [1, 2, 3]
    model.read(context)
    for kept, fresh, back in steps:
        context = [*context[:kept], *fresh]
        model.read(context)
        length = max(1, len(context) - back)
        shared = model.shared_kv(length)
        _, expected = read_afresh(context[:length])
        for ours, kind in ((shared.sliding, "sliding"), (shared.full, "full")):
            for side, whole in zip(ours, expected[f"{kind}_attention"], strict=True):
                assert side.shape == whole.shape
                # A norm may blow rounding up; another position's values differ by ones.
                assert torch.allclose(side, whole, atol=FAR)


def test_to_share_rolls_nothing_back():
    model = HFModel(TARGET)
    model.read([1, 2, 3, 4, 5])
    model.shared_kv(2)
    assert model.read([1, 2, 3, 4, 6]).num_rolled_back == 1


def test_what_was_not_read_cannot_be_shared():
    model = HFModel(TARGET)
    with pytest.raises(ValueError, match="1 positions asked for, 0 read"):
        model.shared_kv(1)
    model.read([1, 2, 3])
    for length in (0, 4):
        with pytest.raises(ValueError, match="3 read"):
            model.shared_kv(length)
    other = HFModel(llama())
    other.read([1, 2, 3])
    with pytest.raises(ValueError, match="LlamaForCausalLM has no keys"):
        other.shared_kv(2)


def test_only_a_proposer_that_asks_is_handed_keys_and_values():
    def draft(target, proposer):
        target.read([1, 2, 3, 4, 5])
        step = EagerStep(target, proposer, None, Sampler(Settings()), Streams.seeded(0, CPU))
        step.draft(Context([1, 2, 3, 6], torch.empty(0, 0), 0), 2)

    class Spy:
        taps = ()

        def propose(self, context, gamma):
            self.shared = context.shared_kv
            return nothing(VOCAB).propose(context, gamma)

    class Asking(Spy):
        wants_shared_kv = True

    modest, asking = Spy(), Asking()
    draft(HFModel(TARGET), modest)
    assert modest.shared is None
    draft(HFModel(TARGET), asking)
    assert {side.shape[2] for side in (*asking.shared.full, *asking.shared.sliding)} == {3}
    with pytest.raises(ValueError, match="share"):
        draft(toy_pair().target, Asking())


# --- the contract of a proposer ---


def handed(ids, *, start=0, seen=0):
    """The context the loop would give behind `ids`, `seen` positions of it being known."""
    model = HFModel(TARGET)
    model.tap(("final",))
    new = len(ids) - 1 - seen
    reading = model.read(ids[:-1], features=new)
    features = reading.features if new else torch.empty(0, 0)
    return Context(ids, features, start, model.shared_kv(len(ids) - 1))


def proposer_of(head="whole", seed=0, **chosen):
    generator = torch.Generator().manual_seed(seed)
    return GemmaAssistant(ASSISTANTS[head], Sampler(Settings(**chosen)), generator)


def test_gamma_0_proposes_nothing_and_keeps_the_state():
    ids = [*PROMPT, 8, 9]
    proposer = proposer_of()
    assert len(proposer.propose(handed(ids), 0)) == 0
    after = proposer.propose(handed(ids, start=len(ids) - 1, seen=len(ids) - 1), 3)
    at_once = proposer_of().propose(handed(ids), 3)
    assert torch.allclose(after.logits, at_once.logits, atol=NEAR)


def test_features_with_a_gap_are_refused():
    with pytest.raises(ValueError, match="continue"):
        proposer_of().propose(handed(PROMPT, start=1), 2)


def test_a_context_without_keys_and_values_is_refused():
    context = handed(PROMPT)
    with pytest.raises(ValueError, match="missing"):
        proposer_of().propose(Context(context.token_ids, context.features, 0), 2)


def test_numbers_come_only_from_the_generator_it_was_built_with():
    def drawn(seed):
        return proposer_of(seed=seed, temperature=2.0).propose(handed(PROMPT), 5).token_ids.tolist()

    before = torch.random.get_rng_state()
    assert drawn(1) == drawn(1)
    assert len({tuple(drawn(seed)) for seed in range(5)}) > 1
    assert torch.equal(torch.random.get_rng_state(), before)


def test_it_stops_behind_a_token_it_is_unsure_of():
    whole = proposer_of(temperature=1.0).propose(handed(PROMPT), 5)
    short = proposer_of(temperature=1.0, confidence=0.999).propose(handed(PROMPT), 5)
    assert len(whole) == 5
    assert short.token_ids.tolist() == whole.token_ids.tolist()[:1]


# --- sampling with the masked head ---


@pytest.mark.parametrize("chosen", [{}, {"top_p": 0.9}, {"repetition_penalty": 1.5}], ids=str)
def test_q_lives_on_the_scored_clusters_only_and_sums_to_one(chosen):
    ids = [*PROMPT, 8, 9, 20, 21]
    draft = proposer_of("masked", temperature=1.0, **chosen).propose(handed(ids), 3)
    found = states(MODELS["masked"], ids, draft.token_ids.tolist())
    for q, logits, state in zip(draft.probs, draft.logits, found, strict=True):
        scored = set(scored_tokens(MODELS["masked"], state))
        assert len(scored) == 30
        assert set(logits.isfinite().nonzero()[:, 0].tolist()) == scored
        drawable = set(q.nonzero()[:, 0].tolist())
        assert drawable <= scored if "top_p" in chosen else drawable == scored
        assert abs(float(q.double().sum()) - 1) < 1e-6


@torch.no_grad()
def test_scores_are_the_librarys_own_and_its_filling_is_not():
    state = states(MODELS["masked"], PROMPT, [0])
    weight = MODELS["masked"].lm_head.weight
    theirs = MODELS["masked"].masked_embedding(state[None], weight)[0, 0]
    ours = ASSISTANTS["masked"].model.masked_embedding(state[None], weight)[0, 0]
    scored = ours.isfinite()
    assert int(scored.sum()) == 30
    assert torch.allclose(ours[scored], theirs[scored], atol=1e-5)
    assert theirs[~scored].isfinite().all()


def test_tokens_are_drawn_from_the_q_that_is_returned():
    context = handed(PROMPT)
    counts = torch.zeros(VOCAB)
    generator = torch.Generator().manual_seed(5)
    for _ in range(600):
        sampler = Sampler(Settings(temperature=1.5))
        draft = GemmaAssistant(ASSISTANTS["masked"], sampler, generator).propose(context, 1)
        counts[draft.token_ids] += 1
    assert float((counts / 600 - draft.probs[0]).abs().sum() / 2) < 0.12


SMALL = 6
SMALL_TARGET = gemma(vocab_size=SMALL, vocab_size_per_layer_input=SMALL)
SMALL_ASSISTANT = Assistant(
    library_assistant(masked=True, clusters=3, scored=2, vocab_size=SMALL), SMALL_TARGET
)
START = (1, 2, 3, 4, 5, 1, 0, 2)  # past the window


class Enumeration:
    """The joint law of three tokens: every draft of two, every outcome of the coins."""

    def __init__(self, monkeypatch, chosen):
        self.sampler = Sampler(chosen)
        self.model = HFModel(SMALL_TARGET)
        self.model.tap(("final",))
        self.known = {}
        self.scripted = []
        monkeypatch.setattr(gemma_assistant, "draw", lambda *_: self.scripted.pop(0))

    def p(self, ids):
        """The target's law behind ids, in float64.  [V]"""
        if ids not in self.known:
            self.model.forget()
            row = self.sampler.probs(self.model.read(ids).logits, ids)[0].double()
            self.known[ids] = row / row.sum()
        return self.known[ids]

    def q(self, drawn):
        """What the proposer says it draws from, on the way along `drawn`.  [2, V]"""
        self.scripted = list(drawn)
        self.model.forget()
        features = self.model.read(START[:-1], features=len(START) - 1).features
        context = Context(START, features, 0, self.model.shared_kv(len(START) - 1))
        proposer = GemmaAssistant(SMALL_ASSISTANT, self.sampler, torch.Generator())
        rows = proposer.propose(context, 2).probs.double()
        return rows / rows.sum(-1, keepdim=True)

    def law(self, *, drawn_by=lambda q: q):
        """The law of what is emitted.  [V, V, V]"""
        out = torch.zeros(SMALL, SMALL, SMALL, dtype=torch.float64)
        for drawn in itertools.product(range(SMALL), repeat=2):
            q = self.q(drawn)
            p = torch.stack([self.p(START + drawn[:i]) for i in range(3)])
            weights = drawn_by(q)
            weight = float(weights[0, drawn[0]] * weights[1, drawn[1]])
            if weight == 0:
                continue
            for wins in itertools.product((True, False), repeat=2):
                u = torch.tensor([0.0 if win else 1 - 1e-12 for win in wins], dtype=torch.float64)
                decision = verify(torch.tensor(drawn), q, p, u)
                chances = [
                    float(a if win else 1 - a)
                    for a, win in zip(decision.accept_prob, wins, strict=True)
                ]
                mass = weight * chances[0] * chances[1]
                if mass > 0:
                    kept = drawn[: decision.num_accepted]
                    for token, chance in enumerate(decision.next_probs.tolist()):
                        self.extend(out, (*kept, token), mass * chance)
        return out

    def extend(self, out, emitted, mass):
        """Add mass to every continuation, by the target's own law."""
        if mass == 0:
            return
        if len(emitted) == 3:
            out[emitted] += mass
            return
        for token, chance in enumerate(self.p(START + emitted).tolist()):
            self.extend(out, (*emitted, token), mass * chance)

    def error(self, **options):
        wanted = torch.zeros(SMALL, SMALL, SMALL, dtype=torch.float64)
        self.extend(wanted, (), 1.0)
        return float((self.law(**options) - wanted).abs().max())


@pytest.mark.parametrize(
    "chosen",
    [
        Settings(temperature=1.0),
        Settings(temperature=0.7, top_k=3),
        Settings(temperature=1.0, repetition_penalty=1.6),
        Settings(temperature=0.0),
    ],
    ids=["plain", "top-k", "penalty", "greedy"],
)
def test_the_joint_law_is_the_targets_with_a_masked_head(monkeypatch, chosen):
    assert Enumeration(monkeypatch, chosen).error() < 1e-10


def test_the_most_likely_token_beside_a_softmax_q_would_not_give_the_targets_law(monkeypatch):
    def most_likely(q):
        return torch.nn.functional.one_hot(q.argmax(-1), SMALL).double()

    chosen = Settings(temperature=1.0)
    assert Enumeration(monkeypatch, chosen).error(drawn_by=most_likely) > 1e-2
