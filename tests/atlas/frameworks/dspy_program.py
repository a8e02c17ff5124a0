"""`dspy`: ReAct with a tool."""

import dspy
from shell import API_KEY, BASE_URL, MODEL, TASK, shell

dspy.configure(lm=dspy.LM(f"openai/{MODEL}", api_base=BASE_URL, api_key=API_KEY, cache=False))
print(dspy.ReAct("question -> answer", tools=[shell], max_iters=6)(question=TASK).answer)
