"""How a training conversation may begin.

The target writes its own training prompts: it is given the chat template up to the user's turn and
one of these openers, and samples the rest. An empty opener leaves the whole prompt to it. Numbers
are relative weights.
"""

from __future__ import annotations

OPENERS: dict[str, int] = {
    "": 30,
    # open questions and explanations
    "What is": 4,
    "What are the": 3,
    "Explain": 4,
    "Explain how": 2,
    "Why do": 3,
    "How do I": 3,
    "How does": 3,
    "Who was": 2,
    "What is the difference between": 3,
    "Can you": 3,
    "Describe": 3,
    "Compare": 2,
    "I am": 2,
    "Tell me about": 2,
    "What happened": 1,
    # code
    "Write a Python function": 4,
    "Write a function that": 3,
    "Write a program": 2,
    "Create a Python class": 2,
    "Write a SQL query": 2,
    "Write a JavaScript function": 2,
    "Fix the bug in this code:\n": 2,
    "Explain this code:\n": 1,
    "def ": 1,
    # maths
    "Solve": 3,
    "Calculate": 3,
    "If a train": 1,
    "A shop sells": 2,
    "Find the value of": 2,
    "Tom has": 2,
    "What is the sum of": 1,
    "A rectangle": 1,
    # translation
    "Translate the following sentence": 3,
    "Translate to French:": 3,
    "Translate to Spanish:": 2,
    "Translate into German": 1,
    "How do you say": 1,
    # lists
    "List": 4,
    "Give me five": 2,
    "Give me a list of": 3,
    "Suggest": 2,
    "Name three": 2,
    # summary and rewriting
    "Summarize the following": 4,
    "Summarize this text in one sentence:": 3,
    "Rewrite": 3,
    "Rewrite this sentence": 3,
    "Make this email more formal:": 2,
    "Correct the grammar": 2,
    "Paraphrase": 1,
    "Extract": 1,
    # open prose
    "Write a short story": 4,
    "Write a poem": 3,
    "Write an essay": 2,
    "Write a letter": 2,
    "Write an email": 3,
    "Write a paragraph": 2,
    "Once upon a time": 1,
    "Imagine": 2,
    # verbatim and format
    "Repeat the following": 3,
    "Copy this text exactly": 2,
    "Repeat this sentence three times:": 2,
    "Convert": 2,
    "Classify": 1,
}
