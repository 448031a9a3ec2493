"""What training conversations are about: breadth decides how well a drafter does on new prompts.

Three sources, mixed per conversation. *Openers* begin a user turn that the target itself goes on
writing (Magpie, arXiv 2406.08464). *Templates* are whole prompts over `TOPICS`. *Passage tasks* ask
for work on a text, which is a piece of an earlier reply of the target. None of the page's presets
and none of the held-out prompts of `evaluate` is among them; a test keeps it so.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from engine.training.openers import OPENERS


@dataclass(frozen=True, slots=True)
class UserTurn:
    """What a user says; `whole` is False when the target shall write the rest."""

    text: str
    whole: bool


def first_turn(rng: random.Random, passages: Sequence[str]) -> UserTurn:
    """Draw how a conversation begins."""
    kind = rng.random()
    if kind < 0.4:
        return UserTurn(rng.choices(list(OPENERS), weights=list(OPENERS.values()))[0], False)
    if kind < 0.65 and passages:
        return UserTurn(rng.choice(PASSAGE_TASKS).format(text=rng.choice(passages)), True)
    return UserTurn(_filled(rng, rng.choice(TEMPLATES)), True)


def next_turn(rng: random.Random) -> UserTurn:
    """Draw how a conversation goes on."""
    if rng.random() < 0.4:
        return UserTurn(rng.choice(("", "", "Can you", "What about", "Why", "How")), False)
    return UserTurn(rng.choice(FOLLOW_UPS), True)


def _filled(rng: random.Random, template: str) -> str:
    numbers = {name: rng.randint(2, 60) for name in ("a", "b", "c")}
    names = dict(zip(("topic", "other"), rng.sample(TOPICS, 2), strict=True))
    fixed = {"task": rng.choice(CODE_TASKS), "sentence": rng.choice(SENTENCES)}
    return template.format(**numbers, **names, **fixed, language=rng.choice(LANGUAGES))


TEMPLATES: tuple[str, ...] = (
    # explanations and questions
    "What is the role of {topic} in everyday life?",
    "Explain {topic} to a ten-year-old.",
    "Explain in detail how {topic} changed over time.",
    "How are {topic} and {other} related?",
    "What are the advantages and disadvantages of {topic}?",
    "Is it true that {topic} can be dangerous? Answer in one sentence.",
    "Give a short definition of {topic}.",
    "What should a beginner know about {topic}?",
    "Why do people like {topic}?",
    "I want to learn about {topic}. Where do I start?",
    # lists
    "List {a} facts about {topic}.",
    "Give me a numbered list of tips for {topic}.",
    "Name some famous examples of {topic}.",
    "Make a table that compares {topic} and {other}.",
    "What do I need for a project about {topic}? Answer with bullet points.",
    "Write a step-by-step plan for a weekend about {topic}.",
    # prose
    "Write a story about {topic} and {other}.",
    "Write a poem about {topic}.",
    "Write a dialogue between two friends who talk about {topic}.",
    "Write a long essay on {topic}.",
    "Write a diary entry of somebody who has just discovered {topic}.",
    "Describe {topic} with all five senses.",
    "Write a letter to my grandmother about {topic}.",
    "Write a product description for something made for {topic}.",
    "Write an email that invites my colleagues to a talk on {topic}.",
    "Write a speech of one minute about {topic}.",
    # maths
    "What is {a} plus {b} minus {c}?",
    "What is {a} times {b}?",
    "A farmer has {a} crates with {b} apples each and gives away {c} apples. How many are left?",
    "Anna is {a} years old, her brother is {b} years older. How old is he? Explain.",
    "A car drives {a} kilometres in {b} hours. What is its average speed?",
    "There are {a} red and {b} blue marbles in a bag. What is the share of red ones?",
    "Solve for x: {a}x + {b} = {c}",
    "A ticket costs {a} dollars. How much do {b} tickets cost with {c} percent off?",
    # code
    "Write a Python function that {task}.",
    "Write a Python function that {task}, with type hints and an example.",
    "Write a JavaScript function that {task}.",
    "How would you write a program that {task}? Explain each step, then show the code.",
    "Write unit tests for a function that {task}.",
    "Write a Java method that {task}.",
    # translation, rewriting, repetition of short sentences
    "Translate to {language}: {sentence}",
    'How do you say "{sentence}" in {language}?',
    "Rewrite this sentence in a friendlier tone: {sentence}",
    "Rewrite in the past tense: {sentence}",
    "Correct any mistakes in this sentence: {sentence}",
    "Say this in fewer words: {sentence}",
    "Repeat this sentence {a} times: {sentence}",
    "Turn this into a question: {sentence}",
    "Is the tone of this sentence happy or sad? {sentence}",
)

PASSAGE_TASKS: tuple[str, ...] = (
    "Summarize this text in two sentences.\n\n{text}",
    "Summarize the following text.\n\n{text}",
    "{text}\n\nWhat is the main idea of this text?",
    "Give this text a title: {text}",
    "Rewrite the following text in simpler words.\n\n{text}",
    "Rewrite this so that it sounds more formal: {text}",
    "Rewrite this as a short email: {text}",
    "Translate the following text into French.\n\n{text}",
    "Translate this text into Spanish: {text}",
    "Translate into German: {text}",
    "Repeat the following text word for word.\n\n{text}",
    "Copy this text twice, without changing anything: {text}",
    "Write this text down again, exactly as it is: {text}",
    "List the key points of this text.\n\n{text}",
    "Ask three questions about this text: {text}",
    "Continue this text: {text}",
    "Correct the spelling and grammar of the following text.\n\n{text}",
)

FOLLOW_UPS: tuple[str, ...] = (
    "Thank you! Can you make it shorter?",
    "Please explain that in simpler words.",
    "Give me an example.",
    "Why is that?",
    "Can you write it again, with more detail?",
    "Translate your answer into French.",
    "Repeat your last answer.",
    "Now turn that into a list.",
    "Are you sure? Check it again.",
    "What else should I know?",
    "Now write it in Python.",
    "Summarize what you just said in one sentence.",
)

LANGUAGES: tuple[str, ...] = ("French", "Spanish", "German", "Italian")

SENTENCES: tuple[str, ...] = (
    "The train to the coast leaves at half past eight.",
    "My sister has two cats and a very old dog.",
    "We will send you the documents next week.",
    "I cannot find my keys anywhere.",
    "The museum is closed on Mondays.",
    "Please bring warm clothes and good shoes.",
    "She forgot to water the plants in the kitchen.",
    "The children played in the garden until it was dark.",
    "Our new office is on the third floor.",
    "He did not like the soup because it was too salty.",
    "The weather will be better tomorrow afternoon.",
    "I would like a room with a view of the lake.",
    "They have lived in this village for thirty years.",
    "The doctor told him to drink more water.",
    "Your order has been delayed by two days.",
    "Nobody knew where the old map came from.",
)

CODE_TASKS: tuple[str, ...] = (
    "reverses a string",
    "counts the vowels in a word",
    "checks whether a number is prime",
    "finds the longest word in a sentence",
    "computes the factorial of a number",
    "merges two sorted lists",
    "removes duplicates from a list",
    "converts Celsius to Fahrenheit",
    "reads a CSV file and prints the first rows",
    "returns the n-th Fibonacci number",
    "sorts a list of dictionaries by a key",
    "checks whether a string is a palindrome",
    "counts how often each word occurs in a text",
    "finds the greatest common divisor of two numbers",
    "draws a triangle of stars",
    "flattens a nested list",
    "computes the average of a list of numbers",
    "rolls two dice and prints the result",
    "validates an email address",
    "searches a sorted list with binary search",
    "implements a stack with push and pop",
    "downloads a web page and counts its links",
    "finds the smallest number in a list",
    "converts a number to its binary form",
)

_TOPIC_LIST = """
    volcanoes; honey bees; chess; solar energy; the Roman Empire; coffee; yoga; online
    shopping; electric cars; jazz music; the moon; public libraries; gardening; dinosaurs; the
    immune system; photography; cooking pasta; hiking; climate change; basketball; the stock
    market; penguins; ancient Egypt; learning a language; black holes; the human heart; bread;
    sleep; robots; rivers; wind turbines; the Olympic Games; recycling; earthquakes;
    impressionist painting; cheese; taxes; swimming; computer games; elephants; democracy; the
    printing press; chocolate; job interviews; meditation; bicycles; the ocean; renewable
    energy; cats; space travel; tea; mountain climbing; social media; the French Revolution;
    running shoes; vaccines; rainforests; guitars; money; airports; astronomy; wolves; the
    internet; board games; fashion; bridges; insects; folk tales; time management; opera;
    vegetables; the Middle Ages; friendship; deserts; machine learning; football; grandparents;
    trains; dreams; ice cream; the nervous system; poetry; lighthouses; apartment living;
    remote work; magnets; salt; dancing; school lunches; glaciers; detective novels; weddings;
    birds; batteries; the Silk Road; first aid; whales; architecture; mushrooms; markets;
    homework; thunderstorms; pottery; museums; horses; the water cycle; new year's resolutions;
    street food; gravity; handwriting; camping; clocks; the Great Wall of China; kindness;
    plastic; sailing; theatre; digestion; spiders; winter; interior design; fireworks; maps;
    honesty; small businesses; soap; forests; marathon training; comets; podcasts; rice;
    castles
"""

TOPICS: tuple[str, ...] = tuple(" ".join(_TOPIC_LIST.split()).split("; "))
