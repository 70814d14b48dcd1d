"""The reflection model of REA-RL (arXiv 2505.19862): its training data, its use, its evaluation.

    prompts      how the reflection model is asked, how it answers, and what the teacher is asked
    responses    what the policy wrote: sampled, answered from any cut, kept in files
    teacher      which chunks state the right answer, by a large model in two steps
    arithmetic   the same for the tiny reasoner, exactly
    rows         supervised rows of the reflection model; truncated paths and preference pairs
    detector     the reflection model in use: where to cut a thought
    evaluation   how well it detects, and what its cuts cost and save

What is computed is rlsys.algorithms.reflection; here are texts, files and engines.
"""
