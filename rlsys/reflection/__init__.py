"""The reflection model of REA-RL (arXiv 2505.19862): its training data, its use, its evaluation.

    prompts                 prompts of the reflection model and of its teacher
    detector                the reflection model in use: where to cut a thought
    environment, report     episodes with revised thoughts, and their metrics
    labelling.responses     thoughts and answers of the policy, sampled and stored in files
    labelling.teacher       a large model finds the chunks that state the right answer
    labelling.arithmetic    an exact teacher for the arithmetic corpus
    labelling.countdown     an exact teacher for Countdown searches
    labelling.rows          training rows of the reflection model, truncated paths, preference pairs
    labelling.evaluation    accuracy of the detection; accuracy and tokens after its cuts

The pure functions are in rlsys.algorithms.reflection. This package handles texts, files and
engines.
"""
