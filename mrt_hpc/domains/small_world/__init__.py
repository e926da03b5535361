"""The embedded small world: a task, a tokenizer and a model that are made anywhere, offline, in a minute or two.

It exists so that the whole method runs on a laptop and in tests with real parts. :mod:`task` (no torch) owns the
problems and how traces look; :mod:`tokenizer` and :mod:`model` make the Hugging Face parts; :mod:`warm_start` trains
them to a policy with room to learn.
"""
