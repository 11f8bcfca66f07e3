"""One task as an environment: a policy is shown a prompt, its reply is evaluated, the outcome is shown to it.

`TaskData` is frozen data; `Grader` is the evaluator with what rewards need (the best so far, the memory of
hacks); a `Rollout` is one walk through a task, of one turn or several. The prompts are those of the
language-model coder (`agent.llm`), so a policy that was trained here is asked for the same when it serves
as a coder.

After PrimeIntellect's verifiers: data apart from behaviour, a check that the gold answer scores full marks,
failures named by the boundary they crossed. A bad reply is data; what the evaluator's own machinery does is
no verdict.
"""
