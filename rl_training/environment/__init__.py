"""One task as an environment: it prompts a policy, evaluates its reply and shows it the outcome.

`TaskData` is frozen data; `Grader` is the evaluator with the state that rewards need (the best so far, the
memory of hacks); a `Rollout` is one walk through a task, of one turn or several. The prompts are those of the
language-model coder (`agent.llm`), so a policy that was trained here gets the same prompts when it serves as
a coder.

After PrimeIntellect's verifiers: data apart from behaviour, a check that the gold answer scores full marks,
failures named by the boundary they crossed. A bad reply is data; a failure of the evaluator's own machinery
is no verdict.
"""
