"""On-policy distillation: the policy writes, and a teacher judges every token that it wrote.

The objective is the reverse KL divergence KL(policy || teacher) on the policy's own text, token by
token. Its gradient is a policy gradient in which every token has the advantage
log teacher(token) - log policy(token), the negative k1 estimate: what the teacher finds more likely
than the policy does becomes more likely.

Sources: MiniLLM, arXiv 2306.08543; GKD, arXiv 2306.13649; "On-Policy Distillation", Thinking
Machines, 2025, from which the advantage per token without later tokens is taken.

Shapes: any, the same for all arguments.
"""

from __future__ import annotations

from torch import Tensor


def with_teacher(
    advantages: Tensor, logprobs: Tensor, teacher_logprobs: Tensor, coefficient: float
) -> Tensor:
    """Return the advantages plus the teacher's advantage of every token times `coefficient`.

    The result is a constant: no gradient flows through it. A token pays for itself alone and not
    for the tokens after it (as if the discount were 0). So a token that leads to text which the
    teacher dislikes is not blamed for that text; in return the advantage has little variance.

    Args:
        advantages: those of the method, from scores; 0 to learn from the teacher alone.
        logprobs: log-probs of the tokens under the policy at the start of the training step.
        teacher_logprobs: log-probs of the same tokens under the teacher, at the same temperature.
        coefficient: weight of the teacher.
    """
    return (advantages + coefficient * (teacher_logprobs - logprobs)).detach()
